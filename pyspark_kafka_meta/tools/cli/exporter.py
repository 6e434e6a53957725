"""`kafkameta exporter`: serves metrics for Prometheus until Ctrl-C."""

from __future__ import annotations

import threading
from contextlib import closing

import typer

from pyspark_kafka_meta.tools.exporter.metrics_server import serve
from pyspark_kafka_meta.tools.exporter.poller import Poller, Watched
from pyspark_kafka_meta.tools.shared.console import end_in_good_order


def serve_metrics(watched: Watched, host: str, port: int, interval_s: float) -> None:
    """Print the address, and serve. Raises OptionError: an option is invalid, or the address cannot be used."""
    end_in_good_order()
    poller = Poller(watched, interval_s)
    with closing(serve(lambda: poller.readings, host, port)) as server, poller:
        typer.echo(server.url)
        threading.Event().wait()
