"""`TypedRows`: makes typed columns of the keys and values of records, without I/O.

Values are decoded by their writers' schemas, all values of a schema id together, and put back in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_kafka_meta.errors import MalformedRecordError, UnknownSchemaError, ValueSchemaError
from pyspark_kafka_meta.formats.framing import unframe
from pyspark_kafka_meta.formats.value_formats import Format, SchemaText
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import Framing, OnMalformedRecord

ID_BYTES = {Framing.CONFLUENT: 4, Framing.APICURIO: 8}
ERROR_SUFFIX = "_error"
"""`value_error` describes what is wrong with `value`."""
ERROR_TYPE = pa.struct([("cause", pa.string()), ("schema_id", pa.int64()), ("raw", pa.binary())])
LOCATION = ("topic", "partition", "offset")


class Malformed(NamedTuple):
    """A value that cannot be decoded.

    Attributes:
        schema_id: None if it has no frame, or no id in its frame.
    """

    row: int
    cause: str
    schema_id: int | None


class TypedColumn(NamedTuple):
    """How the values of a column are decoded.

    Attributes:
        writer: the schema of an id; raises UnknownSchemaError, or ValueSchemaError if it has another format.
    """

    format: Format
    framing: Framing
    reader: SchemaText
    writer: Callable[[int], SchemaText]

    def decode(self, values: pa.Array) -> tuple[pa.Array, list[Malformed]]:
        """The decoded column, and its malformed values in the order of rows.

        Args:
            values: of type binary.
        """
        if self.framing is Framing.NONE:
            decoded = self.format.decoder(self.reader, self.reader).decode(values)
            return decoded.values, [Malformed(fault.row, fault.cause, None) for fault in decoded.faults]
        unframed = unframe(values, ID_BYTES[self.framing])
        malformed = [Malformed(fault.row, fault.cause, None) for fault in unframed.faults]
        ids = unframed.schema_ids
        if len(values) and len(ids) == len(values) and (ids == ids[0]).all():
            return self._decode(unframed.payloads, int(ids[0]))
        rest = np.setdiff1d(np.arange(len(values)), unframed.rows)
        parts, places = [pa.nulls(len(rest), self.format.arrow_type(self.reader))], [rest]
        for schema_id in np.unique(ids).tolist():
            chosen = np.flatnonzero(ids == schema_id)
            part, faults = self._decode(unframed.payloads.take(pa.array(chosen)), schema_id)
            parts.append(part)
            places.append(unframed.rows[chosen])
            malformed += [fault._replace(row=int(places[-1][fault.row])) for fault in faults]
        return _in_order(parts, places), sorted(malformed, key=lambda value: value.row)

    def _decode(self, payloads: pa.Array, schema_id: int) -> tuple[pa.Array, list[Malformed]]:
        """The payloads of one schema id, none of which is null."""
        try:
            decoded = self.format.decoder(self.writer(schema_id), self.reader).decode(payloads)
        except (UnknownSchemaError, ValueSchemaError) as error:
            values = pa.nulls(len(payloads), self.format.arrow_type(self.reader))
            return values, [Malformed(row, str(error), schema_id) for row in range(len(payloads))]
        return decoded.values, [Malformed(fault.row, fault.cause, schema_id) for fault in decoded.faults]


def _in_order(parts: Sequence[pa.Array], places: Sequence[npt.NDArray[np.intp]]) -> pa.Array:
    """The values of all parts, each at its place."""
    order = np.empty(sum(map(len, places)), np.int64)
    order[np.concatenate(places)] = np.arange(len(order))
    return pa.concat_arrays(parts).take(pa.array(order))


@dataclass(slots=True)
class MalformedCount:
    """The malformed values of a column in one partition; the first value as an example."""

    records: int
    offset: int
    cause: str
    schema_id: int | None


class TypedRows:
    """Converts the record batches of one task.

    Attributes:
        raw_columns: the columns of the batches to convert.
        malformed: by column and partition, so far.
    """

    def __init__(
        self, columns: Sequence[str], typed: Mapping[str, TypedColumn], on_malformed: OnMalformedRecord
    ) -> None:
        """
        Args:
            columns: of the converted batches.
            typed: by column, `key` or `value`.
        """
        self._columns = columns
        bases = [column.removesuffix(ERROR_SUFFIX) for column in columns]
        self._typed = {column: decoded for column, decoded in typed.items() if column in bases}
        self._on_malformed = on_malformed
        self.raw_columns = list(dict.fromkeys([*bases, *(LOCATION if self._typed else ())]))
        self.malformed: dict[tuple[str, TopicPartition], MalformedCount] = {}

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch with typed columns.

        Raises:
            MalformedRecordError: a value cannot be decoded, and onMalformedRecord is fail.
            SchemaRegistryError: the registry did not respond with a schema.
        """
        if not self._typed:
            return batch
        arrays = {name: batch.column(name) for name in self.raw_columns}
        for column, typed in self._typed.items():
            raw = arrays[column]
            arrays[column], malformed = typed.decode(raw)
            if malformed:
                self._take(column, malformed, batch)
            arrays[column + ERROR_SUFFIX] = _errors(raw, malformed)
        return pa.RecordBatch.from_arrays([arrays[name] for name in self._columns], names=list(self._columns))

    def _take(self, column: str, malformed: Sequence[Malformed], batch: pa.RecordBatch) -> None:
        """Count the malformed values of a batch, or fail with the first of them."""
        rows = pa.array([value.row for value in malformed])
        topics, partitions, offsets = (batch.column(name).take(rows).to_pylist() for name in LOCATION)
        places = map(TopicPartition, topics, partitions)
        for value, place, offset in zip(malformed, places, offsets, strict=True):
            if self._on_malformed is OnMalformedRecord.FAIL:
                raise _error(column, value, place, offset)
            key = column, place
            count = self.malformed.get(key) or MalformedCount(0, offset, value.cause, value.schema_id)
            count.records += 1
            self.malformed[key] = count


def _error(column: str, value: Malformed, place: TopicPartition, offset: int) -> MalformedRecordError:
    named = "" if value.schema_id is None else f" of schema id {value.schema_id}"
    return MalformedRecordError(
        f"{place} at offset {offset}: the {column}{named} cannot be decoded: {value.cause}. Set 'onMalformedRecord' to "
        "null, or to record to read the cause and the bytes as a row",
        place.topic,
        place.partition,
        offset,
        value.schema_id,
    )


def _errors(raw: pa.Array, malformed: Sequence[Malformed]) -> pa.Array:
    """The column of `ERROR_TYPE`: null for values that were decoded."""
    if not malformed:
        return pa.nulls(len(raw), ERROR_TYPE)
    rows = np.array([value.row for value in malformed])
    fields = [
        pa.array([value.cause for value in malformed], pa.string()),
        pa.array([value.schema_id for value in malformed], pa.int64()),
        raw.take(pa.array(rows)),
    ]
    index, is_decoded = np.zeros(len(raw), np.int64), np.ones(len(raw), np.bool_)
    index[rows], is_decoded[rows] = np.arange(len(rows)), False
    return pa.StructArray.from_arrays(fields, fields=list(ERROR_TYPE)).take(pa.array(index, mask=is_decoded))
