"""Two executors with separate caches: stale caches and their recovery in the side tables, and a killed executor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.caches_from_events import cache_rows
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.tables.rows import CacheRow
from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.harness import SteadyProducer
from tests.unit.written_events import events_in

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(600)]

STALE = """
    SELECT DISTINCT c.executor_id, c.partition
    FROM caches c JOIN partitions p ON c.topic = p.topic AND c.partition = p.partition
    WHERE c.role = 'reader' AND c.leader_epoch < p.leader_epoch
"""
PARTITIONS = 6


class Application:
    """`two_executors.py` as a process."""

    def __init__(self, servers: str, topic: str, folder: Path) -> None:
        program = [sys.executable, str(Path(__file__).parent / "two_executors.py"), servers, topic, str(folder)]
        self._log = (folder / "spark.log").open("w")
        self._process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=os.environ
        )
        self.folder, self._topic = folder, topic
        self._cluster = ClientOptions.parse({"kafka.bootstrap.servers": servers})

    def known(self) -> list[CacheRow]:
        """The entries of the readers' caches, without SQL: cheap to poll while the stream uses both cores."""
        rows = cache_rows(events_in(self.folder / "events"), now_ms=0)
        return [row for row in rows if row.role == "reader" and row.topic == self._topic]

    def has_stale_cache(self) -> bool:
        rows = partition_rows(self._cluster, [self._topic])
        live = {row.partition: row.leader_epoch for row in rows if row.leader_epoch is not None}
        return any(row.leader_epoch is not None and row.leader_epoch < live[row.partition] for row in self.known())

    def execute(self, command: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(command.split()) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, (self.folder / "spark.log").read_text()[-3000:]
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._log.close()


@pytest.fixture
def running(
    breakable_kafka: LocalKafka, make_topic: Callable[..., str], tmp_path: Path, spark: Any
) -> Iterator[tuple[Application, str]]:
    topic = make_topic(partitions=PARTITIONS)
    process = Application(breakable_kafka.bootstrap_servers, topic, tmp_path)
    yield process, topic
    process.close()


def test_a_killed_leader_makes_both_executors_stale_until_they_heal(
    running: tuple[Application, str], breakable_kafka: LocalKafka, leader_of: Any, wait_for: Any
) -> None:
    application, topic = running
    with SteadyProducer(breakable_kafka.bootstrap_servers, topic, PARTITIONS):
        application.execute("start")
        everything = {(executor, partition) for executor in ("0", "1") for partition in range(PARTITIONS)}
        wait_for(lambda: {(row.executor_id, row.partition) for row in application.known()} == everything, timeout_s=120)
        wait_for(lambda: application.execute(STALE) == [], timeout_s=120)

        application.execute("stop")  # no reader, so no cache learns the next changes
        victim = leader_of(topic, 0)
        led = {partition for partition in range(PARTITIONS) if leader_of(topic, partition) == victim}
        breakable_kafka.kill(victim)
        wait_for(lambda: all(leader_of(topic, partition) not in (-1, victim) for partition in led), timeout_s=120)
        stale = {(executor, partition) for executor in ("0", "1") for partition in led}

        def are_stale() -> bool:
            """Brokers hear of the change one after the other."""
            return {(row["executor_id"], row["partition"]) for row in application.execute(STALE)} >= stale

        wait_for(are_stale, timeout_s=120)

        application.execute("start")
        wait_for(lambda: not application.has_stale_cache(), timeout_s=120)
        wait_for(lambda: application.execute(STALE) == [], timeout_s=120)

    sources = application.execute("SELECT DISTINCT role, executor_id FROM refresh_events")
    assert {(row["role"], row["executor_id"]) for row in sources} == {
        ("reader", "0"),
        ("reader", "1"),
        ("planner", "driver"),
    }
    fresh = application.execute(
        "SELECT DISTINCT c.executor_id, c.partition FROM caches c JOIN partitions p USING (topic, partition) "
        "WHERE c.role = 'reader' AND c.leader_id = p.leader_id AND c.leader_epoch = p.leader_epoch"
    )
    assert {(row["executor_id"], row["partition"]) for row in fresh} >= stale, "after a refresh or in a new worker"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="finds the executor in /proc")
def test_a_killed_executor_costs_no_record_and_repeats_none(
    running: tuple[Application, str], produce: Any, wait_for: Any
) -> None:
    application, topic = running
    expected: list[str] = []

    def read_by(executors: int) -> list[dict[str, Any]]:
        """Writes more records. Returns the readers' events once this many executors have read, [] before."""
        values = [str(len(expected) + number) for number in range(60)]
        produce(topic, values)
        expected.extend(values)
        events = [event for event in events_in(application.folder / "events") if event["role"] == "reader"]
        return events if len({event["executor_id"] for event in events}) >= executors else []

    application.execute("start")
    killed, *_ = wait_for(lambda: read_by(executors=2), timeout_s=120)
    daemon = parent(killed["pid"])
    os.kill(parent(daemon), signal.SIGKILL)  # the executor's JVM
    events = wait_for(lambda: read_by(executors=3), timeout_s=120)
    rows = f"SELECT value FROM parquet.`{application.folder}/rows`"
    wait_for(lambda: len(application.execute(rows)) >= len(expected), timeout_s=120)
    application.execute("stop")
    assert Counter(row["value"] for row in application.execute(rows)) == Counter(expected)
    assert killed["cache_id"] in {cache_id for event in events for cache_id in event["died_cache_ids"]}, (
        "a later cache reports the dead cache"
    )
