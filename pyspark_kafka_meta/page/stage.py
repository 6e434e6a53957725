"""What the page is about: a cluster of the demo's own with a query, or the events of other queries; until Ctrl-C."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping
from contextlib import ExitStack, closing
from socket import socket
from typing import NamedTuple

import typer
from rich.console import Console

from pyspark_kafka_meta.cli.parameters import DemoCluster
from pyspark_kafka_meta.demo.play import own_cluster, set_stage
from pyspark_kafka_meta.monitor.console import end_in_good_order, note
from pyspark_kafka_meta.monitor.event_sources import open_events
from pyspark_kafka_meta.monitor.watcher import Watcher
from pyspark_kafka_meta.page.actions import Actions
from pyspark_kafka_meta.page.browser import drawing
from pyspark_kafka_meta.page.page_server import address, listen, serve
from pyspark_kafka_meta.page.poller import Looker

LOCAL = ("127.0.0.1", "localhost", "::1")


class Where(NamedTuple):
    """Where the page is served, and whether to open a browser."""

    host: str
    port: int
    opens: bool


def serve_demo(kind: DemoCluster | None, where: Where) -> None:
    """Raises KafkaMetaError: the port is taken, or the stage cannot be set."""
    console = Console(stderr=True)
    with ExitStack() as opened:
        listening = opened.enter_context(_listen(where))
        cluster = opened.enter_context(own_cluster(kind, console))
        stage = opened.enter_context(set_stage(cluster, console, is_fed=True))
        looker = opened.enter_context(Looker(stage.watcher.look, by_place=True))
        actions = Actions(cluster, stage.events, looker.dead)
        _announce(listening, where)
        serve(listening, where.host, drawing(looker, cluster.name, "Cluster now", actions))


def serve_events(events: Mapping[str, str], cluster: Mapping[str, str], where: Where) -> None:
    """Args:
        events: where they are, as options of the table `refresh_events`.
        cluster: to look at beside them, `kafka.*`; may be none.

    Raises:
        KafkaMetaError: the port is taken, or an option is wrong.
    """
    with ExitStack() as opened:
        listening = opened.enter_context(_listen(where))
        source = opened.enter_context(closing(open_events(events, must_exist=True)))
        watcher = Watcher(
            source,
            cluster,
            lambda caches: sorted({row.topic for row in caches if row.topic is not None}),
            lambda: ({}, {}, 0.0),
        )
        looker = opened.enter_context(Looker(watcher.look, by_place=False))
        truth = "Cluster now" if cluster else "Newest known"
        _announce(listening, where)
        serve(listening, where.host, drawing(looker, f"Events of {source.name}", truth, None))


def _listen(where: Where) -> socket:
    end_in_good_order()
    return listen(where.host, where.port)


def _announce(listening: socket, where: Where) -> None:
    if where.host not in LOCAL:
        note(f"whoever can reach {where.host} sees this page and can press its buttons: there is no login")
    typer.echo(address(listening))
    if where.opens:
        webbrowser.open(address(listening))
