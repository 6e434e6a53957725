"""`DeadLetters`: makes letters of the malformed records of a task, without I/O; and `read_letter`, which reads them.

A letter is the record with headers that say where it was and what is wrong, named as by Kafka Connect's
`DeadLetterQueueReporter` (KIP-298). Connect has no name for the schema id, the timestamp, and a key in a header.

A letter has the time at which it was written: with the record's own time, the letter topic might delete it at once
(retention.ms), or refuse it (message.timestamp.before.max.ms).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from pyspark_kafka_meta.errors import DeadLetterError, KafkaMetaError, MalformedRecordError
from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN, records_arrow_schema
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import TypedValuesOptions
from pyspark_kafka_meta.typed.decoding import LETTER_COLUMNS, LOCATION, RAW_SUFFIX, Malformed

PREFIX = "__connect.errors."
LETTER_SCHEMA = records_arrow_schema(["key", "value", HEADERS_COLUMN, "timestamp"])
"""Of letters, and of records that are sent again. Without a timestamp they have the time at which they are written."""
WriteLetters: TypeAlias = Callable[[Sequence[pa.RecordBatch]], None]
"""Writes batches of `LETTER_SCHEMA`, and returns once all are acknowledged."""
PENDING_BYTES = 8 * 1024 * 1024
"""Of letters that are written together. So a task writes most letters at its end, and none if it fails before."""


class Letter(NamedTuple):
    """A malformed record, and where it was: topic, partition and offset are the identity of a letter.

    Attributes:
        headers: of the record.
        timestamp_us: since 1970 UTC, of the record; None if the letter does not say it.
    """

    partition: TopicPartition
    offset: int
    cause: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[Mapping[str, Any]]
    timestamp_us: int | None

    @property
    def name(self) -> str:
        """The identity: `orders-0-42`."""
        return f"{self.partition}-{self.offset}"


class DeadLetters:
    """The letters of one task."""

    def __init__(self, typed: TypedValuesOptions, write: WriteLetters) -> None:
        self._topic = typed.dead_letter_topic
        self._has_own_key = typed.dead_letter_has_own_key
        self._formats = {each.column: each.format.registry_type.lower() for each in typed.columns}
        self._write = write
        self._pending: list[pa.RecordBatch] = []

    def add(self, records: pa.RecordBatch, malformed: Mapping[int, tuple[str, Malformed]]) -> None:
        """Make letters of records. Raises DeadLetterError: as `flush`.

        Args:
            records: keys and values may be named with `RAW_SUFFIX`, beside typed ones.
            malformed: rows of `records`; the column and what is wrong with it.
        """
        rows, names = pa.array(list(malformed), pa.int64()), records.schema.names
        found = [records.column(raw if (raw := f"{name}{RAW_SUFFIX}") in names else name) for name in LETTER_COLUMNS]
        # Microseconds are numbers: Python has no years after 9999.
        types = [pa.int64() if pa.types.is_timestamp(column.type) else column.type for column in found]
        columns = [column.take(rows).cast(kind) for column, kind in zip(found, types, strict=True)]
        kept = pa.RecordBatch.from_arrays(columns, names=list(LETTER_COLUMNS)).to_pylist()
        letters = map(self._letter, kept, malformed.values())
        self._pending.append(pa.RecordBatch.from_pylist(list(letters), schema=LETTER_SCHEMA))
        if sum(batch.nbytes for batch in self._pending) >= PENDING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the letters so far. Raises DeadLetterError: they cannot be written."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        try:
            self._write(pending)
        except KafkaMetaError as error:
            count = sum(batch.num_rows for batch in pending)
            raise DeadLetterError(
                f"{count} malformed records cannot be written to 'deadLetterTopic' {self._topic}, so the task fails "
                f"rather than skip them: {error}"
            ) from error

    def _letter(self, record: Mapping[str, Any], found: tuple[str, Malformed]) -> dict[str, Any]:
        column, malformed = found
        said = {name: record[name] for name in LOCATION} | {
            "stage": f"{column.upper()}_CONVERTER",
            "class.name": self._formats.get(column, "bytes"),
            "exception.class.name": f"{MalformedRecordError.__module__}.{MalformedRecordError.__name__}",
            "exception.message": malformed.cause,
        }
        if malformed.schema_id is not None:
            said["schema.id"] = malformed.schema_id
        if record["timestamp"] >= 0:  # else the record has none
            said["timestamp"] = record["timestamp"] // 1000
        key, own = record["key"], {name: str(value).encode() for name, value in said.items()}
        if self._has_own_key:
            own["key"] = key
            key = f"{record['topic']}-{record['partition']}-{record['offset']}".encode()
        headers = [*(record[HEADERS_COLUMN] or ()), *({"key": PREFIX + name, "value": own[name]} for name in own)]
        return {"key": key, "value": record["value"], HEADERS_COLUMN: headers}


def read_letter(
    key: bytes | None, value: bytes | None, headers: Sequence[Mapping[str, Any]] | None, written_us: int | None = None
) -> Letter | None:
    """The record that a letter is of, also a letter of Kafka Connect, which has the time of its record; None if this is
    no letter. The record may be a letter itself: the last topic begins what is said of it."""
    given = headers or ()
    topics = [index for index, each in enumerate(given) if each["key"] == f"{PREFIX}topic"]
    of_record = given[: topics[-1]] if len(topics) > 1 else ()
    added = [each for each in given[len(of_record) :] if each["key"].startswith(PREFIX)]
    said = {each["key"].removeprefix(PREFIX): each["value"] for each in added}
    try:
        topic, partition, offset = (said[name].decode() for name in LOCATION)
        place, at = TopicPartition(topic, int(partition)), int(offset)
    except (KeyError, ValueError, AttributeError):
        return None
    time_us = written_us if "connector.name" in said else None
    with suppress(KeyError, ValueError, TypeError):  # Connect has no such header: it may be of others
        time_us = int(said["timestamp"]) * 1000
    cause = (said.get("exception.message") or b"").decode(errors="replace")
    own = [*of_record, *(each for each in given[len(of_record) :] if not each["key"].startswith(PREFIX))]
    return Letter(place, at, cause, said.get("key", key), value, own, time_us)
