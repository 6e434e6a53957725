"""The ceiling: a data source with ready Arrow batches and without Kafka, which shows Spark's own work for rows from
Python.

It imports little, because it is also the reference of cold starts and of a worker's memory. Its tasks start as promptly
as this source's, or as late as Spark's default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_kafka_meta.kafka.records.schema import RECORD_COLUMNS, records_arrow_schema
from pyspark_kafka_meta.spark.records_table import records_struct_type
from pyspark_kafka_meta.spark.task_latency import LowLatencyTask, avoid_socket_delays

BATCH_BYTES = 4 << 20
RECORD_TIME_US = 1_700_000_000_000_000


@dataclass
class Range(InputPartition):
    """Offsets of a partition, `until_offset` exclusive."""

    partition: int
    from_offset: int
    until_offset: int


class CeilingSource(DataSource):
    """Returns the same Arrow batch repeatedly."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        return records_struct_type(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        kind = LowLatencyCeilingReader if self.options["low_latency"] == "True" else CeilingReader
        return kind(*(int(self.options[name]) for name in ("partitions", "records", "value_bytes")))


class CeilingReader(DataSourceReader):
    def __init__(self, partitions: int, records: int, value_bytes: int) -> None:
        self._partitions, self._records, self._value_bytes = partitions, records, value_bytes

    def partitions(self) -> Sequence[InputPartition]:
        records = self._records // self._partitions
        return [Range(number, 0, records) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        yield from ready_rows(self._value_bytes, partition.until_offset)


class LowLatencyCeilingReader(LowLatencyTask, CeilingReader):
    def partitions(self) -> Sequence[InputPartition]:
        avoid_socket_delays()
        return super().partitions()


def ready_rows(value_bytes: int, left: int) -> Iterator[pa.RecordBatch]:
    batch = ready_batch(value_bytes)
    while left > 0:
        yield batch.slice(0, left)
        left -= batch.num_rows


@cache
def ready_batch(value_bytes: int) -> pa.RecordBatch:
    """Created once per worker."""
    rows = max(1, BATCH_BYTES // (value_bytes + 50))
    columns = [
        [b"%d" % number for number in range(rows)],
        [b"v" * value_bytes] * rows,
        ["topic"] * rows,
        [0] * rows,
        list(range(rows)),
        [RECORD_TIME_US] * rows,
        [0] * rows,
    ]
    schema = records_arrow_schema(RECORD_COLUMNS)
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema
    )
