"""Two executors, each with a cache of its own: what each believes, who is stale, and that healing shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import SteadyProducer
from metrics_rounds import events_in

from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.folding import fold
from pyspark_kafka_meta.tables.live import partition_rows
from pyspark_kafka_meta.tables.rows import CacheRow
from pyspark_kafka_meta.testing import LocalKafka

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
        self._folder, self._topic = folder, topic
        self._cluster = ClientOptions.parse({"kafka.bootstrap.servers": servers})

    def known(self) -> list[CacheRow]:
        """What readers' caches know, without SQL: to look again and again, as the stream uses both cores."""
        rows = fold(events_in(self._folder / "events"), now_ms=0)
        return [row for row in rows if row.role == "reader" and row.topic == self._topic]

    def is_anybody_stale(self) -> bool:
        live = {row.partition: row.leader_epoch for row in partition_rows(self._cluster, [self._topic])}
        return any(row.leader_epoch < live[row.partition] for row in self.known())

    def ask(self, command: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(command.split()) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, (self._folder / "spark.log").read_text()[-3000:]
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
