"""Spark's base classes for streams in every release of pyspark, and `TrackedStartReader` for pyspark 4.0 and 4.1.

Since 4.2 Spark passes the start of the next micro-batch and a read limit to `latestOffset` of a Python stream reader.
Before, it passes neither, and there are no read limits; before 4.1 there is no writer of Arrow batches for streams.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader, DataSourceStreamWriter, InputPartition

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options.unknown_options import CaseInsensitiveMap
from pyspark_kafka_meta.spark.user_errors import entry_points

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxFiles",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "TrackedStartReader",
    "reader_of_release",
]

logger = logging.getLogger(__name__)

PASSES_START = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether this release passes start and limit to `latestOffset`."""

if TYPE_CHECKING or PASSES_START:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        pass

    @dataclass
    class ReadAllAvailable(ReadLimit):
        pass

    @dataclass
    class ReadMinRows(ReadLimit):
        min_rows: int

    @dataclass
    class ReadMaxRows(ReadLimit):
        max_rows: int

    @dataclass
    class ReadMaxFiles(ReadLimit):
        max_files: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        max_bytes: int

    class SupportsTriggerAvailableNow:
        pass


if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """A stream writer to which pyspark 4.0 passes Arrow batches, because of its second base."""


_MAX_OPTIONS = {
    ReadMaxRows: "maxOffsetsPerTrigger",
    ReadMaxBytes: "maxBytesPerTrigger",
    ReadMaxFiles: "maxFilesPerTrigger",
}


def reader_of_release(reader: DataSourceStreamReader, options: Mapping[str, str]) -> DataSourceStreamReader:
    """A stream reader, written for pyspark 4.2, as this release calls it. `options` are those that the user gave."""
    return reader if PASSES_START else TrackedStartReader(reader, options)


@entry_points
class TrackedStartReader(DataSourceStreamReader):
    """Passes to a reader for pyspark 4.2 the start that pyspark 4.0 and 4.1 do not pass.

    The start is known from earlier calls, which Spark makes in this order:

    | query | calls |
    |---|---|
    | new | `latestOffset`, `initialOffset`, `partitions(initial, end)`, `latestOffset` ... |
    | restarted | `partitions(end, end)`, `latestOffset` ... |
    | restarted with an unfinished micro-batch | `partitions(end, end)`, `partitions(start, end)`, `latestOffset` ... |

    `partitions(end, end)` announces the last offset of the checkpoint (Spark's `AcceptsLatestSeenOffset`). Later Spark
    logs each latest offset that is not the offset before: the next micro-batch starts there. It does not start at the
    end of other calls of `partitions`, because `foreachBatch` may read an older micro-batch again. One order is wrong,
    and refused: `latestOffset` before the announcement (Spark's `AvailableNowMicroBatchStreamWrapper`).
    """

    def __init__(self, reader: DataSourceStreamReader, options: Mapping[str, str]) -> None:
        self._reader = reader
        self._options = CaseInsensitiveMap(options)
        self._initial: dict[str, Any] | None = None
        self._start: dict[str, Any] | None = None
        self._is_planning = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Computed once: a new query has planned from it before Spark asks for it."""
        if self._initial is None:
            self._initial = self._reader.initialOffset()
        return self._initial

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        limit = self._reader.getDefaultReadLimit()
        if not self._is_planning:
            _warn_of_one_batch(limit, self._options)
            self._is_planning = True
        start = self.initialOffset() if self._start is None else self._start
        self._start = self._reader.latestOffset(start, limit)
        return self._start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if not self._is_planning:
            self._start = end
        elif start == end:
            raise OptionError(
                "set spark.sql.streaming.triggerAvailableNowWrapper.enabled to false: with it, pyspark "
                f"{pyspark.__version__} plans a restarted query before it says where the query has to continue, and "
                "records would be read again or lost"
            )
        return [] if start == end else self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def stop(self) -> None:
        self._reader.stop()


def _warn_of_one_batch(limit: ReadLimit, options: Mapping[str, str]) -> None:
    """Warn of a limit that the user gave: Spark does not say which trigger a query has."""
    option = _MAX_OPTIONS.get(type(limit), "")
    if option in options:
        logger.warning(
            "with Trigger.AvailableNow or Trigger.Once, a query of pyspark %s ends after one micro-batch, which %s "
            "limits: raise the limit, or start the query until it finds nothing new",
            pyspark.__version__,
            option,
        )
