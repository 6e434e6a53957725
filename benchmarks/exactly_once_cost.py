"""Measures what exactly-once writes cost, beside at-least-once writes of this sink and of Spark's.

    python -m benchmarks.exactly_once_cost [--rounds 5] [--records 1000000] [--seconds 20] [--commits 20] [--json FILE]

Writers take turns. A batch of two tasks is as in `benchmarks.write_throughput`, without a codec. Micro-batches are as
in `benchmarks.kafka_to_kafka`. The driver's share is measured without Spark: the time to plan a batch, and to commit a
batch of 2, 20, 200 and 1,000 tasks, each of which has written a record to each of 6 partitions, altogether and by step.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark.sql import DataFrame

from benchmarks import peers
from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.kafka_to_kafka import RECORDS_PER_S, Pipeline, turn_ms
from benchmarks.peers import take_turns
from benchmarks.stepped_sink import record_steps, taken_steps
from benchmarks.topics import delete, new_topic, record_count, trickle
from benchmarks.write_peers import JVM, OURS, Writer
from benchmarks.write_throughput import CONFIG, PARTITIONS, cached_rows
from pyspark_kafka_meta.events.origin import planner_origin
from pyspark_kafka_meta.events.publisher import new_publisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import OpenTransaction
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.write.exactly_once.batch_committer import BatchCommitter
from pyspark_kafka_meta.write.exactly_once.decision import STREAM, BatchId, TransactionPlan
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.task_writer import TaskWriter
from pyspark_kafka_meta.write.transactional_producer import TransactionalProducer

EXACTLY_ONCE = Writer("kafkameta, exactly once", "kafkameta", {"kafka.transactional.id": "cost"})
WRITERS = (OURS, EXACTLY_ONCE, JVM)
PIPELINES = (
    Pipeline(OURS.name, peers.OURS, OURS),
    Pipeline(EXACTLY_ONCE.name, peers.OURS, EXACTLY_ONCE),
    Pipeline(JVM.name, peers.JVM, JVM),
)
TASKS = 2
COMMITTED_TASKS = (2, 20, 200, 1_000)
SLOTS = 8
"""Tasks of a commit that write at a time."""
STEPS = ("Fence", "ReadDecisions", "WriteDecision", "Commit", "WriteSettled", "AbortOpen")
COLUMNS = SinkColumns(key=None, value=0, headers=None, topic=None, partition=1, timestamp=None)

Rows = list[dict[str, object]]


# --- through Spark ----------------------------------------------------------------------------------------------------


def write_s(rows: DataFrame, bootstrap_servers: str, records: int, writer: Writer) -> float:
    """Raises RuntimeError if the topic does not hold as many records as rows. Each transaction ends with a marker."""
    topic = new_topic(bootstrap_servers, "write", PARTITIONS, config=CONFIG)
    began = time.perf_counter()
    writer.write(rows, bootstrap_servers, topic, "none")
    seconds = time.perf_counter() - began
    markers = record_count(bootstrap_servers, topic) - records
    if not 0 <= markers <= (TASKS * PARTITIONS if writer is EXACTLY_ONCE else 0):
        raise RuntimeError(f"{writer.name} wrote {records + markers} of {records} records")
    delete(bootstrap_servers, topic)
    return seconds


def batch_rows(records: int, turns: dict[str, list[float]]) -> Rows:
    return [
        {
            "case": "batch",
            "writer": name,
            "krec_s": round(records / statistics.median(taken) / 1000, 1),
            **_ratios(turns[OURS.name], taken),
        }
        for name, taken in turns.items()
    ]


def micro_batch_rows(turns: dict[str, list[list[float]]]) -> Rows:
    medians = {name: [statistics.median(turn) for turn in taken] for name, taken in turns.items()}
    rows: Rows = []
    for name, taken in turns.items():
        times = list(chain(*taken))
        p50, p99 = statistics.median(times), statistics.quantiles(times, n=100, method="inclusive")[-1]
        figures = {"batches": len(times), "p50_ms": round(p50), "p99_ms": round(p99)}
        rows.append({"case": "micro-batch", "writer": name, **figures, **_ratios(medians[OURS.name], medians[name])})
    return rows


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, object]:
    """Of turns in the same round."""
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    ends = {"from": round(min(ratios), 2), "to": round(max(ratios), 2)}
    return {"times_at_least_once": round(statistics.median(ratios), 2), **ends}


# --- the driver alone -------------------------------------------------------------------------------------------------


def commit_row(bootstrap_servers: str, topic: str, tasks: int, commits: int) -> dict[str, object]:
    """Plan and commit batches of this many tasks, whose transactions are in this process. The first does not count."""
    options = SinkOptions.parse(
        {"kafka.bootstrap.servers": bootstrap_servers, "topic": topic, "kafka.transactional.id": f"commit-{tasks}"}
    )
    with ExitStack() as stack:
        client, *of_slots = (
            stack.enter_context(closing(KafkaClient(options.client, new_publisher(None, planner_origin()))))
            for _ in range(1 + SLOTS)
        )
        folder, slots = stack.enter_context(TemporaryDirectory()), stack.enter_context(ThreadPoolExecutor(SLOTS))
        committer, plan_ms, commit_ms = BatchCommitter(client, options), [], []
        for version in range(commits + 1):
            counted = Path(folder, str(version > 0))
            counted.mkdir(exist_ok=True)
            record_steps(counted)
            began = time.perf_counter()
            plan = committer.plan(STREAM)
            plan_ms.append((time.perf_counter() - began) * 1000)
            write = partial(write_tasks, options=options, plan=plan)
            transactions = [*chain(*slots.map(write, of_slots, (range(n, tasks, SLOTS) for n in range(SLOTS))))]
            began = time.perf_counter()
            committer.commit(BatchId(STREAM, "cost", version), transactions, int(time.time() * 1000))
            commit_ms.append((time.perf_counter() - began) * 1000)
        steps = [step for step in taken_steps(counted) if step.protocol == "commit"]
    return {
        "case": "commit",
        "tasks": tasks,
        "plan_p50_ms": round(statistics.median(plan_ms[1:])),
        "commit_p50_ms": round(statistics.median(commit_ms[1:])),
        "commit_longest_ms": round(max(commit_ms[1:])),
        **{name: round(statistics.median(step.ms for step in steps if step.step == name), 1) for name in STEPS},
    }


def write_tasks(
    client: KafkaClient, tasks: Sequence[int], options: SinkOptions, plan: TransactionPlan
) -> list[OpenTransaction]:
    """One record to each partition from each task."""
    values, partitions = pa.array([b"v"] * PARTITIONS, pa.binary()), pa.array(range(PARTITIONS), pa.int32())
    rows = pa.record_batch([values, partitions], names=["value", "partition"])
    transactions = []
    for task in tasks:
        transaction = TransactionalProducer(client, plan.task_id(task, 0), plan.timeout_ms, plan.version)
        opened = transaction.opened(
            TaskWriter(client, options.producer, COLUMNS, options.topic, transaction).write([rows])
        )
        assert opened is not None
        transactions.append(opened)
    return transactions


def main() -> None:
    arguments = argument_parser(__doc__, rounds=5, records=1_000_000, seconds=20, commits=20).parse_args()
    records, rounds = arguments.records, arguments.rounds
    with brokers() as servers:
        source, target = (new_topic(servers, purpose, PARTITIONS, config=CONFIG) for purpose in ("source", "target"))
        with spark_session() as spark:
            rows = cached_rows(spark, records, TASKS)
            batches = batch_rows(records, take_turns(WRITERS, rounds, partial(write_s, rows, servers, records)))
            rows.unpersist()
            turn = partial(turn_ms, spark, servers, (source, target), arguments.seconds)
            with trickle(servers, source, PARTITIONS, RECORDS_PER_S):
                micro_batches = micro_batch_rows(take_turns(PIPELINES, rounds, turn, warm_up_rounds=0))
        commits = [commit_row(servers, target, tasks, arguments.commits) for tasks in COMMITTED_TASKS]
    report(f"Batches of {records:,} rows, {rounds} turns each", batches, None)
    report("Micro-batches from topic to topic", micro_batches, None)
    report(f"The driver's ms, {arguments.commits} batches each", commits, None)
    if arguments.json:
        arguments.json.write_text(json.dumps([*batches, *micro_batches, *commits], indent=2))


if __name__ == "__main__":
    main()
