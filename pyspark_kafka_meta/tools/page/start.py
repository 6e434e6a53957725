"""Starts the page: on a cluster and a query of the demo's own, or on the events of other queries."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from socket import socket
from typing import NamedTuple

import typer
from rich.console import Console

from pyspark_kafka_meta.options import ClusterOptions
from pyspark_kafka_meta.options.transactions import DECISIONS_TOPIC
from pyspark_kafka_meta.tables.open_transactions import query_transactions
from pyspark_kafka_meta.tools.demo import DemoCluster
from pyspark_kafka_meta.tools.demo.runner import own_cluster, start_query
from pyspark_kafka_meta.tools.page.button_actions import ButtonActions
from pyspark_kafka_meta.tools.page.server import address, listen, serve
from pyspark_kafka_meta.tools.page.state_poller import Questions, StatePoller
from pyspark_kafka_meta.tools.page.ui import Page
from pyspark_kafka_meta.tools.shared.cluster_access import timeout_options
from pyspark_kafka_meta.tools.shared.console import end_in_good_order, note
from pyspark_kafka_meta.tools.shared.event_sources import open_events
from pyspark_kafka_meta.tools.shared.query_checkpoint import checkpoint_lag
from pyspark_kafka_meta.tools.shared.watcher import Watcher

TIMEOUT_MS = 5_000
"""For brokers to respond to a question about lag or transactions."""
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


class PageAddress(NamedTuple):
    """Where to serve the page, and whether to open a browser."""

    host: str
    port: int
    opens_browser: bool


def serve_demo(kind: DemoCluster | None, at: PageAddress) -> None:
    """Raises KafkaMetaError: the port is taken, or the demo cannot start."""
    console = Console(stderr=True)
    with ExitStack() as opened:
        listening = opened.enter_context(_listen(at))
        cluster = opened.enter_context(own_cluster(kind, console))
        query = opened.enter_context(start_query(cluster, console, is_fed=True))
        questions = _questions(cluster.options, [str(query.checkpoint)], DECISIONS_TOPIC)
        poller = opened.enter_context(StatePoller(query.watcher.state, True, questions))
        actions = ButtonActions(cluster, query.events, poller.dead)
        _announce(listening, at)
        serve(listening, at.host, lambda: Page(poller, cluster.name, "Cluster now", actions))


def serve_events(
    events: Mapping[str, str],
    cluster: Mapping[str, str],
    checkpoints: Sequence[str],
    decisions_topic: str,
    at: PageAddress,
) -> None:
    """Args:
        events: options of the table `refresh_events`.
        cluster: `kafka.*` options of the cluster to show beside the events; empty for none.
        checkpoints: locations of checkpoints of queries that read from the cluster.
        decisions_topic: of the sinks in the cluster.

    Raises:
        KafkaMetaError: the port is taken, or an option is invalid.
    """
    with ExitStack() as opened:
        listening = opened.enter_context(_listen(at))
        source = opened.enter_context(closing(open_events(events, must_exist=True)))
        watcher = Watcher(
            source,
            cluster,
            lambda caches: sorted({row.topic for row in caches if row.topic is not None}),
            lambda: ({}, {}, 0.0),
        )
        questions = _questions(cluster, checkpoints, decisions_topic) if cluster else None
        poller = opened.enter_context(StatePoller(watcher.state, False, questions))
        leaders_title = "Cluster now" if cluster else "Newest known"
        _announce(listening, at)
        serve(listening, at.host, lambda: Page(poller, f"Events of {source.name}", leaders_title, None))


def _questions(cluster: Mapping[str, str], checkpoints: Sequence[str], decisions_topic: str) -> Questions:
    options = {**cluster, **timeout_options(TIMEOUT_MS)}
    transactions = ClusterOptions.parse({**options, "decisionsTopic": decisions_topic})
    # The last part of a location alone: a URI may hold keys.
    lags = [
        (checkpoint.rstrip("/").rpartition("/")[2], partial(checkpoint_lag, checkpoint, options))
        for checkpoint in checkpoints
    ]
    return Questions(lags, partial(query_transactions, transactions))


def _listen(at: PageAddress) -> socket:
    end_in_good_order()
    return listen(at.host, at.port)


def _announce(listening: socket, at: PageAddress) -> None:
    if at.host not in LOCAL_HOSTS:
        note(f"everybody who can reach {at.host} sees this page and can press its buttons: there is no login")
    typer.echo(address(listening))
    if at.opens_browser:
        webbrowser.open(address(listening))
