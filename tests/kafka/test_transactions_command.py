"""`kafkameta transactions` on a real cluster: what is open and what is decided, and a sink that does not come back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from pyspark_kafka_meta.model import TransactionVersion
from pyspark_kafka_meta.options import ClusterOptions, Table
from pyspark_kafka_meta.tables.readers import batch_reader
from pyspark_kafka_meta.tools.cli.main import app
from tests.kafka.test_commit_steps import Sink, decide_alone, micro_batch, rows

pytestmark = [pytest.mark.kafka]


@pytest.fixture
def sink(kafka: Any, make_topic: Callable[..., str]) -> Iterator[Sink]:
    with ExitStack() as stack:
        yield Sink(kafka.bootstrap_servers, make_topic(partitions=3), TransactionVersion.V2, stack)


@pytest.fixture
def other_producer(sink: Sink, make_topic: Callable[..., str]) -> Iterator[str]:
    """The transactional id of another application, whose transaction in another topic stays open."""
    transactional_id = f"{sink.topic}-other"
    lasting = {"transactional.id": transactional_id, "transaction.timeout.ms": 900_000}
    producer = Producer({"bootstrap.servers": sink.servers, **lasting, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(make_topic(partitions=1), b"other")
    producer.flush(30)
    yield transactional_id
    producer.abort_transaction(30)


def run(sink: Sink, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["transactions", "--bootstrap-servers", sink.servers, *arguments])


def shown(sink: Sink) -> dict[str, dict[str, Any]]:
    """The rows of this test by transactional id."""
    found = [json.loads(line) for line in run(sink).stdout.splitlines()]
    return {row["transactional_id"]: row for row in found if row["transactional_id"].startswith(sink.topic)}


def test_open_and_decided_transactions_are_shown_and_settled(sink: Sink, other_producer: str) -> None:
    committer = sink.committer()
    plan = committer.plan()
    decided, lost = sink.write(plan, 4), sink.write(plan, 4, task=1)
    decide_alone(committer, micro_batch(4), [decided])
    before = shown(sink)

    assert before.keys() == {decided.transactional_id, lost.transactional_id, other_producer}
    of_task = before[decided.transactional_id]
    assert (of_task["sink"], of_task["state"], of_task["is_decided"]) == (sink.topic, "Ongoing", True)
    assert (of_task["query_id"], of_task["batch_id"]) == ("query", 4)
    assert of_task["partitions"] == [{"topic": sink.topic, "partition": number} for number in range(3)]
    assert (of_task["producer_id"], of_task["producer_epoch"]) == decided.producer
    assert 0 <= of_task["open_ms"] < of_task["timeout_ms"] == plan.timeout_ms
    assert (before[lost.transactional_id]["is_decided"], before[other_producer]["sink"]) == (False, None)

    result = run(sink, "--settle", sink.topic, "--yes")

    assert (result.exit_code, result.exception) == (0, None)
    assert "the decided transactions are visible (1), the others are aborted (1)" in result.stderr
    assert sink.visible() == rows(4)
    assert shown(sink).keys() == {other_producer}
    assert "nothing to settle" in run(sink, "--settle", sink.topic, "--yes").stderr


@pytest.mark.thorough
def test_table_of_a_query_has_the_same_rows(sink: Sink) -> None:
    written = sink.write(sink.committer().plan(), 0)
    options = ClusterOptions.parse({"kafka.bootstrap.servers": sink.servers})
    reader = batch_reader(Table.TRANSACTIONS, options, {name: name for name in ("transactional_id", "sink", "open_ms")})
    (task,) = reader.partitions()
    batches: Any = reader.read(task)
    found = [row for batch in batches for row in batch.to_pylist() if row["sink"] == sink.topic]

    assert [row["transactional_id"] for row in found] == [written.transactional_id]
    assert found[0]["open_ms"] <= shown(sink)[written.transactional_id]["open_ms"]
