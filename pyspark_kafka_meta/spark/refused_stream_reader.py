"""`RefusedStreamReader`: stands for a stream that cannot begin, in any release of pyspark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.spark.user_errors import entry_points

if TYPE_CHECKING:
    import pyarrow as pa


@entry_points
class RefusedStreamReader(DataSourceStreamReader):
    """Raises the error of a stream that cannot begin. Spark replaces errors of `streamReader` by an
    UnboundLocalError."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        raise self._error

    def latestOffset(self, *start_and_limit: Any, **named: Any) -> dict[str, Any]:  # noqa: N802
        """Called before pyspark 4.2 too, without arguments."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error
