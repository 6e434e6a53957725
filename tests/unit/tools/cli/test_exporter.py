"""`kafkameta exporter` over recorded events: a scrape has the figures of the tables."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from typer.testing import CliRunner

from pyspark_kafka_meta.kafka.metadata.refresh_events import BrokerFetches, EventKind, Origin, Outcome, Role
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.tables.caches_from_events import cache_rows
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.exporter import metrics_server
from pyspark_kafka_meta.tools.shared.event_sources import FolderEvents
from tests.exporter_process import running
from tests.unit.written_events import learning, made, moving, write

FIRST, SECOND = "a" * 32, "b" * 32


def write_scene(folder: Path) -> None:
    """Two executors, of which the second misses an event; the last of them failed."""
    now_ms = int(time.time() * 1000)
    second = {"origin": Origin(role=Role.READER, executor_id="2", host="other", pid=9, query_id="q")}
    write(
        folder,
        made(FIRST, 1, now_ms - 9_000, **learning("t", 1, 2, epoch=4)),
        made(FIRST, 2, now_ms - 8_000, fetches=(BrokerFetches(1, 7, 9_000),), **moving("t", 1, (2, 3), (4, 5))),
    )
    write(
        folder,
        made(SECOND, 1, now_ms - 9_000, kind=EventKind.BORN, reason=RefreshReason.BOOTSTRAP, latency_ms=None, **second),
        made(SECOND, 3, now_ms - 1_000, outcome=Outcome.FAILED, reason=RefreshReason.REQUEST_TIMEOUT, **second),
    )


def scrape(url: str) -> list[Sample]:
    with urlopen(url, timeout=30) as response:
        text = response.read().decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def values(samples: list[Sample], name: str, *labels: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels[label] for label in labels): sample.value
        for sample in samples
        if sample.name == f"kafkameta_{name}" and sample.value
    }


def test_a_scrape_has_the_figures_of_the_tables(tmp_path: Path, wait_for: Callable[..., Any]) -> None:
    with running("--path", str(tmp_path), "--port", "0", "--interval", "0.5") as (process, url):
        wait_for(lambda: values(scrape(url), "exporter_up", "source"))
        write_scene(tmp_path)
        wait_for(lambda: values(scrape(url), "events_missing"))
        samples = scrape(url)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=30)
    events = list(FolderEvents(str(tmp_path)).read())
    rows = cache_rows(events, int(time.time() * 1000))
    refreshes = [event for event in events if event["kind"] == EventKind.REFRESH]

    assert (process.returncode, out, errors) == (0, "", "")
    assert values(samples, "refreshes_total", "role", "reason", "outcome") == Counter(
        (event["role"], event["reason"], event["outcome"]) for event in refreshes
    )
    assert values(samples, "refresh_seconds_count", "broker") == {("1",): len(refreshes)}
    latency_ms = sum(event["latency_ms"] for event in refreshes)
    assert values(samples, "refresh_seconds_sum", "broker") == {("1",): pytest.approx(latency_ms / 1000)}
    assert values(samples, "recovery_seconds_bucket", "le") == {
        (bound,): 1.0 for bound in ("0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "30.0", "60.0", "300.0", "+Inf")
    }
    assert values(samples, "fetch_response_bytes_total", "broker") == {("1",): 9_000}
    assert values(samples, "query_refreshes_total", "query_id", "outcome") == {("q", "failed"): 1}
    assert values(samples, "cached_partitions", "executor") == {("1",): sum(row.topic is not None for row in rows)}
    missing = {row.cache_id: row.events_missing for row in rows}
    assert values(samples, "events_missing") == {(): sum(missing.values())} == {(): 1}
    refreshed_s = values(samples, "cache_last_refresh_timestamp_seconds", "executor")
    assert refreshed_s["1",] == max(event["time_ms"] for event in refreshes if event["cache_id"] == FIRST) / 1000
    assert [sample.name for sample in samples if sample.name.startswith("process_cpu")], "the exporter's own cost"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--checkpoint", "/data"], "--checkpoint needs --bootstrap-servers"),
        (["--path", "/data", "--topic", "t"], "--path and --topic exclude each other"),
        (["--path", "/data", "--bootstrap-servers", "b:9", "--option", "kafka.misspelt=1"], "misspelt"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(app, ["exporter", *arguments, "--port", "0"])

    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (1, "", 1)
    assert problem in result.stderr


def test_a_taken_port_is_one_line() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["exporter", "--path", "/data", "--port", str(port)])

    assert (result.exit_code, result.stdout) == (1, "")
    assert f"cannot listen on 127.0.0.1, port {port}" in result.stderr


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(Exception, match=r"the exporter needs prometheus_client: pip install .*\[exporter\]"):
        metrics_server.serve(lambda: pytest.fail("not scraped"), "127.0.0.1", 0)
