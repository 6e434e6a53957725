"""A night on Apache Kafka, of which only event files are left in the morning: a rolling restart, a crash, an unclean
election. What they tell agrees with what was done."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType
from playwright.sync_api import Page, ViewportSize, expect
from typer.testing import CliRunner

from pyspark_kafka_meta.model import NO_LEADER, TopicPartition
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.event_sources import FolderEvents
from pyspark_kafka_meta.tools.page.history import History, during, past_of
from pyspark_kafka_meta.value_checks import INT64_MAX
from tests.kafka.cluster_tools import create_topic, elect_leader, in_sync
from tests.kafka.harness import SteadyProducer, Stream
from tests.page.test_page import PHONE, section, shoot_for_docs

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

STARTS = [datetime(2026, 11, 29, 3, minute) for minute in (0, 20, 40)]
"""Of the parts of the night, in local time."""
SCREENS: list[tuple[ViewportSize, str, str]] = [
    ({"width": 820, "height": 1000}, "Time line", "incident.png"),
    (PHONE, "Stale caches", "incident-phone.png"),
]
NOTICED_MS = 20_000
"""A crash is noticed by caches within this time: the session timeout is three seconds."""


@dataclass
class Night:
    """What was done, and when: by the clock, and as the files have it."""

    kafka: LocalKafka
    parts_ms: list[int] = field(default_factory=list)
    away: list[tuple[int, int, int]] = field(default_factory=list)
    """Brokers, and from when until when they did not run."""

    def begin_part(self) -> None:
        self.parts_ms.append(now_ms())

    def night_ms(self, clock_ms: int) -> int:
        part = max((number for number, began_ms in enumerate(self.parts_ms) if began_ms <= clock_ms), default=0)
        return clock_ms - self.parts_ms[part] + int(STARTS[part].timestamp() * 1000)

    def restart(self, broker_id: int) -> None:
        began_ms = now_ms()
        self.kafka.stop(broker_id)
        self.back(broker_id, began_ms)

    def back(self, broker_id: int, began_ms: int) -> None:
        self.away.append((broker_id, began_ms, now_ms()))
        self.kafka.start(broker_id)
        self.kafka.wait_until_up()


def now_ms() -> int:
    return int(time.time() * 1000)


def have_a_night(night: Night, topics: list[str], leader_of: Callable[[str, int], int], wait_for: Any) -> None:
    kafka, (clicks, payments) = night.kafka, topics

    def all_in_sync() -> bool:
        return in_sync(kafka, clicks, 3) and in_sync(kafka, payments, 2)

    night.begin_part()
    for broker_id in kafka.broker_ids:
        night.restart(broker_id)
        wait_for(all_in_sync)

    night.begin_part()
    victim, began_ms = leader_of(clicks, 0), now_ms()
    kafka.kill(victim)
    wait_for(lambda: leader_of(clicks, 0) not in (NO_LEADER, victim))
    night.back(victim, began_ms)
    wait_for(all_in_sync)

    night.begin_part()
    leader = leader_of(payments, 0)
    other = next(broker_id for broker_id in kafka.broker_ids[:2] if broker_id != leader)
    other_ms = now_ms()
    kafka.kill(other)
    wait_for(lambda: in_sync(kafka, payments, 1))
    leader_ms = now_ms()
    kafka.kill(leader)
    wait_for(lambda: leader_of(payments, 0) == NO_LEADER)
    night.back(other, other_ms)
    elect_leader(kafka, payments, 0, other, ElectionType.UNCLEAN)
    night.back(leader, leader_ms)
    wait_for(all_in_sync)


def files_in_the_morning(events: Path, night: Night, folder: Path) -> Path:
    """The files, with the times of the night."""
    for path in events.rglob("events-*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        lines = [json.dumps({**row, "time_ms": night.night_ms(row["time_ms"])}) for row in rows]
        copied = folder / path.relative_to(events)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_in_the_morning_the_files_tell_what_happened(
    breakable_kafka: LocalKafka, leader_of: Any, wait_for: Any, serve: Any, page: Page, tmp_path: Path
) -> None:
    night, topics = Night(breakable_kafka), ["clicks", "payments"]
    first, second, _ = breakable_kafka.broker_ids
    breakable_kafka.create_topic("clicks", partitions=3)
    create_topic(breakable_kafka, "payments", [[first, second]], {"min.insync.replicas": "1"})
    servers = breakable_kafka.bootstrap_servers
    with ExitStack() as opened:
        streams = [
            opened.enter_context(closing(Stream(servers, topics, tmp_path / "night" / name, failOnDataLoss="false")))
            for name in ("executor-1", "executor-2")
        ]
        for running in (*streams, SteadyProducer(servers, "clicks", 3)):
            opened.enter_context(running)
        have_a_night(night, topics, leader_of, wait_for)
    assert [stream.error for stream in streams] == [None, None]
    folder = files_in_the_morning(tmp_path / "night", night, tmp_path / "morning")

    result = CliRunner().invoke(app, ["incidents", "--path", str(folder), "--since", "2026-11-28T12:00"])
    incidents = [json.loads(line) for line in result.stdout.splitlines()]

    assert len(incidents) == 3
    for incident, start in zip(incidents, STARTS, strict=True):
        began = datetime.fromisoformat(incident["began"]).astimezone() - start.astimezone()
        assert 0 <= began.total_seconds() * 1000 < NOTICED_MS
        assert incident["stale_caches"] == 0
    restart, crash, election = (set(incident["old_leaders"]) for incident in incidents)
    assert (restart, crash) == (set(breakable_kafka.broker_ids), {night.away[3][0]})
    assert election <= {broker_id for broker_id, *_ in night.away[4:]}
    assert [incident["caches"] for incident in incidents[:2]] == [4, 4], "a planner and a reader of each query"
    assert incidents[1]["longest_recovery_ms"] > 2_000, "the session timeout"

    (history,) = past_of("", FolderEvents(str(folder)).read(), INT64_MAX).histories.values()
    for broker_id, stopped_ms, started_ms in night.away:
        assert leads_nothing(history, broker_id, night.night_ms(stopped_ms), night.night_ms(started_ms) + NOTICED_MS)
    leaderless = [span for span in history.led if span.leader[0] == NO_LEADER]
    assert TopicPartition("payments", 0) in {span.partition for span in leaderless}

    with serve("--path", str(folder), "--since", "2026-11-28T12:00") as url:
        page.goto(url)
        rows = section(page, "Incidents").get_by_role("row")
        expect(rows).to_have_count(4)
        shoot_for_docs(section(page, "Incidents"), "incidents.png")
        rows.nth(2).get_by_role("link").click()
        expect(page).to_have_url(re.compile("at=2026-11-29T03:20:"))
        expect(section(page, "Stale caches")).to_contain_text("clicks-0")
        for size, part, name in SCREENS:
            page.set_viewport_size(size)
            section(page, part).evaluate("card => card.scrollIntoView()")  # below the folder's name
            shoot_for_docs(page, name)


def leads_nothing(history: History, broker_id: int, from_ms: int, until_ms: int) -> bool:
    """Whether there was such a moment."""
    news_ms = {span.from_ms for span in during(history.led, from_ms, until_ms)} | {until_ms}
    return any(
        all(span.leader[0] != broker_id for span in during(history.led, at_ms, at_ms))
        for at_ms in news_ms
        if from_ms <= at_ms <= until_ms
    )
