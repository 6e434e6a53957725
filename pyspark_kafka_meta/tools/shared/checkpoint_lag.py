"""The lag of a streaming query by its checkpoint, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_kafka_meta.tables.query_lag import query_lag
from pyspark_kafka_meta.tables.rows import LagRow
from pyspark_kafka_meta.tools.shared.query_checkpoint import QueryProgress, read_checkpoint


@dataclass(frozen=True, slots=True)
class CheckpointLag:
    """The lag of a query at one time."""

    progress: QueryProgress
    rows: list[LagRow]


def checkpoint_lag(checkpoint: str, cluster: Mapping[str, str]) -> CheckpointLag:
    """The lag now.

    Args:
        checkpoint: as of `read_checkpoint`.
        cluster: `kafka.*` options.

    Raises:
        KafkaMetaError: as `read_checkpoint` and `query_lag`.
    """
    progress = read_checkpoint(checkpoint)
    return CheckpointLag(progress, query_lag(cluster, progress.offsets))
