"""Builds the columns of the records table from the fields of records and the headers of their batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_kafka_meta.arrow_arrays import binary_array, number_array
from pyspark_kafka_meta.errors import UnsupportedRecordFormatError
from pyspark_kafka_meta.kafka.records.batches import BatchHeader
from pyspark_kafka_meta.kafka.records.fields import Bytes, Fields, Longs
from pyspark_kafka_meta.kafka.records.headers_column import headers_array
from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN, SCHEMA_ID_HEADERS_COLUMN, records_arrow_schema
from pyspark_kafka_meta.model import TopicPartition

_SCHEMA_ID = re.compile(b"_schema_id")
"""In the names of headers; one literal is found faster than several."""
_MAX_MS = (2**63 - 1) // 1000


@dataclass(frozen=True, slots=True)
class Rows:
    """Input of all columns.

    Attributes:
        payload: the decompressed records; `fields` are positions in it.
        partitions, headers: of each record batch.
        batch: index of each row's record batch.
        offset: of each row.
    """

    payload: Bytes
    partitions: Sequence[TopicPartition]
    headers: Sequence[BatchHeader]
    batch: npt.NDArray[np.intp]
    offset: Longs
    fields: Fields

    def locate(self, row: int) -> str:
        return describe_batch(self.partitions[self.batch[row]], self.headers[self.batch[row]])


def describe_batch(partition: TopicPartition, header: BatchHeader) -> str:
    """A record batch in an error text."""
    return f"{partition}, record batch with base offset {header.base_offset}"


def _topic(rows: Rows) -> pa.Array:
    first, *others = topics = [partition.topic for partition in rows.partitions]
    if others.count(first) == len(others):
        return pa.repeat(first, len(rows.batch))
    return pa.array(topics).take(number_array(rows.batch))


def _partition(rows: Rows) -> pa.Array:
    return number_array(np.array([partition.partition for partition in rows.partitions], np.int32)[rows.batch])


def _timestamp(rows: Rows) -> pa.Array:
    """Milliseconds as microseconds. -1, a producer's "no timestamp", is a time before 1970, as in Spark."""
    log_append = np.array([header.is_log_append_time for header in rows.headers])
    max_ms = np.array([header.max_timestamp for header in rows.headers], np.int64)
    first_ms = np.array([header.base_timestamp for header in rows.headers], np.int64)
    base_ms = np.where(log_append, max_ms, first_ms)[rows.batch]
    delta_ms = np.where(log_append[rows.batch], 0, rows.fields.timestamp_delta)
    ms = base_ms + delta_ms
    fits = (ms >= -_MAX_MS) & (ms <= _MAX_MS) & ((ms >= base_ms) == (delta_ms >= 0))
    if not fits.all():
        row = int(np.argmin(fits))
        raise UnsupportedRecordFormatError(
            f"{rows.locate(row)}: the timestamp of offset {rows.offset[row]}, {base_ms[row]} + {delta_ms[row]} ms, "
            "does not fit Spark's microseconds; leave out the timestamp column or start after this offset"
        )
    return number_array(ms * 1000).view(pa.timestamp("us", tz="UTC"))


def _timestamp_type(rows: Rows) -> pa.Array:
    """Spark's ids: 0 CreateTime, 1 LogAppendTime. Only message format v0 has -1, no timestamp."""
    return number_array(np.array([header.is_log_append_time for header in rows.headers], np.int32)[rows.batch])


def _headers(rows: Rows) -> pa.Array:
    return headers_array(rows.payload, rows.fields, rows.locate)


def _schema_id_headers(rows: Rows) -> pa.Array:
    """To find the header's name takes a tenth of the time that other headers would take."""
    fields = rows.fields
    if fields.header_count.any():
        searched = rows.payload[fields.headers_at[0] : fields.end[-1]]  # not what reused memory has after its records
        if _SCHEMA_ID.search(searched.data) is not None:
            return _headers(rows)
    return pa.nulls(len(rows.batch), records_arrow_schema([SCHEMA_ID_HEADERS_COLUMN]).field(0).type)


COLUMNS: Mapping[str, Callable[[Rows], pa.Array]] = {
    "key": lambda rows: binary_array(rows.payload, rows.fields.key_at, rows.fields.key_length),
    "value": lambda rows: binary_array(rows.payload, rows.fields.value_at, rows.fields.value_length),
    "topic": _topic,
    "partition": _partition,
    "offset": lambda rows: number_array(rows.offset),
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    HEADERS_COLUMN: _headers,
    SCHEMA_ID_HEADERS_COLUMN: _schema_id_headers,
}
"""Builds each column from at least one row.

Raises:
    CorruptBatchError: a header's length is wrong.
    UnsupportedRecordFormatError: a timestamp does not fit Spark's microseconds.
"""
