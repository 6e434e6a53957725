"""The exporter: `Poller` polls events, cluster, transactions and lag in a thread, and `serve` serves their readings.

A scrape never waits for a broker or a file. What a source said last stays while the source does not respond, except lag
and transactions, whose old values would look like a good state. prometheus_client serves the readings over HTTP.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from pyspark_kafka_meta.errors import (
    AuthenticationError,
    CheckpointError,
    ConnectError,
    KafkaMetaError,
    OptionError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.events.default_folder import dead_caches
from pyspark_kafka_meta.extras import missing_extra
from pyspark_kafka_meta.options import DECISIONS_TOPIC, ClusterOptions
from pyspark_kafka_meta.tables.cluster_query import newest_metadata, query_transactions
from pyspark_kafka_meta.tables.lag import query_lag, read_checkpoint
from pyspark_kafka_meta.tools.cluster_state import Leaders, live_leaders
from pyspark_kafka_meta.tools.console import error_text, timeout_options
from pyspark_kafka_meta.tools.event_sources import EventSource, RepeatedPoll
from pyspark_kafka_meta.tools.exporter import TIMEOUT_MS
from pyspark_kafka_meta.tools.exporter import metric_table as metrics
from pyspark_kafka_meta.tools.exporter.metric_table import Readings, Source
from pyspark_kafka_meta.tools.exporter.totals import EventTotals, QueryTotals, read_lag, read_transactions

if TYPE_CHECKING:
    from threading import Thread
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

EVENTS_AT_ONCE = 1_000
"""Events that are in memory together."""
REFUSED_LOGIN_S = 600.0
"""Until the next attempt after a refused login: repeated attempts may lock the account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollTargets:
    """What is polled: the events of an application, or of all, and the cluster of `kafka.*` options, if there are some.
    The checkpoints are of queries that read from it."""

    events: EventSource
    application_id: str | None = None
    cluster: Mapping[str, str]
    decisions_topic: str = DECISIONS_TOPIC
    checkpoints: Sequence[str] = ()
    per_partition: bool = False


class Poller(RepeatedPoll):
    """Polls all sources.

    Attributes:
        readings: of the last poll; before the first poll only metrics of the exporter itself.
        queries: progress of the driver's own queries, which their listener adds.
    """

    def __init__(self, targets: PollTargets, interval_s: float) -> None:
        """Raises OptionError: an option of the cluster is invalid."""
        super().__init__("kafkameta-exporter-poll", interval_s)
        self.queries = QueryTotals()
        self._targets = targets
        self._totals = EventTotals()
        self._are_new = False  # the events that are read
        self._live: Leaders | None = None
        self._lag, self._transactions = Readings(), Readings()
        self._sinks: set[str] = set()
        self._polls: dict[Source, Callable[[], None]] = {Source.EVENTS: self._poll_events}
        if targets.cluster:
            self._options = {**timeout_options(TIMEOUT_MS), **targets.cluster}
            self._cluster = ClusterOptions.parse({**self._options, "decisionsTopic": targets.decisions_topic})
            self._polls[Source.CLUSTER] = self._poll_cluster
            self._polls[Source.TRANSACTIONS] = self._poll_transactions
            self._polls[Source.LAG] = self._poll_lag
        self._own = Readings()  # metrics of the exporter itself
        self._troubles: dict[Source, str] = {}
        self._not_before_s: dict[Source, float] = {}  # sources that refused the login, seconds since 1970 UTC
        for metric in (metrics.UP, metrics.ERRORS, metrics.POLL_SECONDS):
            for source in self._polls:
                self._own.set(metric, 0, source)
        self.readings = self._own_readings()

    def poll(self) -> None:
        """Poll each source once, whatever becomes of the others, and replace the readings."""
        for source, poll in list(self._polls.items()):
            if not self._stopped.is_set():
                self._try(source, poll)
        self.readings = self._read(int(time.time() * 1000))

    def collect(self) -> Iterator[Family]:
        """The readings, for prometheus_client at each scrape."""
        return families(self.readings)

    def on_error(self, error: Exception) -> bool:
        """Of the figures themselves: nothing is known."""
        logger.error("unexpected error of the exporter", exc_info=error)
        for source in self._polls:
            self._fail(source, error)
        self.readings = self._own_readings()
        return True

    def _own_readings(self) -> Readings:
        readings = Readings()
        readings.update(self._own)
        readings.set(metrics.UNREADABLE_FILES, len(self._targets.events.unreadable))
        return readings

    def _try(self, source: Source, poll: Callable[[], None]) -> None:
        began, began_s = time.monotonic(), time.time()
        if began_s < self._not_before_s.get(source, 0.0):
            return
        try:
            poll()
        except Exception as error:
            if self._stopped.is_set():
                return  # the source is being closed
            _report(source, error, self._troubles.get(source))
            self._fail(source, error)
            if isinstance(error, AuthenticationError):
                self._wait_with(source, str(error), began_s + REFUSED_LOGIN_S)
        else:
            self._troubles.pop(source, None)
            self._own.set(metrics.UP, 1, source)
            self._own.set(metrics.LAST_SUCCESS, time.time(), source)
        self._own.set(metrics.POLL_SECONDS, time.monotonic() - began, source)
        if source not in self._polls:
            self._own.remove("source", source)

    def _fail(self, source: Source, error: Exception) -> None:
        self._troubles[source] = str(error)
        self._own.set(metrics.UP, 0, source)
        self._own.add(metrics.ERRORS, 1, source)

    def _wait_with(self, source: Source, trouble: str, until_s: float) -> None:
        """Wait with all sources that use the same login, and leave out what they said."""
        for other in self._polls:
            if (other is Source.EVENTS) == (source is Source.EVENTS):
                self._own.set(metrics.UP, 0, other)
                self._troubles[other], self._not_before_s[other] = trouble, until_s
        if source is not Source.EVENTS:
            self._lag, self._transactions = Readings(), Readings()

    def _poll_events(self) -> None:
        application_id = self._targets.application_id
        events = (event for event in self._targets.events.read() if application_id in (None, event["application_id"]))
        while chunk := list(islice(events, EVENTS_AT_ONCE)):
            self._totals.add(chunk, are_new=self._are_new)
        self._are_new = True  # only now: a poll that failed may have read a part of the events before the start
        # Spark kills Python workers, whose caches then report no end; on this machine they are known to be dead.
        self._totals.end(dead_caches())
        self._totals.forget(int(time.time() * 1000))

    def _poll_cluster(self) -> None:
        topics = self._totals.topics(int(time.time() * 1000))
        self._live = live_leaders(newest_metadata(self._cluster.client, topics))

    def _poll_transactions(self) -> None:
        self._transactions = Readings()
        try:
            rows = query_transactions(self._cluster)
        except UnsupportedBrokerError as error:
            logger.warning("no metrics of transactions: %s", error)
            del self._polls[Source.TRANSACTIONS]
            return
        self._sinks |= {row.sink for row in rows if row.sink is not None}
        read_transactions(self._transactions, rows, self._sinks)

    def _poll_lag(self) -> None:
        self._lag = Readings()
        offsets, errors = self.queries.offsets(), list[KafkaMetaError]()
        for location in self._targets.checkpoints:
            try:
                progress = read_checkpoint(location)
            except CheckpointError as error:
                errors.append(error)
            else:
                offsets[progress.query_id] = progress.offsets
                if progress.batch_id is not None:
                    self._lag.set(metrics.QUERY_BATCH, progress.batch_id, progress.query_id)
        for query_id, found in offsets.items():
            try:
                read_lag(self._lag, query_id, query_lag(self._options, found), self._targets.per_partition)
            except (AuthenticationError, ConnectError):
                raise  # as for the other queries
            except KafkaMetaError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _read(self, now_ms: int) -> Readings:
        readings = self._totals.readings(now_ms, self._live)
        self.queries.forget(now_ms / 1000)
        self.queries.read(readings)
        for others in (self._lag, self._transactions, self._own_readings()):
            readings.update(others)
        return readings


