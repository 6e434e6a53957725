"""`kafkameta transactions`: what it shows, and what it does to a sink only when told to."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, UnsupportedBrokerError
from pyspark_kafka_meta.kafka.protocol.transactions import DescribedTransaction
from pyspark_kafka_meta.model import OpenTransaction, ProducerIdAndEpoch, TopicPartition, TransactionSpan
from pyspark_kafka_meta.tables import cluster_query
from pyspark_kafka_meta.tables.cluster_query import SinkDecisions, transaction_rows
from pyspark_kafka_meta.tables.rows import TransactionRow
from pyspark_kafka_meta.tools.cli import transactions
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.write.exactly_once.decision import STREAM, BatchId, Decision

NOW_MS = 1_700_000_000_000
PRODUCER = ProducerIdAndEpoch(7, 3)
SETTLE = ["--settle", "orders", "--yes"]
TERMINAL = {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
DECISIONS: SinkDecisions = {
    ("orders", STREAM): Decision(
        BatchId(STREAM, "query-1", 12),
        (OpenTransaction("orders/0/0", PRODUCER, (TransactionSpan("t", 0, 5, 9, 4),)),),
        NOW_MS,
    )
}
ROWS = transaction_rows(
    [
        DescribedTransaction(transactional_id, "Ongoing", PRODUCER, 900_000, NOW_MS - 5_000, (TopicPartition("t", 0),))
        for transactional_id in ("orders/0/0", "orders/1/0", "flink-\x1b[31m7")
    ],
    DECISIONS,
    "c",
    NOW_MS,
)


class Sinks:
    """Stands for the cluster: what is open, and which sinks were settled with which decisions topic."""

    def __init__(self) -> None:
        self.rows: list[TransactionRow] | KafkaMetaError = ROWS
        self.settled: list[tuple[str | None, str]] = []
        self.left = ["orders-2/0/0", "flink/0"]  # once the sink is settled
        self.coordinators = self
        self.cache = SimpleNamespace(snapshot=SimpleNamespace(cluster_id="c"))

    def api_deadline(self) -> float:
        return 60.0

    def list_transactions(self, deadline: float) -> list[str]:
        if isinstance(self.rows, KafkaMetaError):
            raise self.rows
        return self.left

    def close(self) -> None:
        pass

    def open_transactions(self, *_: object) -> list[TransactionRow]:
        if isinstance(self.rows, KafkaMetaError):
            raise self.rows
        return self.rows

    def committer(self, client: object, options: Any) -> Any:
        self.options = options
        return self

    def recover(self) -> None:
        transaction = self.options.transaction
        self.settled.append((transaction.transactional_id, transaction.decisions_topic))


@pytest.fixture
def sinks(monkeypatch: pytest.MonkeyPatch) -> Sinks:
    fake = Sinks()
    for module in (transactions, cluster_query):
        monkeypatch.setattr(module, "read_decisions", lambda *_: DECISIONS)
        monkeypatch.setattr(module, "open_transactions", fake.open_transactions)
        monkeypatch.setattr(module, "client_without_events", lambda *_: fake)
    monkeypatch.setattr(transactions, "BatchCommitter", fake.committer)
    return fake


def run(*arguments: str, **others: Any) -> Result:
    return CliRunner().invoke(app, ["transactions", "--bootstrap-servers", "127.0.0.1:1", *arguments], **others)


def test_open_transactions_are_json_lines_without_a_terminal(sinks: Sinks) -> None:
    rows = [json.loads(line) for line in run().stdout.splitlines()]

    assert [(row["sink"], row["transactional_id"], row["is_decided"]) for row in rows] == [
        ("orders", "orders/0/0", True),
        ("orders", "orders/1/0", False),
        (None, "flink-\x1b[31m7", False),
    ]
    assert rows[0]["partitions"] == [{"topic": "t", "partition": 0}]
    assert rows[0]["started"] == "2023-11-14 22:13:15+00:00"


def test_person_sees_ages_and_decisions_and_no_escapes_of_a_producer(sinks: Sinks) -> None:
    shown = " ".join(run(env=TERMINAL).stdout.split())

    assert "orders/0/0 orders Ongoing 5.0 s 900.0 s t-0 micro-batch 12 of query query-1" in shown
    assert "orders/1/0 orders Ongoing 5.0 s 900.0 s t-0 no" in shown
    assert "\x1b[31m" not in shown


def changing(sinks: Sinks, monkeypatch: pytest.MonkeyPatch, *later: list[TransactionRow] | KafkaMetaError) -> None:
    """Between two looks the rows are replaced by the next ones."""
    rows = iter(later)
    monkeypatch.setattr("pyspark_kafka_meta.tools.console.sleep", lambda _: setattr(sinks, "rows", next(rows)))


def test_watch_follows_transactions_while_no_broker_responds(sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    changing(sinks, monkeypatch, ROWS[:1], ConnectError("no broker responded"), ROWS[2:])
    result = run("--watch", "1", "--count", "4")

    seen = [json.loads(line)["transactional_id"] for line in result.stdout.splitlines()]
    assert seen == [*(row.transactional_id for row in ROWS), "orders/0/0", "flink-\x1b[31m7"]
    assert (result.exit_code, result.stderr) == (0, "kafkameta: no broker responded\n")


@pytest.mark.parametrize(
    ("rows", "number"), [(ROWS, "3 transactions"), (ROWS[:1], "1 transaction"), ([], "no transactions")]
)
@pytest.mark.parametrize("arguments", [[], ["--watch", "1", "--count", "1"]])
def test_person_sees_the_time_of_each_look(
    sinks: Sinks, rows: list[TransactionRow], number: str, arguments: list[str]
) -> None:
    sinks.rows = rows
    shown = run(*arguments, env=TERMINAL).stdout

    assert re.search(rf"At \d\d:\d\d:\d\d: {number}\b", shown)


def test_watch_ends_where_brokers_cannot_list(sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_kafka_meta.tools.console.sleep", lambda _: pytest.fail("it goes on"))
    sinks.rows = UnsupportedBrokerError("brokers before Kafka 3.0 cannot list")

    assert run("--watch", "1").exit_code == 1


@pytest.mark.parametrize("arguments", [["--count", "2"], [*SETTLE, "--watch", "1"], [*SETTLE, "--count", "2"]])
def test_options_without_a_meaning_together_are_refused(sinks: Sinks, arguments: list[str]) -> None:
    result = run(*arguments)

    assert (result.exit_code, sinks.settled, len(result.stderr.splitlines())) == (1, [], 1)
    assert "--watch" in result.stderr


QUESTION = "Make the decided transactions of orders visible (1), and abort the others (1)?"
DONE = "settled orders: the decided transactions are visible (1), the others are aborted (1)"
SETTLED = [("orders", "kafkameta-decisions")]
OLD = UnsupportedBrokerError("brokers before Kafka 3.0 cannot list")
SETTLES: list[tuple[dict[str, Any], str, str | None, int, list[tuple[str, str]], str]] = [
    ({}, "orders --decisions-topic d", "y\n", 0, [("orders", "d")], DONE),
    *(({}, "orders", answer, 1, list[tuple[str, str]](), QUESTION) for answer in ("n\n", "\n", "")),
    ({}, "orders --yes", None, 0, SETTLED, DONE),
    ({"left": ["orders/1/0"]}, "orders --yes", None, 1, SETTLED, "transactions of orders are open (1): its query runs"),
    ({}, f"{'x' * 40_000} --yes", None, 1, [], "'kafka.transactional.id' must be 1 to 255 printable characters"),
    ({}, "order --yes", None, 1, [], "id order: correct --settle; known are orders"),
    ({"rows": []}, "orders --yes", None, 0, [], "nothing to settle"),
    ({"rows": OLD}, "orders --yes", None, 0, SETTLED, "before Kafka 3.0"),
]


@pytest.mark.parametrize(("state", "arguments", "answer", "code", "settled", "text"), SETTLES)
def test_sink_is_settled_once_the_user_agrees(
    sinks: Sinks,
    state: dict[str, Any],
    arguments: str,
    answer: str | None,
    code: int,
    settled: list[tuple[str, str]],
    text: str,
) -> None:
    vars(sinks).update(state)
    result = run("--settle", *arguments.split(), input=answer)

    assert (result.exit_code, sinks.settled) == (code, settled)
    assert text in result.output
    assert (QUESTION in result.stdout, "flink" in result.stdout) == (answer is not None, False)
    assert len(result.stderr) < 700


def test_sink_that_may_have_decided_elsewhere_is_not_settled(sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "read_decisions", lambda *_: {})
    result = run("--settle", "orders", "--yes")
    assert (result.exit_code, sinks.settled) == (1, [])
    assert "orders has decided nothing in topic kafkameta-decisions" in result.stderr
    assert "give the query's option decisionsTopic as --decisions-topic" in result.stderr

    sinks.left = []
    assert run("--settle", "orders", "--yes", "--decisions-topic", "d").exit_code == 0
    assert sinks.settled == [("orders", "d")]
