"""What `kafkameta metadata` and `lag` show of a live cluster, once or with `--watch`.

The request of `metadata` bypasses caches. With --refresh, the command also refreshes a cache of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pyspark_kafka_meta.events.event import Event
from pyspark_kafka_meta.events.origin import cli_origin
from pyspark_kafka_meta.events.publisher import EventPublisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.error_codes import describe
from pyspark_kafka_meta.model import MetadataResponse, RefreshReason
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.caches_from_events import EventRow
from pyspark_kafka_meta.tables.cluster_query import ClusterDescription, describe_cluster
from pyspark_kafka_meta.tables.lag import LagSummary
from pyspark_kafka_meta.tools.checkpoints import CheckpointLag
from pyspark_kafka_meta.tools.console import Shown
from pyspark_kafka_meta.tools.formatting import events_table, lag_view, plain, table_of

if TYPE_CHECKING:  # of a query that moves
    from pyspark_kafka_meta.tools.move_checkpoint import Move


@dataclass(frozen=True, slots=True)
class Look:
    """A description of the cluster at one time, with the events of the command's own cache since the last look."""

    description: ClusterDescription
    events: list[EventRow]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = self.description
        about = {"answered_by": str(found.address), "latency_ms": round(found.latency_ms, 3)}
        return {**about, **asdict(found.response), "events": self.events}


def look_at(options: ClientOptions, topics: Collection[str] | None, own_cache: OwnCache | None) -> Look:
    """Look at the cluster; `topics` as of `describe_cluster`, which raises KafkaMetaError."""
    description = describe_cluster(options, topics)
    events = [] if own_cache is None else own_cache.refresh([topic.name for topic in description.response.topics])
    return Look(description, events)


def _metadata_tables(seen: Look) -> Group:
    description, response = seen.description, seen.description.response
    heading = Text.assemble(
        "Cluster ",
        plain(response.cluster_id, "bold"),
        f"; {description.address} answered Metadata v{response.api_version} in {description.latency_ms:.1f} ms with "
        f"{response.response_bytes} bytes",
    )
    brokers = [(each.node_id, each.address.host, each.address.port, each.rack) for each in sorted(response.brokers)]
    topics = ("topic", "partition", "leader", "epoch", "replicas", "in sync", "error")
    tables: list[RenderableType] = [heading]
    tables += ["Brokers in the cluster", table_of(("id", "host", "port", "rack"), brokers)]
    tables += ["Topics and leaders", table_of(topics, _topic_rows(response))]
    if seen.events:
        tables += ["Events of the cache of this command", events_table(seen.events)]
    return Group(*tables)


def _topic_rows(response: MetadataResponse) -> Iterator[Sequence[object]]:
    for topic in sorted(response.topics, key=lambda topic: topic.name):
        if topic.error_code:
            yield topic.name, *[""] * 5, describe(topic.error_code)
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition):
            yield (
                topic.name,
                partition.partition,
                partition.leader_id if partition.leader_id >= 0 else "none",
                partition.leader_epoch,
                " ".join(map(str, partition.replicas)),
                " ".join(map(str, sorted(partition.isr))),
                describe(partition.error_code) if partition.error_code else "",
            )


class _Screen:
    """A sink that keeps the events until they are shown."""

    def __init__(self) -> None:
        self.events: list[EventRow] = []

    def write(self, events: Sequence[Event]) -> None:
        self.events += [event.to_dict() for event in events]

    def close(self) -> None:
        """Nothing is open."""


class OwnCache:
    """A client whose cache keeps its events until the next `refresh`."""

    def __init__(self, options: ClientOptions) -> None:
        self._screen = _Screen()
        self._client = KafkaClient(options, EventPublisher([self._screen], cli_origin()))

    def refresh(self, topics: Collection[str]) -> list[EventRow]:
        """Refresh the cache on demand, with these and all earlier topics. The first call also bootstraps the cache.
        Returns the events since the last call. Raises ConnectError: no broker responded in time."""
        cache, deadline = self._client.cache, self._client.api_deadline()
        cache.track(topics)
        if cache.snapshot.generation == 0:
            cache.refresh(RefreshReason.BOOTSTRAP, deadline)
        cache.refresh(RefreshReason.ON_DEMAND, deadline)
        self._client.publisher.flush()
        events, self._screen.events = self._screen.events, []
        return events

    def close(self) -> None:
        self._client.close()


def _lag_rows(lag: CheckpointLag) -> Iterator[dict[str, Any]]:
    for row in lag.rows:
        yield {"query_id": lag.progress.query_id, "batch_id": lag.progress.batch_id, **asdict(row)}


def _lag_tables(lag: CheckpointLag) -> Group:
    view = lag_view(lag)
    heading = f"{view.title}, at {datetime.now():%H:%M:%S}: {LagSummary.of(lag.rows)}"
    return Group(plain(heading, "bold"), view.table())


def _moved_rows(move: Move) -> Iterator[dict[str, Any]]:
    for (topic, partition), position, offset, there, proof in move.rows():
        found = {"new_topic": there.topic, "new_offset": proof.offset, "result": proof.verdict, "because": proof.text}
        yield {"topic": topic, "partition": partition, "position": position, "offset": offset, **found}


def _moved_table(move: Move) -> Table:
    columns = ("partition", "position", "offset", "new partition", "new offset", "result", "because")
    return table_of(columns, ((*moved, proof.offset, proof.verdict, proof.text) for *moved, proof in move.rows()))


METADATA = Shown[Look](lambda seen: [seen.as_dict()], _metadata_tables)
LAG = Shown(_lag_rows, _lag_tables)
MOVED = Shown(_moved_rows, _moved_table)
