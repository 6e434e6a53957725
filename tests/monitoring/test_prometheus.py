"""A real Prometheus with the shipped files scrapes the exporter, and its HTTP API responds with the tables' figures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_kafka_meta.events.event import BrokerFetches, EventKind, Origin, OtherReason, Outcome, Role
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.tables.caches_from_events import EventRow
from pyspark_kafka_meta.tools.event_sources import FolderEvents
from tests.exporter_process import running
from tests.kafka.cluster_tools import poll_until
from tests.monitoring.prometheus_process import Api, started
from tests.monitoring.shipped_files import RULES, RULES_FILE, TARGETS
from tests.unit.written_events import cache_rows, learning, made, moving, write

FAILING = "KafkametaExporterFailing"


def write_scene(folder: Path) -> None:
    """Events of three executors: one follows a leader, one misses an event and lost records, one cannot refresh."""
    now_ms = int(time.time() * 1000)
    for number, cache in enumerate(("a" * 32, "b" * 32, "c" * 32), start=1):
        origin = Origin(role=Role.READER, executor_id=str(number), host="worker", pid=number, query_id="q")
        learned = learning("clicks", 1, 2, 3, epoch=4)
        fetches = (BrokerFetches(1, 7, 9_000 * number), BrokerFetches(2, number, 500))
        write(folder, made(cache, 1, now_ms - 9_000, origin=origin, fetches=fetches, **learned))
    first = {"origin": Origin(role=Role.READER, executor_id="1", host="worker", pid=1, query_id="q")}
    second = {"origin": Origin(role=Role.READER, executor_id="2", host="worker", pid=2, query_id="q")}
    third = {"origin": Origin(role=Role.READER, executor_id="3", host="worker", pid=3, query_id="q")}
    loss = {"kind": EventKind.DATA_LOSS, "reason": OtherReason.DATA_LOSS, "cause_topic": "clicks"}
    failed = {"reason": RefreshReason.REQUEST_TIMEOUT, "outcome": Outcome.FAILED}
    write(folder, made("a" * 32, 2, now_ms - 5_000, **first, **moving("clicks", 1, (2, 3), (4, 5))))
    write(folder, made("b" * 32, 3, now_ms - 4_000, lost_from_offset=10, lost_until_offset=35, **second, **loss))
    write(folder, made("c" * 32, 2, now_ms - 3_000, **third, **failed))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def events(folder: Path, api: Api) -> list[EventRow]:
    return list(FolderEvents(str(folder)).read())


@pytest.fixture(scope="module")
def api(folder: Path, prometheus: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Prometheus after it has scraped an exporter without events and then with events, and evaluated the rules."""
    data = tmp_path_factory.mktemp("prometheus")
    with (
        running("--path", str(folder), "--port", "0", "--interval", "1") as (_, url),
        started(prometheus, data, url, RULES_FILE, "1s") as api,
    ):
        poll_until(lambda: api.values('kafkameta_exporter_up{source="events"} == 1'))
        write_scene(folder)
        poll_until(lambda: api.values('ALERTS{alertname="KafkametaDataLoss", alertstate="firing"}'))
        # The last event of the scene: the exporter may have read it while it was being written.
        poll_until(lambda: (RefreshReason.REQUEST_TIMEOUT,) in shown(api, "kafkameta_refreshes_total", "reason"))
        yield api


def shown(api: Api, metric: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The values of the last scrape that succeeded: on a slow machine some time out."""
    return api.values(f"last_over_time({metric}[5m])", *labels)


def test_figures_are_those_of_the_events_and_of_the_table(api: Api, events: list[EventRow]) -> None:
    """A counter, a histogram and a gauge: `tests/unit/tools/exporter` has all of them."""
    refreshes = [event for event in events if event["kind"] == EventKind.REFRESH]
    by_reason = Counter((event["role"], event["reason"], event["outcome"]) for event in refreshes)
    latency_s = sum(event["latency_ms"] for event in refreshes) / 1000
    rows = cache_rows(events, int(time.time() * 1000))

    assert shown(api, "kafkameta_refreshes_total", "role", "reason", "outcome") == by_reason
    assert shown(api, "kafkameta_refresh_seconds_count") == {(): len(refreshes)}
    assert shown(api, "kafkameta_refresh_seconds_sum") == {(): pytest.approx(latency_s)}
    partitions = Counter((row.executor_id or "",) for row in rows)
    assert shown(api, "kafkameta_cached_partitions", "executor") == partitions
    assert shown(api, "kafkameta_events_missing") == {(): 1}
    assert shown(api, "kafkameta_lost_offsets_total", "topic") == {("clicks",): 25}


def test_rules_are_evaluated_and_the_loss_alone_alerts(api: Api) -> None:
    groups = api.get("rules")["groups"]
    health = {rule["name"]: (rule["health"], rule.get("lastError")) for group in groups for rule in group["rules"]}
    found = api.get("alerts")["alerts"]
    alerts = [alert for alert in found if alert["labels"]["alertname"] != FAILING]  # pending after a slow scrape

    assert health == {rule["alert"]: ("ok", None) for rule in RULES}
    (loss,) = alerts
    assert (loss["labels"]["alertname"], loss["state"]) == ("KafkametaDataLoss", "firing")
    assert loss["annotations"]["summary"] == "Records of clicks were skipped"


@pytest.mark.parametrize("expression", sorted({target["expr"] for target in TARGETS}))
def test_expressions_of_the_dashboard_are_valid(api: Api, expression: str) -> None:
    api.get("query", query=expression.replace("$__rate_interval", "1m").replace("$query", ".*"))
