"""`ChangeRows`: makes rows of a table, with `_change`, of the typed keys and values of records.

Debezium writes a tombstone after each delete, so that compaction removes the key. It says nothing new, unless the
delete itself was compacted away: so it is dropped after the delete of its key alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import Flags, Longs, flag_array, memory_of, null_unless, number_array, offsets_of
from pyspark_kafka_meta.changes.schema import (
    CHANGE_COLUMN,
    DELETED_FIELD,
    KEY_COLUMN,
    POSITION_TYPE,
    TIME_FIELDS,
    ChangesSchema,
    TableColumn,
    changes_schema,
    decoded_schemas,
)
from pyspark_kafka_meta.changes.semantic_types import UTC_MICROS, micros
from pyspark_kafka_meta.changes.unavailable import Placeholders, names_by_row, without
from pyspark_kafka_meta.client_facts import MalformedRecords, SchemaLookup
from pyspark_kafka_meta.errors import TruncatedTableError
from pyspark_kafka_meta.kafka.records.schema import rows_without_columns
from pyspark_kafka_meta.model import OffsetRange, TopicPartition
from pyspark_kafka_meta.options import HEARTBEAT_TOPICS, Changes, ChangesOptions, OnTruncate
from pyspark_kafka_meta.typed.reading import (
    ERROR_SUFFIX,
    LETTER_COLUMNS,
    RAW_SUFFIX,
    Malformed,
    QuerySchemas,
    RegisteredSchema,
    TypedRows,
    WriteLetters,
    malformed_errors,
    typed_rows,
)

OPS = ("c", "u", "r", "d", "t", "m", "tombstone", "heartbeat")
"""What a record is: those of one letter by its `op`. A message and a heartbeat are no changes of rows."""
CREATE, UPDATE, READ, DELETE, TRUNCATE, MESSAGE, TOMBSTONE, HEARTBEAT = range(len(OPS))
MALFORMED, UNKNOWN = -1, -2
"""A record that was found to be malformed, and a value that is none of these."""
SKIPPED = len(OPS)
COUNTED = (*OPS, "skipped", "malformed")
"""By op, `SKIPPED` and `MALFORMED`."""
_OPS_OF_LETTERS = np.full(256, UNKNOWN)
_OPS_OF_LETTERS[[ord(op) for op in OPS[: MESSAGE + 1]]] = np.arange(MESSAGE + 1)
GENERATION_SHIFT = 48
"""Of `_change.sequence`: the lower bits have the offset, which years of records at any rate do not fill."""
POSITION_DIGITS = 20
"""Of a number in a position, which sorts as text."""
_SEQUENCE = r'^\[(?:"(?P<commit>\d+)"|null),"(?P<lsn>\d+)"\]$'
"""Of PostgreSQL: the end of the transaction before, unless none was streamed, and the change. Changes of transactions
interleave in its log, so the second alone is no order."""

Fields: TypeAlias = Mapping[str, pa.Array]
Ops: TypeAlias = Longs
"""Indexes of `OPS`, `MALFORMED` or `UNKNOWN`."""


class Bad(NamedTuple):
    """
    Attributes:
        cause: without values, which may be secrets: causes are in events.
        rows: those that are malformed by it.
    """

    cause: str
    rows: Flags


@contextmanager
def change_rows(
    schemas: QuerySchemas,
    options: ChangesOptions,
    ranges: Sequence[OffsetRange],
    known: Sequence[RegisteredSchema],
    columns: Sequence[str],
    report: Callable[[SchemaLookup | MalformedRecords], None],
    count: Callable[[str, str, int], None],
    write_letters: WriteLetters | None = None,
) -> Iterator[ChangeRows]:
    """The conversion of the records of one task: args and events as of `typed_rows`.

    Args:
        ranges: of the task.
        count: is called with a topic, what became of records, one of `COUNTED`, and their number.
    """
    needed = ["key", "value", f"key{RAW_SUFFIX}", f"value{RAW_SUFFIX}", "topic", "partition", "offset"]
    needed += [f"{reader.column.column}{ERROR_SUFFIX}" for reader in schemas.readers]
    needed += [name for name in LETTER_COLUMNS if name not in needed] if write_letters else []
    generations = {each.partition.topic: each.generation for each in ranges}
    decoded = decoded_schemas(schemas, options)
    with typed_rows(decoded, known, needed, report, sum(each.size for each in ranges), write_letters) as typed:
        is_table = any(each.latest_by_key for each in ranges)
        yield ChangeRows(changes_schema(schemas, options), typed, columns, generations, is_table, count)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The records of a batch that become rows.

    Attributes:
        are_kept: of all records.
        rows: the indexes of those that are.
        ops: of the rows. Those that turn out to be malformed are marked here.
    """

    are_kept: pa.BooleanArray
    rows: Longs
    ops: Ops

    @property
    def count(self) -> int:
        """Of all records."""
        return len(self.are_kept)

    def take(self, array: pa.Array) -> pa.Array:
        # Twice as fast as to take most rows.
        return array if len(self.rows) == self.count else array.filter(self.are_kept)

    def images(self, after: pa.StructArray, before: pa.Array | None) -> Fields:
        """The fields of the rows after the change, of a delete before it; null in rows without."""
        deletes, is_truncate = np.flatnonzero(self.ops == DELETE), self.ops == TRUNCATE
        if len(deletes):
            order = self.rows.copy()
            order[deletes] = self.count + np.arange(len(deletes))
            deleted = _read_as(after.type, before, self.count).take(number_array(self.rows[deletes]))
            images = pa.concat_arrays([after, deleted]).take(number_array(order))
        else:
            images = self.take(after)
        return _fields(without(images, is_truncate) if is_truncate.any() else images)

    def malformed(self, causes: Sequence[Bad]) -> list[Malformed]:
        """The records with a cause, each with the first. Marks their rows."""
        found: dict[int, str] = {}
        for bad in causes:
            for row in np.flatnonzero(bad.rows & (self.ops != MALFORMED)).tolist():
                found.setdefault(row, bad.cause)
        self.ops[list(found)] = MALFORMED
        return [Malformed(int(self.rows[row]), found[row], None) for row in sorted(found)]


