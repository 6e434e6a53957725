"""Dead letters while workers and drivers are killed, and while the letter topic has no leader: none is missing, and a
replay sends each once."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from benchmarks.processes import kill_workers
from pyspark_kafka_meta import read_arrow
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.typed.dead_letters import read_letter
from tests.consumer import consume, consume_committed
from tests.kafka.cluster_tools import create_topic
from tests.spark.letters_driver import BATCHES, RECORDS, start
from tests.spark.test_killed_drivers import Driver
from tests.spark.traces import logged, run_to_the_end

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]

EVERY = 100
BAD = set(range(0, RECORDS, EVERY))
GOOD = set(range(RECORDS)) - BAD
PARTITIONS = 3
KILLS = int(os.environ.get("KAFKAMETA_KILLS", "3"))
AWAY_S = 60
SEED = 60


def records() -> Iterator[dict[str, Any]]:
    """Every hundredth is malformed."""
    for number in range(RECORDS):
        value = f'{{"id": {number}}}' if number % EVERY else f'{{"id": "{number}"}}'
        yield {"value": value, "key": str(number), "partition": number % PARTITIONS}


def numbers(letters: Sequence[Message]) -> Counter[int]:
    """The records that letters are of, each of which says where its record was."""
    found = Counter[int]()
    for message in letters:
        given: Any = message.headers()
        headers = [{"key": name, "value": value} for name, value in given]
        letter = read_letter(message.key(), message.value(), headers)
        assert letter is not None and letter.key is not None
        number = int(letter.key)
        assert (letter.partition.partition, letter.offset) == (number % PARTITIONS, number // PARTITIONS)
        found[number] += 1
    return found


@pytest.mark.timeout(600 + 180 * KILLS)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the driver's processes in /proc")
@pytest.mark.parametrize("mode", ["option", "transactions"])
def test_killed_workers_and_drivers_cost_no_letter(
    mode: str,
    spark: SparkSession,
    breakable_kafka: LocalKafka,
    make_topic: Callable[..., str],
    produce: Any,
    wait_for: Any,
    tmp_path: Path,
) -> None:
    chance, checkpoint, topic = random.Random(SEED), tmp_path / "checkpoint", make_topic(partitions=PARTITIONS)
    letters, copy = (make_topic(partitions=2, name=f"{topic}-{name}") for name in ("letters", "copy"))
    produce(topic, records())
    unfinished = 0
    for _ in range(KILLS):
        driver = Driver(breakable_kafka, topic, tmp_path, mode, program="letters_driver.py")
        try:
            driver.wait_until_begun()
            for _ in range(2):
                wanted = logged(checkpoint, "offsets") + 1 + chance.randrange(2)
                wait_for(lambda wanted=wanted: logged(checkpoint, "offsets") >= wanted, timeout_s=120)
                with pytest.raises(subprocess.TimeoutExpired):  # the driver must still run
                    driver.process.wait(chance.uniform(0, 1))
                kill_workers()
        finally:
            driver.kill(wait_for)
        unfinished += logged(checkpoint, "offsets") > logged(checkpoint, "commits")
    assert logged(checkpoint, "commits") < BATCHES, "all was read before the last kill"
    run_to_the_end(
        lambda: start(spark, breakable_kafka.bootstrap_servers, topic, tmp_path, mode, availableNow=True), checkpoint
    )

    if mode == "option":
        found = numbers(consume(breakable_kafka.bootstrap_servers, letters))
        rows = Counter(row.id for row in spark.read.parquet(str(tmp_path / "rows")).collect())
    else:
        found = numbers(consume_committed(breakable_kafka.bootstrap_servers, letters))
        rows = Counter(int(each.key() or b"") for each in consume_committed(breakable_kafka.bootstrap_servers, copy))
        assert set(found.values()) == {1}
    print(f"{mode}: {unfinished} unfinished batches, {found.total()} letters of {len(found)} records")  # noqa: T201
    assert found.keys() == BAD
    assert rows == dict.fromkeys(GOOD, 1)
    mended = make_topic(partitions=PARTITIONS, name=f"{topic}-mended")
    servers = ["--bootstrap-servers", breakable_kafka.bootstrap_servers]
    done = CliRunner().invoke(app, ["replay", letters, "--to", mended, "--yes", *servers])
    assert f"sent {len(BAD)} records" in done.stderr
    given = {"kafka.bootstrap.servers": breakable_kafka.bootstrap_servers, "subscribe": mended}
    again = read_arrow(**given, valueFormat="json", valueSchema="id STRING", columns=["value"]).read_all()
    assert Counter(int(row["value"]["id"]) for row in again.to_pylist()) == dict.fromkeys(BAD, 1)


@pytest.mark.timeout(900)
def test_a_letter_topic_without_its_leader_costs_no_letter(
    spark: SparkSession,
    breakable_kafka: LocalKafka,
    make_topic: Callable[..., str],
    produce: Any,
    wait_for: Any,
    tmp_path: Path,
) -> None:
    victim, *_ = breakable_kafka.broker_ids
    topic, checkpoint = make_topic(partitions=PARTITIONS), tmp_path / "checkpoint"
    letters = f"{topic}-letters"
    create_topic(breakable_kafka, letters, [[victim]], {"min.insync.replicas": "1"})
    produce(topic, records())
    query = start(spark, breakable_kafka.bootstrap_servers, topic, tmp_path, "option", processingTime="0 seconds")
    try:
        wait_for(lambda: logged(checkpoint, "commits") >= 2)
        breakable_kafka.kill(victim)
        before, ends_at = logged(checkpoint, "commits"), time.monotonic() + AWAY_S
        wait_for(lambda: time.monotonic() >= ends_at)
        waited = logged(checkpoint, "commits") - before
        breakable_kafka.start(victim)
        breakable_kafka.wait_until_up()
        query.processAllAvailable()
    finally:
        query.stop()

    found = numbers(consume(breakable_kafka.bootstrap_servers, letters))
    rows = Counter(row.id for row in spark.read.parquet(str(tmp_path / "rows")).collect())
    print(f"{waited} batches while away, {found.total()} letters of {len(found)} records")  # noqa: T201
    assert waited <= 2
    assert found.keys() == BAD
    assert rows == dict.fromkeys(GOOD, 1)
