"""Two executors, each with a cache of its own: what each believes, who is stale, that healing shows, and what it means
that one is killed."""

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
from pyspark_kafka_meta.tables.caches_from_events import fold
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.tables.table_rows import CacheRow
from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.harness import SteadyProducer
from tests.unit.written_events import events_in

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

STALE = """
    SELECT DISTINCT c.executor_id, c.partition
    FROM caches c JOIN partitions p ON c.topic = p.topic AND c.partition = p.partition
    WHERE c.role = 'reader' AND c.leader_epoch < p.leader_epoch
"""
PARTITIONS = 6


class Application:
    """`two_executors.py` in a process of its own."""

    def __init__(self, servers: str, topic: str, folder: Path) -> None:
        program = [sys.executable, str(Path(__file__).parent / "two_executors.py"), servers, topic, str(folder)]
        self._log = (folder / "spark.log").open("w")
        self._process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=os.environ
        )
        self.folder, self._topic = folder, topic
        self._cluster = ClientOptions.parse({"kafka.bootstrap.servers": servers})

    def known(self) -> list[CacheRow]:
        """What readers' caches know, without SQL: to look again and again, as the stream uses both cores."""
        rows = fold(events_in(self.folder / "events"), now_ms=0)
        return [row for row in rows if row.role == "reader" and row.topic == self._topic]

    def is_anybody_stale(self) -> bool:
        rows = partition_rows(self._cluster, [self._topic])
        live = {row.partition: row.leader_epoch for row in rows if row.leader_epoch is not None}
        return any(row.leader_epoch is not None and row.leader_epoch < live[row.partition] for row in self.known())

    def ask(self, command: str) -> Any:
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
def application(
    breakable_kafka: LocalKafka, make_topic: Callable[..., str], tmp_path: Path, spark: Any
) -> Iterator[tuple[Application, str]]:
    topic = make_topic(partitions=PARTITIONS)
    started = Application(breakable_kafka.bootstrap_servers, topic, tmp_path)
    yield started, topic
    started.close()


def test_a_killed_leader_makes_both_executors_stale_until_they_heal(
    application: tuple[Application, str], breakable_kafka: LocalKafka, leader_of: Any, wait_for: Any
) -> None:
    spark, topic = application
    with SteadyProducer(breakable_kafka.bootstrap_servers, topic, PARTITIONS):
        spark.ask("start")
        everything = {(executor, partition) for executor in ("0", "1") for partition in range(PARTITIONS)}
        wait_for(lambda: {(row.executor_id, row.partition) for row in spark.known()} == everything, timeout_s=120)
        wait_for(lambda: spark.ask(STALE) == [], timeout_s=120)

        spark.ask("stop")  # nobody reads now, so nobody learns what follows
        victim = leader_of(topic, 0)
        led = {partition for partition in range(PARTITIONS) if leader_of(topic, partition) == victim}
        breakable_kafka.kill(victim)
        wait_for(lambda: all(leader_of(topic, one) not in (-1, victim) for one in led), timeout_s=120)
        stale = {(one["executor_id"], one["partition"]) for one in spark.ask(STALE)}
        assert stale >= {(executor, partition) for executor in ("0", "1") for partition in led}

        spark.ask("start")
        wait_for(lambda: not spark.is_anybody_stale(), timeout_s=120)
        wait_for(lambda: spark.ask(STALE) == [], timeout_s=120)

    who = spark.ask("SELECT role, executor_id, count(DISTINCT cache_id) AS caches FROM refresh_events GROUP BY 1, 2")
    assert {(one["role"], one["executor_id"]) for one in who} == {
        ("reader", "0"),
        ("reader", "1"),
        ("planner", "driver"),
    }
    fresh = spark.ask(
        "SELECT DISTINCT c.executor_id, c.partition FROM caches c JOIN partitions p USING (topic, partition) "
        "WHERE c.role = 'reader' AND c.leader_id = p.leader_id AND c.leader_epoch = p.leader_epoch"
    )
    assert {(one["executor_id"], one["partition"]) for one in fresh} >= stale, "by a refresh, or a worker that is new"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="finds the executor of a worker in /proc")
def test_a_killed_executor_costs_no_record_and_repeats_none(
    application: tuple[Application, str], produce: Any, wait_for: Any
) -> None:
    spark, topic = application
    expected: list[str] = []

    def read_by(executors: int) -> list[dict[str, Any]]:
        """Writes some more records; the readers' events, once that many executors have read."""
        values = [str(len(expected) + number) for number in range(60)]
        produce(topic, values)
        expected.extend(values)
        events = [event for event in events_in(spark.folder / "events") if event["role"] == "reader"]
        return events if len({event["executor_id"] for event in events}) >= executors else []

    spark.ask("start")
    killed, *_ = wait_for(lambda: read_by(executors=2), timeout_s=120)
    daemon = parent(killed["pid"])
    os.kill(parent(daemon), signal.SIGKILL)  # the executor's JVM
    events = wait_for(lambda: read_by(executors=3), timeout_s=120)
    rows = f"SELECT value FROM parquet.`{spark.folder}/rows`"
    wait_for(lambda: len(spark.ask(rows)) >= len(expected), timeout_s=120)
    spark.ask("stop")
    assert Counter(row["value"] for row in spark.ask(rows)) == Counter(expected)
    assert killed["cache_id"] in {one for event in events for one in event["died_cache_ids"]}, (
        "a later cache reports it"
    )
