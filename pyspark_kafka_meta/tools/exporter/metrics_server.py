"""Serves readings to Prometheus, over HTTP, with prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.tools.exporter.metric_table import Kind
from pyspark_kafka_meta.tools.exporter.readings import Readings

if TYPE_CHECKING:
    from threading import Thread

    from prometheus_client.metrics_core import Metric as Family


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


class ReadingsCollector:
    """prometheus_client calls `collect` at each scrape (its `Collector`)."""

    def __init__(self, get_readings: Callable[[], Readings]) -> None:
        self._get_readings = get_readings

    def collect(self) -> Iterator[Family]:
        return families(self._get_readings())


def serve(get_readings: Callable[[], Readings], host: str, port: int) -> MetricsServer:
    """Serve metrics at any path, and those of this process.

    Args:
        port: 0 for a free port.

    Raises:
        OptionError: prometheus_client is not installed, or the address cannot be used.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
    except ImportError:
        text = "the exporter needs prometheus_client: pip install '.[exporter]' in a clone of pyspark-kafka-meta"
        raise OptionError(text) from None
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(ReadingsCollector(get_readings))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise OptionError(
            f"cannot listen on {host}, port {port}: {error.strerror}. Give a host of this machine and a free port, or 0"
        ) from None
    return MetricsServer(server, thread)


def families(readings: Readings) -> Iterator[Family]:
    """The readings in the types of prometheus_client."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    for metric, numbers in readings.numbers.items():
        family_type = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
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