class ChangeRows:
    """Converts the record batches of one task.

    Attributes:
        raw_columns: the columns of the batches to convert.
    """

    def __init__(
        self,
        schema: ChangesSchema,
        typed: TypedRows,
        columns: Sequence[str],
        generations: Mapping[str, int],
        is_table: bool,
        count: Callable[[str, str, int], None],
    ) -> None:
        """
        Args:
            columns: of the converted batches.
            generations: of the topics of the task.
            is_table: whether the records are the latest of their keys, of which a delete has no row.
        """
        self._schema, self._typed, self._generations = schema, typed, generations
        self._is_table, self._report_count = is_table, count
        self._fields = pa.schema([schema.type.field(name) for name in columns])
        self._is_debezium = schema.options.changes is Changes.DEBEZIUM
        key_names = {column.name for column in schema.keys}
        self._others = [column for column in schema.row if column.name not in key_names]
        self._placeholders = Placeholders(schema.options.unavailable_value)
        self._deleted: dict[TopicPartition, bytes] = {}
        self.raw_columns = typed.raw_columns

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the changes in a batch: tombstones after deletes, messages and heartbeats have none.

        Raises:
            TruncatedTableError: the table was truncated, and onTruncate is fail.
            MalformedRecordError, DeadLetterError, SchemaRegistryError: as `TypedRows.convert`.
        """
        records = self._typed.convert(batch)
        if len(records) < len(batch):
            read, left = (Counter[str](each.column("topic").to_pylist()) for each in (batch, records))
            for topic, letters in (read - left).items():
                self._report_count(topic, COUNTED[MALFORMED], letters)
        if not len(records):
            return pa.RecordBatch.from_pylist([], schema=self._fields)
        value = _fields(records.column("value"))
        kept = self._kept(records, (_ops_of_envelopes if self._is_debezium else _ops_of_rows)(records, value))
        causes = list(self._causes(kept, value))
        keys = self._keys(kept, records, causes)
        others, unsent = self._images(kept, records, value, causes)
        change = {"sequence": self._sequences(kept, records, value, causes)}
        if self._schema.options.include_before:
            change["before"] = self._before(kept, value, causes)
        malformed, has_row = kept.malformed(causes), np.ones(len(kept.rows), np.bool_)
        if malformed:
            is_bad = kept.ops == MALFORMED
            if self._typed.reject({"value": malformed}, records):  # they became letters
                has_row = ~is_bad
            others = {name: without(array, is_bad) for name, array in others.items()}
            unsent = {name: flags & ~is_bad for name, flags in unsent.items()}
        self._count(kept, records)
        change["unavailable"] = names_by_row(unsent, len(kept.rows))
        members = list(self._schema.change)
        change |= self._facts(kept, records, value, malformed)
        if not self._fields.names:
            return rows_without_columns(int(has_row.sum()))
        columns = {**others, **keys}
        columns[CHANGE_COLUMN] = pa.StructArray.from_arrays([change[each.name] for each in members], fields=members)
        rows = pa.RecordBatch.from_arrays([columns[name] for name in self._fields.names], schema=self._fields)
        return rows if has_row.all() else rows.filter(pa.array(has_row))

    # --- which records become rows ------------------------------------------------------------------------------------

    def _kept(self, records: pa.RecordBatch, ops: Ops) -> _Kept:
        """Choose the records that are changes. Raises TruncatedTableError."""
        is_truncate, on_truncate = ops == TRUNCATE, self._schema.options.on_truncate
        if on_truncate is OnTruncate.FAIL and is_truncate.any():
            raise _truncated(records, int(is_truncate.argmax()))
        is_skipped = (ops == MESSAGE) | (ops == HEARTBEAT) | self._is_repeated(records, ops)
        if on_truncate is OnTruncate.SKIP:
            is_skipped |= is_truncate
        if self._is_table:
            is_skipped |= ops == DELETE
        if self._is_table or self._schema.position:  # which a tombstone does not have
            is_skipped |= ops == TOMBSTONE
        if not self._schema.keys:  # after the delete of a row without a key, in any partition
            is_skipped |= (ops == TOMBSTONE) & _flags(records.column(f"key{RAW_SUFFIX}").is_null())
        rows = np.flatnonzero(~is_skipped)
        return _Kept(flag_array(~is_skipped), rows, ops[rows])

    def _is_repeated(self, records: pa.RecordBatch, ops: Ops) -> Flags:
        """Which tombstones follow the delete of their key in their partition, in this batch or before it."""
        keys, topics, partitions = (records.column(name) for name in (f"key{RAW_SUFFIX}", "topic", "partition"))
        numbers, is_repeated = partitions.to_numpy(), np.zeros(len(ops), np.bool_)
        at = np.flatnonzero(ops == TOMBSTONE)
        at = at[(at > 0) & (ops[at - 1] == DELETE)]
        is_repeated[at] = _flags(pc.equal(keys.take(number_array(at)), keys.take(number_array(at - 1))))
        is_other = numbers[1:] != numbers[:-1]
        if len(self._generations) > 1:
            is_other |= ~_flags(pc.equal(topics.slice(1), topics.slice(0, len(topics) - 1)))
        starts = [0, *(np.flatnonzero(is_other) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(ops)], strict=True):
            place = TopicPartition(topics[start].as_py(), int(numbers[start]))
            deleted = self._deleted.pop(place, None)
            is_repeated[start] = ops[start] == TOMBSTONE and deleted is not None and keys[start].as_py() == deleted
            if ops[end - 1] == DELETE:
                self._deleted[place] = keys[end - 1].as_py()
        return is_repeated

    def _causes(self, kept: _Kept, value: Fields) -> Iterator[Bad]:
        """Why records that can be decoded are no changes."""
        ops = kept.ops
        yield Bad("its op is none of Debezium's (c, u, r, d, t, m)", ops == UNKNOWN)
        if self._is_debezium:
            has_after = (ops >= CREATE) & (ops <= READ)
            yield Bad("it has no row after the change", has_after & ~_flags(value["after"].is_valid())[kept.rows])

    def _count(self, kept: _Kept, records: pa.RecordBatch) -> None:
        topics = records.column("topic").dictionary_encode()
        ops = np.full(kept.count, SKIPPED)
        ops[kept.rows] = kept.ops
        for number, topic in enumerate(topics.dictionary.to_pylist()):
            counts = np.bincount(ops[topics.indices.to_numpy() == number] - MALFORMED)
            for op in np.flatnonzero(counts).tolist():
                self._report_count(topic, COUNTED[op + MALFORMED], int(counts[op]))

    # --- their columns ------------------------------------------------------------------------------------------------

    def _keys(self, kept: _Kept, records: pa.RecordBatch, causes: list[Bad]) -> dict[str, pa.Array]:
        key = records.column("key")
        fields = _fields(key) if self._schema.key_is_struct else {KEY_COLUMN: key}
        columns = {each.name: _converted(each, kept.take(fields[each.name]), causes) for each in self._schema.keys}
        is_change = (kept.ops == TOMBSTONE) | ((kept.ops >= CREATE) & (kept.ops <= DELETE))
        keyless = ": set 'keyFormat' to bytes if the table has no key"
        advice = keyless if self._is_debezium else ", which 'changes' upsert needs"
        for name, column in columns.items():
            part = f", or a key without {name}" if self._schema.key_is_struct else ""
            causes.append(Bad(f"it has no key{part}{advice}", is_change & _flags(column.is_null())))
        return columns

    def _images(
        self, kept: _Kept, records: pa.RecordBatch, value: Fields, causes: list[Bad]
    ) -> tuple[dict[str, pa.Array], dict[str, Flags]]:
        """The other columns, and the rows in which a column was not sent."""
        row = records.column("value")
        after, before = (value["after"], value.get("before")) if self._is_debezium else (row, row)
        images = kept.images(after, before)
        columns: dict[str, pa.Array] = {}
        unsent: dict[str, Flags] = {}
        for each in self._others:
            image = images[each.name]
            is_unsent = self._placeholders.in_column(image)
            if is_unsent is not None:
                is_unsent &= kept.ops != READ  # a snapshot reads all columns: this is the text itself
                unsent[each.name], image = is_unsent, without(image, is_unsent)
            columns[each.name] = _converted(each, image, causes, kept.ops == DELETE)
        return columns, unsent

    def _before(self, kept: _Kept, value: Fields, causes: list[Bad]) -> pa.Array:
        if "before" not in value:
            return pa.nulls(len(kept.rows), self._schema.change.field("before").type)
        before, is_delete = value["before"], kept.ops == DELETE
        fields = _fields(kept.take(_read_as(value["after"].type, before, kept.count)))
        arrays = [_converted(each, fields[each.name], causes, is_delete) for each in self._schema.row]
        names, is_null = [each.name for each in self._schema.row], kept.take(before.is_null())
        return pa.StructArray.from_arrays(arrays, names, mask=is_null)

    def _sequences(self, kept: _Kept, records: pa.RecordBatch, value: Fields, causes: list[Bad]) -> pa.Array:
        """Of `ChangeOrder`."""
        offsets = kept.take(records.column("offset"))
        if any(self._generations.values()):
            topics = kept.take(records.column("topic")).dictionary_encode()
            generations = [self._generations[topic] << GENERATION_SHIFT for topic in topics.dictionary.to_pylist()]
            offsets = pc.add(offsets, pa.array(generations, pa.int64()).take(topics.indices))
        if not self._schema.position:
            return offsets
        positions = _positions(_fields(kept.take(value["source"])), self._schema.position)
        has_none = _flags(positions.is_null())
        causes.append(Bad("it has no position in the database, which 'changeOrder' source needs", has_none))
        return pa.StructArray.from_arrays([positions.fill_null(""), offsets], fields=list(POSITION_TYPE))

    def _facts(
        self, kept: _Kept, records: pa.RecordBatch, value: Fields, malformed: Sequence[Malformed]
    ) -> dict[str, pa.Array]:
        """The members of `_change` that no row is malformed by."""
        is_change = kept.ops >= 0
        deleted = number_array(((kept.ops == DELETE) | (kept.ops == TOMBSTONE)).astype(np.int8), is_change)
        facts = {name: kept.take(records.column(name)) for name in ("topic", "partition", "offset")}
        facts |= {"op": pa.array(OPS).take(number_array(kept.ops, is_change)), "deleted": deleted.cast(pa.bool_())}
        if "error" in self._schema.change.names:
            names = [name for name in records.schema.names if name.endswith(ERROR_SUFFIX)]
            own = malformed_errors(records.column(f"value{RAW_SUFFIX}"), malformed)
            facts["error"] = kept.take(pc.coalesce(*(records.column(name) for name in sorted(names)[::-1]), own))
        if self._is_debezium:
            facts |= {name: kept.take(value[name]) for name in ("source", "transaction") if name in value}
            source = _fields(facts.get("source"))
            facts |= {"snapshot": _snapshot(source, len(is_change)), "changed_at": _time(source, len(is_change))}
            facts["captured_at"] = kept.take(_time(value, kept.count))
        return facts


def _fields(struct: pa.Array | None) -> dict[str, pa.Array]:
    """The fields of an array of structs by name, null where the struct is; none of another array."""
    if struct is None or not pa.types.is_struct(struct.type):
        return {}
    return dict(zip(struct.type.names, struct.flatten(), strict=True))


def _read_as(kind: pa.StructType, structs: pa.Array | None, count: int) -> pa.StructArray:
    """With the fields of this type, null where the structs have none, or one of another type."""
    if structs is not None and structs.type == kind:
        return structs
    known = _fields(structs)
    found = [known.get(each.name) for each in kind]
    arrays = [
        pa.nulls(count, each.type) if array is None or array.type != each.type else array
        for array, each in zip(found, kind, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def _flags(array: pa.BooleanArray) -> Flags:
    """False for null."""
    flags: Flags = array.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _ops_of_envelopes(records: pa.RecordBatch, value: Fields) -> Ops:
    op = value["op"]
    offsets, letters = offsets_of(op), np.append(memory_of(op), np.uint8(0))
    is_letter = (np.diff(offsets) == 1) & _flags(op.is_valid())
    sent = np.where(is_letter, _OPS_OF_LETTERS[letters[offsets[:-1]]], UNKNOWN)
    ops = np.where(_flags(records.column("value").is_null()), TOMBSTONE, sent)
    if (ops == UNKNOWN).any():
        is_heartbeat = _flags(pc.starts_with(records.column("topic"), HEARTBEAT_TOPICS))
        ops[(ops == UNKNOWN) & is_heartbeat] = HEARTBEAT
    return _without_errors(records, ops)


def _ops_of_rows(records: pa.RecordBatch, value: Fields) -> Ops:
    ops = np.where(_flags(records.column("value").is_null()), TOMBSTONE, UPDATE)
    if DELETED_FIELD in value:
        ops[_flags(pc.equal(value[DELETED_FIELD].cast(pa.string()), "true"))] = DELETE
    return _without_errors(records, ops)


def _without_errors(records: pa.RecordBatch, ops: Ops) -> Ops:
    for name in records.schema.names:
        if name.endswith(ERROR_SUFFIX):
            ops[_flags(records.column(name).is_valid())] = MALFORMED
    return ops


def _truncated(records: pa.RecordBatch, row: int) -> TruncatedTableError:
    place = TopicPartition(records.column("topic")[row].as_py(), records.column("partition")[row].as_py())
    return TruncatedTableError(
        f"{place} at offset {records.column('offset')[row]}: the table was truncated: set 'onTruncate' to skip, or to "
        "row to read a row without a key whose _change.op is t"
    )


def _converted(column: TableColumn, array: pa.Array, causes: list[Bad], may_be_null: Flags | None = None) -> pa.Array:
    """
    Args:
        may_be_null: the rows in which a value that the type cannot hold is null: a delete needs its key alone.
    """
    if column.conversion is None:
        return array
    converted, is_bad = column.conversion.convert(array)
    if may_be_null is not None:
        is_bad = is_bad & ~may_be_null
    if is_bad.any():
        causes.append(Bad(f"its column {column.name} cannot be {column.type}", is_bad))
    return converted


def _snapshot(source: Fields, count: int) -> pa.Array:
    """Which part of a snapshot a row is of."""
    if "snapshot" not in source:
        return pa.nulls(count, pa.string())
    text = source["snapshot"].cast(pa.string())
    return null_unless(_flags(pc.not_equal(text, "false")), text)


def _time(fields: Fields, count: int) -> pa.Array:
    """The most exact time that an envelope, or its source, has."""
    time = pa.nulls(count, UTC_MICROS)
    for name, (multiplier, divisor) in TIME_FIELDS.items():
        if time.null_count and name in fields and pa.types.is_integer(fields[name].type):
            time = pc.coalesce(time, micros(fields[name], multiplier, divisor, UTC_MICROS)[0])
    return time


def _positions(source: Fields, names: Sequence[str]) -> pa.StringArray:
    """Texts that sort as the positions; null without one. A snapshot has that of its beginning."""
    if names == ("sequence",):
        commit, change = pc.extract_regex(source["sequence"], _SEQUENCE).flatten()
        parts = [pc.if_else(pc.equal(commit, ""), change, commit), change]
    else:
        parts = [source[name].cast(pa.string()) for name in names]
        is_there = _flags(pc.coalesce(*parts).is_valid())
        if names[0] == "commit_scn":
            parts[0] = pc.coalesce(*parts)
        if names[0] == "file":  # its number has a digit more some day
            parts[0] = pc.replace_substring_regex(parts[0], r"^.*\.", "")
        parts = [null_unless(is_there, part.fill_null("0")) for part in parts]
    return pc.binary_join_element_wise(*(pc.utf8_lpad(part, POSITION_DIGITS, "0") for part in parts), "/")
