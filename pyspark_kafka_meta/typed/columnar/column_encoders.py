"""What encoders of columns have in common in all formats: which fields and values they refuse, items of lists, maps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import Flags, not_utf8
from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.columnar.encoded_rows import EncodedRows, Integers
from pyspark_kafka_meta.typed.schemas import UnwritableValueError, inner_path


class ColumnEncoder(Protocol):
    """Encodes one field of all rows. Attribute `place` of its classes is the field in error texts."""

    def append(self, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
        """Append the values to the rows that are `used`; None is all rows. Values of other rows are null.

        Raises:
            UnwritableValueError: a value is null or does not fit.
        """


def place_of(path: str) -> str:
    """The field in error texts."""
    return f"field {path}" if path else "the value"


def refuse_column(path: str, why: str) -> NoReturn:
    raise ValueSchemaError(f"{place_of(path)} {why}")


def check_names(given: pa.StructType, known: Collection[str], path: str, owner: str) -> None:
    """Raises ValueSchemaError if a field of the struct occurs twice, or is not among the `known` fields of `owner`."""
    for name, count in Counter(field.name for field in given).items():
        if count > 1:
            refuse_column(inner_path(path, name), "occurs twice: rename one")
        if name not in known:
            refuse_column(inner_path(path, name), f"is not in {owner}: drop it, or extend the schema")


def refuse(place: str, wrong: Flags, why: str) -> None:
    """Raises UnwritableValueError if a row is wrong."""
    if wrong.any():
        raise UnwritableValueError(int(np.argmax(wrong)), f"{place} {why}")


def not_null(place: str, values: pa.Array, used: Flags | None) -> Flags | None:
    """The rows that are used, from the values: None if no value is null."""
    if not values.null_count:
        return None
    valid = valid_rows(values)
    refuse(place, ~valid if used is None else ~valid & used, "is null, and the schema does not allow null")
    return valid


def valid_rows(values: pa.Array) -> Flags:
    valid: Flags = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def refuse_other_than_utf8(place: str, values: pa.StringArray) -> None:
    """Spark makes strings of any bytes: `CAST(value AS STRING)`."""
    data = values.cast(pa.binary())
    try:
        data.cast(pa.string())
    except pa.ArrowInvalid:
        refuse(place, not_utf8(data) & valid_rows(values), "is not UTF-8")


def lengths(values: pa.BinaryArray) -> Integers:
    """In bytes; 0 for null."""
    lengths: Integers = pc.binary_length(values).fill_null(0).to_numpy()
    return lengths


@contextmanager
def rows_of_items(counts: Integers) -> Iterator[None]:
    """Inside `with`, items of lists with these lengths are encoded, together. An error has the list's row."""
    try:
        yield
    except UnwritableValueError as error:
        row = int(np.searchsorted(np.cumsum(counts), error.row, "right"))
        raise UnwritableValueError(row, error.cause) from None


def concatenated(values: pa.BinaryArray, counts: Integers) -> pa.BinaryArray:
    """Each run of as many values as one, without a copy."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[np.append(0, np.cumsum(counts))]
    return pa.Array.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(offsets), values.buffers()[2]])


def map_entries(maps: pa.MapArray) -> pa.ListArray:
    """The maps as lists of structs, without a copy. A cast would refuse nulls of required fields below a null."""
    entries = pa.StructArray.from_arrays([maps.keys, maps.items], fields=[maps.type.key_field, maps.type.item_field])
    return pa.Array.from_buffers(
        pa.list_(entries.type), len(maps), maps.buffers()[:2], offset=maps.offset, children=[entries]
    )