def _report(source: Source, error: Exception, before: str | None) -> None:
    """Log an error once, until it changes."""
    if str(error) == before:
        return
    if isinstance(error, KafkaMetaError):
        logger.warning("the exporter cannot poll %s: %s", source, error_text(error))
    else:
        logger.error("unexpected error of the exporter, polling %s", source, exc_info=error)


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """A running server, in daemon threads."""

    server: WSGIServer
    thread: Thread

    @property
    def url(self) -> str:
        host, port = self.server.server_address[:2]
        name = host.decode() if isinstance(host, bytes) else host
        return f"http://[{name}]:{port}/metrics" if ":" in name else f"http://{name}:{port}/metrics"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def serve(collector: Collector, host: str, port: int) -> MetricsServer:
    """Serve metrics at any path, and metrics of this process; at a free port for 0. Raises OptionError: the address
    cannot be used, or prometheus_client is not installed."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
    except ImportError:
        raise OptionError(missing_extra("the exporter", "prometheus_client")) from None
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(collector)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise OptionError(
            f"cannot listen on {host}, port {port}: {error.strerror}. Give a host of this machine and a free port, or 0"
        ) from None
    server.set_app(with_head(server.get_app()))  # type: ignore[arg-type]  # start_http_server has set one
    return MetricsServer(server, thread)


def with_head(app: WSGIApplication) -> WSGIApplication:
    """Answers HEAD as GET without the body; prometheus_client refuses it, and health checks send it."""

    def respond(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "HEAD":
            return app(environ, start_response)
        app({**environ, "REQUEST_METHOD": "GET"}, start_response)
        return ()

    return respond


def families(readings: Readings) -> Iterator[Family]:
    """The readings in the types of prometheus_client."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    for metric, numbers in readings.numbers.items():
        family_type = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = family_type(metric.name, metric.doc, labels=metric.labels)
        for labels, value in numbers.items():
            family.add_metric(labels, value)
        yield family
    for metric, distributions in readings.distributions.items():
        histogram = HistogramMetricFamily(metric.name, metric.doc, labels=metric.labels)
        bounds = [*map(str, metric.buckets), "+Inf"]
        for labels, distribution in distributions.items():
            buckets = list(zip(bounds, accumulate(distribution.counts), strict=True))
            histogram.add_metric(labels, buckets, distribution.total)
        yield histogram
