"""`start_exporter`: serves the metrics of a driver's queries from the driver itself."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Self

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options.transactions import DECISIONS_TOPIC
from pyspark_kafka_meta.tools.exporter.defaults import HOST, INTERVAL_S, INTERVALS_S, PORT, PORTS
from pyspark_kafka_meta.tools.exporter.metrics_server import serve
from pyspark_kafka_meta.tools.exporter.poller import Poller, Watched
from pyspark_kafka_meta.tools.exporter.query_listener import ProgressListener, open_driver_events, split_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    """Serve the metrics of this driver's queries for Prometheus.

    Args:
        port: 0 for a free port.
        host: address to listen on; by default this machine alone can scrape.
        interval_s: between two polls of events and cluster.
        per_partition: whether lag is exported by partition too.
        decisions_topic: `decisionsTopic` of the queries.
        options: `metricsPath` or `metricsTopic` of the queries, by default the default folder; and `kafka.*` of the
            cluster that they read, for lag, stale caches and transactions.

    Raises:
        OptionError: an option is invalid, the address cannot be used, or prometheus_client is not installed.
    """
    _require(port, PORTS, "port")
    _require(interval_s, INTERVALS_S, "interval_s")
    events, cluster = split_options(options)
    with ExitStack() as opening:
        source = opening.enter_context(closing(open_driver_events(events, spark.sparkContext)))
        watched = Watched(events=source, cluster=cluster, decisions_topic=decisions_topic, per_partition=per_partition)
        poller = Poller(watched, interval_s)
        server = opening.enter_context(closing(serve(lambda: poller.readings, host, port)))
        opening.enter_context(poller)
        listener = ProgressListener(poller.queries.add, poller.queries.end)
        spark.streams.addListener(listener)
        opening.callback(spark.streams.removeListener, listener)
        return Exporter(server.url, opening.pop_all())


def _require(value: float, bounds: tuple[float, float], name: str) -> None:
    low, high = bounds
    if not low <= value <= high:
        raise OptionError(f"{name} must be from {low:g} to {high:g}, got {value}")
