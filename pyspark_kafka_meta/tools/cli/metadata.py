"""`kafkameta metadata`: the cluster as reported by the first broker that responds, once or repeatedly.

The request bypasses caches. With --refresh, the command also refreshes a cache of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pyspark_kafka_meta.kafka.metadata.refresh_events import Outcome
from pyspark_kafka_meta.kafka.protocol.error_codes import describe
from pyspark_kafka_meta.model import MetadataResponse
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.caches_from_events import Event
from pyspark_kafka_meta.tables.cluster_query import ClusterDescription, describe_cluster
from pyspark_kafka_meta.tools.cli import repeat
from pyspark_kafka_meta.tools.cli.command_cache import OwnCache
from pyspark_kafka_meta.tools.shared.console import print_json
from pyspark_kafka_meta.tools.shared.formatting import EventsTable, plain


@dataclass(frozen=True, slots=True)
class Look:
    """A description of the cluster at one time.

    Attributes:
        events: of the command's cache since the last look; none without a cache.
    """

    description: ClusterDescription
    events: list[Event]

    def state(self) -> object:
        """Equal in two looks without a change. Excludes the controller: with KRaft, brokers report any broker."""
        response = self.description.response
        return sorted(response.brokers), _topic_rows(response)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = self.description
        about = {"answered_by": str(found.address), "latency_ms": round(found.latency_ms, 3)}
        return {**about, **asdict(found.response), "events": self.events}


def look_at(options: ClientOptions, topics: Collection[str] | None, own_cache: OwnCache | None) -> Look:
    """Look at the cluster.

    Args:
        topics: None for all topics.

    Raises:
        KafkaMetaError: as `describe_cluster`.
    """
    description = describe_cluster(options, topics)
    events = [] if own_cache is None else own_cache.refresh([topic.name for topic in description.response.topics])
    return Look(description, events)


def show(seen: Look, console: Console | None) -> None:
    """Print tables; without a console, a line of JSON."""
    if console is None:
        print_json(seen.as_dict())
    else:
        console.print(_tables(seen))


def watch(look: Callable[[], Look], console: Console | None, every_s: float, times: int | None) -> bool:
    """Look as `repeat.watch`: JSON has a line for each look, a terminal the tables of the last look, and a pipe the
    tables of each look with a change.
    """
    if console is None:
        return repeat.watch(look, lambda seen: show(seen, None), _tables, None, every_s, times)
    return repeat.watch(look, _Changes(console), _tables, console if console.is_terminal else None, every_s, times)


class _Changes:
    """Shows a look only if it differs from the last shown look, or if the command's cache has news."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._state: object = None

    def __call__(self, seen: Look) -> None:
        if seen.state() != self._state or any(event["outcome"] != Outcome.UNCHANGED for event in seen.events):
            self._console.rule(f"{datetime.now():%H:%M:%S}")
            show(seen, self._console)
            self._state = seen.state()


def _tables(seen: Look) -> Group:
    description, response = seen.description, seen.description.response
    heading = Text.assemble(
        "Cluster ",
        plain(response.cluster_id, "bold"),
        f"; {description.address} answered Metadata v{response.api_version} in {description.latency_ms:.1f} ms with "
        f"{response.response_bytes} bytes",
    )
    tables: list[RenderableType] = [heading, _brokers_table(response), _topics_table(response)]
    if seen.events:
        tables += [Text("Events of the cache of this command"), EventsTable(seen.events)]
    return Group(*tables)


def _brokers_table(response: MetadataResponse) -> Table:
    table = Table("id", "host", "port", "rack", title="Brokers in the cluster", title_justify="left")
    for broker in sorted(response.brokers):
        table.add_row(*map(plain, (broker.node_id, broker.address.host, broker.address.port, broker.rack)))
    return table


def _topics_table(response: MetadataResponse) -> Table:
    columns = ("topic", "partition", "leader", "epoch", "replicas", "in sync", "")
    table = Table(*columns, title="Topics and leaders", title_justify="left")
    for row in _topic_rows(response):
        table.add_row(*map(plain, row))
    return table


def _topic_rows(response: MetadataResponse) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for topic in sorted(response.topics, key=lambda topic: topic.name):
        if topic.error_code:
            rows.append((topic.name, "", "", "", "", "", describe(topic.error_code)))
        rows += [
            (
                topic.name,
                str(partition.partition),
                str(partition.leader_id) if partition.leader_id >= 0 else "none",
                str(partition.leader_epoch),
                " ".join(map(str, partition.replicas)),
                " ".join(map(str, sorted(partition.isr))),
                describe(partition.error_code) if partition.error_code else "",
            )
            for partition in sorted(topic.partitions, key=lambda partition: partition.partition)
        ]
    return rows
