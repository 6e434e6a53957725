"""Settings and changes of what brokers respond, for tests of tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark_kafka_meta.kafka.protocol.fetch import FetchResponse
from tests.unit.scene import Scene

ONE_BATCH = {"kafka_max_partition_fetch_bytes": "100"}
"""Each Fetch response holds one record batch of a partition."""
POLL_TIMEOUT_S = 120


def with_partitions(**fields: object) -> Callable[[FetchResponse], FetchResponse]:
    """A change of every partition of every Fetch response."""

    return lambda response: replace(
        response,
        partitions=tuple(replace(fetched, **fields) for fetched in response.partitions),  # type: ignore[arg-type]
    )


def change(scene: Scene, how: Callable[[FetchResponse], FetchResponse]) -> None:
    scene.network.change = how


def failing(code: int) -> Callable[[FetchResponse], FetchResponse]:
    return with_partitions(error_code=code, records=b"", leader_hint=None)
