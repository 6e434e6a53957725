"""What runs in a driver beside its queries: the exporter (`start_exporter`), and `QueryListener`, which logs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from pyspark_kafka_meta.errors import AuthenticationError, KafkaMetaError, OptionError
from pyspark_kafka_meta.events.event import EventKind
from pyspark_kafka_meta.options import DECISIONS_TOPIC, ClusterOptions
from pyspark_kafka_meta.options.unknown_options import CaseInsensitiveMap
from pyspark_kafka_meta.tables.lag import LagSummary, end_offsets, query_lag
from pyspark_kafka_meta.tables.rows import LagRow
from pyspark_kafka_meta.tools.console import timeout_options
from pyspark_kafka_meta.tools.exporter import HOST, INTERVAL_S, INTERVALS_S, PORT, PORTS, TIMEOUT_MS
from pyspark_kafka_meta.tools.exporter.server import Poller, PollTargets, serve
from pyspark_kafka_meta.tools.exporter.totals import Progress, QueryTotals
from pyspark_kafka_meta.tools.query_listeners import (
    BackgroundCalls,
    DriverEvents,
    JsonListener,
    logger,
    open_driver_events,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ID_SHOWN = 8
"""This many characters identify a query without a name."""


class Exporter:
    """A running exporter.

    Attributes:
        url: where Prometheus finds the metrics.
    """

    def __init__(self, url: str, opened: ExitStack) -> None:
        self.url = url
        self._opened = opened

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving. Without it, the exporter runs as long as the driver."""
        self._opened.close()


def start_exporter(
    spark: SparkSession,
    port: int = PORT,
    host: str = HOST,
    interval_s: float = INTERVAL_S,
    per_partition: bool = False,
    decisions_topic: str = DECISIONS_TOPIC,
    **options: str,
) -> Exporter:
    """Serve the metrics of this driver's queries for Prometheus. Needs the extra `exporter`.

    Args:
        port: 0 for a free port.
        host: address to listen on; by default this machine alone can scrape.
        interval_s: between two polls of events and cluster.
        per_partition: whether lag is exported by partition too.
        decisions_topic: `decisionsTopic` of the queries.
        options: `eventsPath` or `eventsTopic` of the queries, by default the default folder; and `kafka.*` of the
            cluster that they read, for lag, stale caches and transactions.

    Raises:
        OptionError: an option is invalid, the address cannot be used, or prometheus_client is not installed.
    """
    _require(port, PORTS, "port")
    _require(interval_s, INTERVALS_S, "interval_s")
    events, cluster = split_options(options)
    with ExitStack() as opening:
        source = opening.enter_context(closing(open_driver_events(events, spark.sparkContext)))
        targets = PollTargets(
            events=source, cluster=cluster, decisions_topic=decisions_topic, per_partition=per_partition
        )
        poller = Poller(targets, interval_s)
        server = opening.enter_context(closing(serve(poller, host, port)))
        opening.enter_context(poller)
        listener = ExporterListener(poller.queries)
        spark.streams.addListener(listener)
        opening.callback(spark.streams.removeListener, listener)
        return Exporter(server.url, opening.pop_all())


def _require(value: float, bounds: tuple[float, float], name: str) -> None:
    low, high = bounds
    if not low <= value <= high:
        raise OptionError(f"{name} must be from {low:g} to {high:g}, got {value}")


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options of the events, with those of the cluster for a topic; and the options of the cluster, `kafka.*`."""
    cluster = {name: value for name, value in options.items() if name.lower().startswith("kafka.")}
    events = {name: value for name, value in options.items() if name not in cluster}
    return {**cluster, **events} if "eventsTopic" in CaseInsensitiveMap(events) else events, cluster


class ExporterListener(JsonListener):
    """Passes on what becomes of queries."""

    def __init__(self, queries: QueryTotals) -> None:
        self._queries = queries

    def on_progress(self, progress: Progress) -> None:
        self._queries.add(progress)

    def on_end(self, event: Mapping[str, Any]) -> None:
        self._queries.end(event["id"], event["exception"] is not None, time.time())


class QueryListener(JsonListener):
    """Logs the lag, the time and the metadata refreshes of each streaming query after its micro-batches.

    The lines have the level INFO and the logger `pyspark_kafka_meta.queries`. Where micro-batches end faster than the
    cluster responds, only some have a line. Refreshes of the query's tasks are counted since the line before. Needs the
    extra `exporter`.

    Args:
        options: `eventsPath` or `eventsTopic` of the queries, by default the default folder; and `kafka.*` of the
            cluster that they read, without which the lag is left out.

    Raises:
        OptionError: an option is invalid.
    """

    def __init__(self, **options: str) -> None:
        events, self._cluster = split_options(options)
        self._events = DriverEvents(events)
        if self._cluster:
            self._cluster = timeout_options(TIMEOUT_MS) | self._cluster
            ClusterOptions.parse(self._cluster)
        self._calls = BackgroundCalls("kafkameta-query-listener")
        self._lock = threading.Lock()
        self._latest: dict[str, Progress] = {}
        self._refreshes: dict[str, Counter[str]] = {}

    def on_start(self, event: Mapping[str, Any]) -> None:
        self._events.query_ids.add(event["id"])

    def on_end(self, event: Mapping[str, Any]) -> None:
        self._calls.put(partial(self._events.query_ids.discard, event["id"]))  # after the last line

    def on_progress(self, progress: Progress) -> None:
        self._events.query_ids.add(progress["id"])  # it may have started before the listener was added
        with self._lock:
            self._latest[progress["id"]] = progress
        self._calls.put(self._log)

    def _log(self) -> None:
        """Log the latest report of each query: others came while the cluster responded."""
        with self._lock:
            latest, self._latest = self._latest, {}
        has_read = bool(latest) and self._read()
        for query_id, progress in latest.items():
            refreshes = self._refreshes.pop(query_id, Counter()) if has_read else None
            logger.info("%s", report_line(progress, self._lag(progress), refreshes))

    def _read(self) -> bool:
        """Count the refreshes in new events. Returns False if they cannot be read."""
        events = self._events.read()
        for event in events or ():
            if event["kind"] == EventKind.REFRESH:
                self._refreshes.setdefault(event["query_id"], Counter())[event["reason"]] += 1
        return events is not None

    def _lag(self, progress: Progress) -> Sequence[LagRow] | None:
        """None if no cluster is known, or it does not respond."""
        if not self._cluster:
            return None
        try:
            return query_lag(self._cluster, end_offsets(progress))
        except KafkaMetaError as error:
            logger.warning("the lag of queries is unknown: %s", error)
            if isinstance(error, AuthenticationError):
                self._cluster = {}  # repeated attempts may lock the account
            return None


def report_line(progress: Progress, lag: Sequence[LagRow] | None, refreshes: Mapping[str, int] | None) -> str:
    """What a query did, in one line: lag, and Metadata requests by reason, unless they are unknown."""
    name = progress["name"] or f"query {progress['id'][:ID_SHOWN]}"
    seconds = progress["batchDuration"] / 1000
    parts = [f"{name}, batch {progress['batchId']}: {progress['numInputRows'] or 0} records in {seconds:.1f} s"]
    if lag is not None:
        parts.append(str(LagSummary.of(lag)))
    if refreshes is not None:
        reasons = [f"{reason} {count}" for reason, count in sorted(refreshes.items())]
        parts.append(f"refreshes: {', '.join(reasons) or 'none'}")
    return "; ".join(parts)
