"""`TypedRows`: makes typed columns of the keys and values of records, without I/O.

Values are decoded by their writers' schemas, all values of a schema id together, and put back in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import in_order, null_unless
from pyspark_kafka_meta.errors import MalformedRecordError, UnknownSchemaError, ValueSchemaError
from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN, SCHEMA_ID_HEADERS_COLUMN
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import Framing, OnMalformedRecord
from pyspark_kafka_meta.typed.formats import Schema, SchemaText, ValueDecoder, compiled_decoder, schema_of
from pyspark_kafka_meta.typed.framing import (
    FOREIGN_FRAME_BYTES,
    HeaderFrames,
    Unframed,
    content_id_header,
    foreign_frame,
    header_frames,
    id_header,
    unframe,
    unframe_with_content_ids,
    unframe_with_headers,
    without_message_indexes,
)

ERROR_SUFFIX = "_error"
"""`value_error` describes what is wrong with `value`."""
RAW_SUFFIX = "_raw"
"""`value_raw` has the bytes of `value`."""
ERROR_TYPE = pa.struct([("cause", pa.string()), ("schema_id", pa.int64()), ("raw", pa.binary())])
NO_INDEXES: tuple[int, ...] = ()
"""Of a format without message indexes."""
LOCATION = ("topic", "partition", "offset")
LETTER_COLUMNS = ("key", "value", *LOCATION, "timestamp", HEADERS_COLUMN)
"""What a dead letter needs of a record."""


class Malformed(NamedTuple):
    """A value that cannot be decoded.

    Attributes:
        schema_id: None if it has no frame, or a GUID instead.
        is_unresolved: its schema cannot be read with the query's.
    """

    row: int
    cause: str
    schema_id: int | None
    is_unresolved: bool = False


AddLetters: TypeAlias = Callable[[pa.RecordBatch, Mapping[int, tuple[str, Malformed]]], None]
"""Takes records, and the rows that become letters, each with the column that is malformed."""


class _Parts(NamedTuple):
    """A column, while it is decoded.

    Attributes:
        rows: of each array.
    """

    arrays: list[pa.Array]
    rows: list[npt.NDArray[np.intp]]
    malformed: list[Malformed]


class ColumnDecoding(NamedTuple):
    """How the values of a column are decoded.

    Attributes:
        writer: the schema of an id or GUID; raises UnknownSchemaError, or ValueSchemaError if it has another format.
        record_names: of the records that are read; empty for those of any name.
        column: `key` or `value`.
    """

    reader: Schema
    framing: Framing
    writer: Callable[[int | str], SchemaText]
    record_names: tuple[str, ...] = ()
    column: str = "value"

    @property
    def header(self) -> str | None:
        """With the frames; None if there is none."""
        if self.framing is Framing.APICURIO_HEADER:
            return content_id_header(self.column)
        return id_header(self.column) if self.framing.is_confluents else None

    def decode(self, values: pa.Array, in_headers: HeaderFrames | None = None) -> tuple[pa.Array, list[Malformed]]:
        """The decoded column, and its malformed values in the order of rows.

        Args:
            values: of type binary.
            in_headers: the frames that values do not begin with.
        """
        if self.framing is Framing.NONE:
            decoded = compiled_decoder(self.reader, self.reader, False).decode(values)
            return decoded.values, [Malformed(fault.row, fault.cause, None) for fault in decoded.faults]
        parts = _Parts([], [], [])
        for unframed in self._unframed(values, in_headers):
            parts.malformed.extend(Malformed(fault.row, fault.cause, None) for fault in unframed.faults)
            self._decode(unframed, parts)
        array = in_order(parts.arrays, parts.rows, len(values), self.reader.type)
        return array, _with_foreign_frames(sorted(parts.malformed, key=lambda value: value.row), values)

    def _unframed(self, values: pa.Array, in_headers: HeaderFrames | None) -> Iterator[Unframed]:
        if self.framing is Framing.APICURIO_HEADER:
            yield unframe_with_content_ids(values, in_headers, content_id_header(self.column))
            return
        if in_headers is not None:
            yield unframe_with_headers(values, in_headers)
            is_here = np.ones(len(values), np.bool_)
            is_here[in_headers.rows] = False
            values = null_unless(is_here, values)
        yield unframe(values, self.framing.id_bytes)

    def _decode(self, unframed: Unframed, parts: _Parts) -> None:
        """Add a part for each schema of a writer."""
        rows, ids, payloads, malformed = unframed.rows, unframed.schema_ids, unframed.payloads, parts.malformed
        kinds, kind = [NO_INDEXES], np.zeros(len(ids), np.intp)
        if self.reader.has_message_indexes:
            in_headers = unframed.message_indexes
            kinds, kind, rest, faults = without_message_indexes(payloads if in_headers is None else in_headers)
            payloads = rest if in_headers is None else payloads
            malformed += [_malformed(int(rows[fault.row]), fault.cause, unframed.key(fault.row)) for fault in faults]
        for chosen in _groups(ids, kind):
            key, indexes = unframed.key(int(chosen[0])), kinds[kind[chosen[0]]]
            writer = None
            try:
                writer = schema_of(type(self.reader), self.writer(key)._replace(message=indexes))
                decoder = self._decoder(writer)
            except (UnknownSchemaError, ValueSchemaError) as error:
                malformed += [
                    _malformed(row, str(error), key)._replace(is_unresolved=writer is not None)
                    for row in rows[chosen].tolist()
                ]
                continue
            decoded = decoder.decode(payloads if len(chosen) == len(ids) else payloads.take(pa.array(chosen)))
            parts.arrays.append(decoded.values)
            parts.rows.append(rows[chosen])
            malformed += [_malformed(int(rows[chosen[fault.row]]), fault.cause, key) for fault in decoded.faults]

    def _decoder(self, writer: Schema) -> ValueDecoder:
        """Raises ValueSchemaError also for another record in the topic: its fields may fit by chance."""
        name = writer.name if self.record_names else None
        if name not in (None, *self.record_names, self.reader.name):
            raise ValueSchemaError(f"it is a {name}, not a {' or '.join(self.record_names)}")
        return compiled_decoder(self.reader, writer, self.framing.is_confluents)


def _with_foreign_frames(malformed: list[Malformed], values: pa.Array) -> list[Malformed]:
    """The malformed values, with causes that name frames of other registries."""
    if not malformed:
        return malformed
    heads = pc.binary_slice(values.take(pa.array([value.row for value in malformed])), 0, FOREIGN_FRAME_BYTES)
    named = zip(malformed, map(foreign_frame, heads.to_pylist()), strict=True)
    return [
        value if whose is None else value._replace(cause=f"{value.cause}; its frame may be {whose}, which is not read")
        for value, whose in named
    ]


def _malformed(row: int, cause: str, key: int | str) -> Malformed:
    """Of a value with a frame. The cause names the GUID of a schema, as there is no number for it."""
    if isinstance(key, int):
        return Malformed(row, cause, key)
    return Malformed(row, cause if key in cause else f"{cause} (schema GUID {key})", None)


def _groups(ids: npt.NDArray[np.int64], kind: npt.NDArray[np.intp]) -> list[npt.NDArray[np.intp]]:
    """The positions with the same id and kind, in order; without those of kind -1."""
    if len(ids) and (ids == ids[0]).all() and (kind == 0).all():
        return [np.arange(len(ids))]
    order = np.lexsort((kind, ids))
    order = order[kind[order] >= 0]
    starts = np.flatnonzero((np.diff(ids[order]) != 0) | (np.diff(kind[order]) != 0)) + 1
    return np.split(order, starts) if len(order) else []


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
        self,
        columns: Sequence[str],
        typed: Mapping[str, ColumnDecoding],
        on_malformed: OnMalformedRecord,
        most_malformed: int | None = None,
        add_letters: AddLetters | None = None,
    ) -> None:
        """
        Args:
            columns: of the converted batches.
            typed: by column, `key` or `value`.
            most_malformed: records; None for any number.
            add_letters: takes malformed records, of which none becomes a row; None if onMalformedRecord is not
                deadLetter.
        """
        self._columns = columns
        decoded = [column.removesuffix(ERROR_SUFFIX) for column in columns]
        self._typed = {column: each for column, each in typed.items() if column in decoded}
        bases = [column.removesuffix(RAW_SUFFIX) for column in decoded]
        self._on_malformed = on_malformed
        self._most_malformed, self._malformed_records = most_malformed, 0
        self._add_letters = add_letters
        self._in_headers = {column: each.header for column, each in self._typed.items() if each.header is not None}
        is_apicurios = any(each.framing is Framing.APICURIO_HEADER for each in self._typed.values())
        self._headers = HEADERS_COLUMN if HEADERS_COLUMN in columns or is_apicurios else SCHEMA_ID_HEADERS_COLUMN
        needed = [*(LOCATION if self._typed else ()), *([self._headers] if self._in_headers else ())]
        if self._typed and add_letters is not None:
            self._headers, needed = HEADERS_COLUMN, [*LETTER_COLUMNS]
        self.raw_columns = list(dict.fromkeys([*bases, *needed]))
        self.malformed: dict[tuple[str, TopicPartition], MalformedCount] = {}

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch with typed columns.

        Raises:
            MalformedRecordError, DeadLetterError: as `reject`.
            SchemaRegistryError: the registry did not respond with a schema.
        """
        if not self._typed and self.raw_columns == list(self._columns):
            return batch
        arrays = {name: batch.column(name) for name in self.raw_columns}
        arrays |= {f"{name}{RAW_SUFFIX}": arrays[name] for name in ("key", "value") if name in arrays}
        found: dict[str, list[Malformed]] = {}
        for column, typed in self._typed.items():
            raw = arrays[column]
            header = self._in_headers.get(column)
            in_headers = None if header is None else header_frames(arrays[self._headers], header)
            arrays[column], malformed = typed.decode(raw, in_headers)
            if malformed:
                found[column] = malformed
            if column + ERROR_SUFFIX in self._columns:
                arrays[column + ERROR_SUFFIX] = malformed_errors(raw, malformed)
        converted = pa.RecordBatch.from_arrays([arrays[name] for name in self._columns], names=list(self._columns))
        if not found or not (letters := self.reject(found, batch)):
            return converted
        has_row = np.ones(len(batch), np.bool_)
        has_row[letters] = False
        return converted.filter(pa.array(has_row))

    def reject(self, found: Mapping[str, Sequence[Malformed]], batch: pa.RecordBatch) -> list[int]:
        """Count malformed records, or fail. Returns those that became letters, which have no row.

        Args:
            found: by column.
            batch: with `LOCATION`; for letters with `LETTER_COLUMNS`, of which those with `RAW_SUFFIX` count.

        Raises:
            MalformedRecordError: onMalformedRecord is fail, or there are too many.
            DeadLetterError: letters cannot be written.
        """
        records: dict[int, tuple[str, Malformed]] = {}
        for column, malformed in found.items():
            self._count(column, malformed, batch)
            for value in malformed:
                records.setdefault(value.row, (column, value))
        self._malformed_records += len(records)
        if self._most_malformed is not None and self._malformed_records > self._most_malformed:
            raise _too_many(self._most_malformed, *next(iter(self.malformed.items())))
        if self._add_letters is None:
            return []
        self._add_letters(batch, records)
        return list(records)

    def _count(self, column: str, malformed: Sequence[Malformed], batch: pa.RecordBatch) -> None:
        """Raises MalformedRecordError: onMalformedRecord is fail."""
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
    restart = (
        f"To read it, start the query again with a version of the subject that can, as a newer one may "
        f"('{column}SchemaVersion'), or with its record or message type ('{column}RecordName'). "
    )
    framing = (
        f"Check '{column}Framing': none for bytes without frames; Apicurio's serializers may write ids into headers "
        "(apicurio-header), and so do Azure's, which are not read. "
    )
    advice = restart if value.is_unresolved else framing if value.cause.startswith("no frame") else ""
    return MalformedRecordError(
        f"{place} at offset {offset}: the {column}{named} cannot be decoded: {value.cause}. "
        f"{advice}Set 'onMalformedRecord' to record to read the cause and the bytes as a row, or to null to read a "
        "null without its bytes",
        place.topic,
        place.partition,
        offset,
        value.schema_id,
    )


def _too_many(most: int, where: tuple[str, TopicPartition], first: MalformedCount) -> MalformedRecordError:
    column, place = where
    return MalformedRecordError(
        f"a task has more malformed records than the {most} that 'maxMalformedRecords' allows: the {column} of {place} "
        f"at offset {first.offset} cannot be decoded: {first.cause}. Correct the schema or the format of the query, or "
        "raise the option",
        place.topic,
        place.partition,
        first.offset,
        first.schema_id,
    )


def malformed_errors(raw: pa.Array, malformed: Sequence[Malformed]) -> pa.Array:
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
