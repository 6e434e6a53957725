"""`kafkameta metadata`: the cluster as the first broker that answers sees it, once or again and again.

Metadata is asked for without a cache; a cache of the command's own is refreshed beside it where that is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import count, islice
from time import sleep
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pyspark_kafka_meta.cli.own_cache import OwnCache
from pyspark_kafka_meta.kafka_errors import describe
from pyspark_kafka_meta.metadata.cache import RETRIABLE_ERRORS
from pyspark_kafka_meta.metadata.refresh_events import Outcome
from pyspark_kafka_meta.model import MetadataResponse
from pyspark_kafka_meta.monitor.console import error_text, note, print_json
from pyspark_kafka_meta.monitor.formatting import EventsTable, plain
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.caches_from_events import Event
from pyspark_kafka_meta.tables.cluster_query import ClusterDescription, describe_cluster


@dataclass(frozen=True, slots=True)
class Look:
    """What one look showed.

    Attributes:
        events: of the own cache since the look before; none where there is no such cache.
    """

    told: ClusterDescription
    events: list[Event]

    def state(self) -> object:
        """Equal to that of another look between which nothing happened. With KRaft any broker may be named as the
        controller, so that it says nothing."""
        answer = self.told.response
        return sorted(answer.brokers), _topic_rows(answer)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        told = {"answered_by": str(self.told.address), "latency_ms": round(self.told.latency_ms, 3)}
        return {**told, **asdict(self.told.response), "events": self.events}


def look_at(options: ClientOptions, topics: Collection[str] | None, own_cache: OwnCache | None) -> Look:
    """One look.

    Args:
        topics: None for all.

    Raises:
        KafkaMetaError: as `describe_cluster`.
    """
    told = describe_cluster(options, topics)
    events = [] if own_cache is None else own_cache.refresh([topic.name for topic in told.response.topics])
    return Look(told, events)


def show(seen: Look, console: Console | None) -> None:
    """As tables; without a console as one line of JSON."""
    if console is None:
        print_json(seen.as_dict())
    else:
        console.print(_tables(seen))


def watch(look: Callable[[], Look], console: Console | None, every_s: float, times: int | None) -> bool:
    """Look until Ctrl-C, or `times` times: JSON has a line for each look, a terminal the tables of the last look, and a
    pipe the tables of each look that shows a change. That no broker answers does not end it.

    Returns:
        Whether one answered the last look.

    Raises:
        KafkaMetaError: what looking again does not heal, such as a login that is refused.
    """
    if console is None:
        return _repeat(look, lambda seen: show(seen, None), note, every_s, times)
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:

            def redraw(shown: RenderableType) -> None:
                live.update(shown, refresh=True)

            def complain(text: str) -> None:
                redraw(plain(text, "red"))

            return _repeat(look, lambda seen: redraw(_tables(seen)), complain, every_s, times)
    return _repeat(look, _Changes(console), note, every_s, times)


class _Changes:
    """Shows a look only if it differs from the one before, or its own cache has news."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._state: object = None

    def __call__(self, seen: Look) -> None:
        if seen.state() != self._state or any(event["outcome"] != Outcome.UNCHANGED for event in seen.events):
            self._console.rule(f"{datetime.now():%H:%M:%S}")
            show(seen, self._console)
            self._state = seen.state()


def _repeat(
    look: Callable[[], Look],
    show_one: Callable[[Look], None],
    complain: Callable[[str], None],
    every_s: float,
    times: int | None,
) -> bool:
    has_answer = False
    for number in islice(count(), times):
        if number > 0:
            sleep(every_s)
        try:
            seen = look()
        except RETRIABLE_ERRORS as error:
            has_answer = False
            complain(error_text(error))
        else:
            has_answer = True
            show_one(seen)
    return has_answer


def _tables(seen: Look) -> Group:
    """Without the controller: with KRaft, brokers name any of them."""
    told, answer = seen.told, seen.told.response
    heading = Text.assemble(
        "Cluster ",
        plain(answer.cluster_id, "bold"),
        f"; {told.address} answered Metadata v{answer.api_version} in {told.latency_ms:.1f} ms with "
        f"{answer.response_bytes} bytes",
    )
    tables: list[RenderableType] = [heading, _brokers_table(answer), _topics_table(answer)]
    if seen.events:
        tables += [Text("What a cache of this command's own did"), EventsTable(seen.events)]
    return Group(*tables)


def _brokers_table(answer: MetadataResponse) -> Table:
    table = Table("id", "host", "port", "rack", title="Brokers in the cluster", title_justify="left")
    for broker in sorted(answer.brokers):
        table.add_row(*map(plain, (broker.node_id, broker.address.host, broker.address.port, broker.rack)))
    return table


def _topics_table(answer: MetadataResponse) -> Table:
    columns = ("topic", "partition", "leader", "epoch", "replicas", "in sync", "")
    table = Table(*columns, title="Topics and leaders", title_justify="left")
    for row in _topic_rows(answer):
        table.add_row(*map(plain, row))
    return table


def _topic_rows(answer: MetadataResponse) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for topic in sorted(answer.topics, key=lambda one: one.name):
        if topic.error_code:
            rows.append((topic.name, "", "", "", "", "", describe(topic.error_code)))
        rows += [
            (
                topic.name,
                str(one.partition),
                str(one.leader_id) if one.leader_id >= 0 else "none",
                str(one.leader_epoch),
                " ".join(map(str, one.replicas)),
                " ".join(map(str, sorted(one.isr))),
                describe(one.error_code) if one.error_code else "",
            )
            for one in sorted(topic.partitions, key=lambda one: one.partition)
        ]
    return rows
