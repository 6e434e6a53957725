"""Checks that a stream from Kafka to Kafka writes exactly once while its driver is killed again and again.

    python -m benchmarks.exactly_once_soak [--kills 40] [--executor-kills 10] [--speculation] [--kafka 4.1.1]
        [--transaction-timeout-ms 20000] [--json FILE]

An idempotent producer feeds a topic with keyed records, and a Spark application (`exactly_once_query`) writes them to
another topic with `kafka.transactional.id`. Its driver is killed with all its processes, before, during and after each
step of the commit protocol and at random moments, or its query is stopped; Python workers, or executors with
`--speculation`, are killed too. Every 25 s comes a fault of a broker, as in `benchmarks.soak`. Once the driver, killed
right after it has decided a batch, stays away until the brokers have aborted the batch's transactions.

At the end a read_committed consumer must find every acknowledged record, each as often as in the first topic, the
records of each key in order, and no open transaction. Exits with 1 if not. Timeouts of healthy brokers are counted as
in `benchmarks.soak`. With `--kills 6` it takes two minutes.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from numpy.typing import NDArray

from benchmarks.acked_feed import AckedFeed, Acknowledged
from benchmarks.exactly_once_query import LOCAL, Query, Run, committed, running
from benchmarks.harness import argument_parser, report
from benchmarks.processes import kill_executors, kill_workers
from benchmarks.soak import FAULT_EVERY_S, Unwell, event_rows, fault, inflict, told
from benchmarks.stepped_sink import Place, last_kill, taken_steps
from benchmarks.topics import new_topic
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.tools.demo.query import root_cause
from tests.spark.standalone import standalone_spark

PARTITIONS, KEYS = 6, 60
RECORDS_PER_S = 500
PAUSES = 0.2
FAULTS = ("kill -9", "election", "hang")
QUICK_FAILOVER = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "zookeeper.session.timeout.ms": "4000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
COMMIT_STEPS = ("Commit", "WriteDecision", "WriteSettled", "AbortOpen", "Fence", "ReadDecisions")
RECOVERY_STEPS = ("Commit", "WriteSettled", "AbortOpen", "Fence", "ReadDecisions")
SETTLING_STEPS = ("Commit", "WriteSettled")
DECIDED = Place("commit", "WriteDecision", "after")
"""All transactions of the batch are open, and must become visible."""
STOPPED, AT_RANDOM = "query.stop()", "random moment"
STEP_TIMEOUT_S = 120.0
COMMIT_TIMEOUT_S = 60.0
FINISH_TIMEOUT_S = 300.0
MAX_FAILURES = 50
RANDOM_S = 1.5
AWAY_S = 5.0
"""Longer than brokers take to abort a transaction after its time-out."""
READ_TIMEOUT_S = 60.0
SEED = 27

Ints = NDArray[np.int64]


# --- what to do -------------------------------------------------------------------------------------------------------


class Round(NamedTuple):
    """A run of the query: a place, `AT_RANDOM` or `STOPPED`, and the kills of workers and executors before."""

    kill: Place | str
    executor_kills: int = 0


def step_kills() -> Iterator[list[Place]]:
    """Each place of a commit and of a recovery, after a kill that leaves the recovery something to do."""
    for when in ("after", "during"):
        for step in COMMIT_STEPS:
            yield [Place("commit", step, when)]
            if step in RECOVERY_STEPS:
                yield [*([DECIDED] if step in SETTLING_STEPS else []), Place("recover", step, when)]
        yield [Place("recover", "ConfirmDecisions", when)]
    yield from ([Place(protocol, "Fence", "before")] for protocol in ("commit", "recover"))


def kill_plan(kills: int, executor_kills: int) -> list[Round]:
    """One kill for each run. The first is `DECIDED`, after which the driver stays away. Executors are killed in runs
    that end at random."""
    plan: list[Place | str] = [DECIDED]
    steps, others = cycle(step_kills()), cycle((AT_RANDOM, AT_RANDOM, AT_RANDOM, STOPPED))
    while len(plan) < kills:
        plan += [*next(steps), *next(steps), next(others)]
    number_at_random = sum(isinstance(kill, str) for kill in plan[:kills])
    shares = (len(range(first, executor_kills, number_at_random)) for first in range(number_at_random))
    return [Round(kill, next(shares) if isinstance(kill, str) else 0) for kill in plan[:kills]]


# --- what came of it --------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """Counts of the records that a read_committed reader lacks, reads again, and reads after a later record of the same
    key; and of those that the feed wrote again, although its producer is idempotent."""

    missing: int
    repeated: int
    disordered: int
    fed_again: int = 0

    @classmethod
    def of(cls, acknowledged: Acknowledged, fed: Ints, keys: Ints, numbers: Ints) -> Verdict:
        """`fed` are the numbers in the source. `keys` and `numbers` are of the written records in the order of their
        offsets, partition by partition."""
        fed_counts, counts = (np.bincount(found, minlength=acknowledged.sent) for found in (fed, numbers))
        is_due = np.ones(acknowledged.sent, bool)
        is_due[list(acknowledged.unknown)] = False
        by_key = np.argsort(keys, kind="stable")
        is_same_key = np.diff(keys[by_key]) == 0
        return cls(
            missing=int(np.sum(np.maximum(np.maximum(fed_counts, is_due) - counts, 0))),
            repeated=int(np.sum(np.maximum(counts - np.maximum(fed_counts, 1), 0))),
            disordered=int(np.count_nonzero(is_same_key & (np.diff(numbers[by_key]) < 0))),
            fed_again=int(np.sum(np.maximum(fed_counts - 1, 0))),
        )

    @property
    def is_good(self) -> bool:
        return not (self.missing or self.repeated or self.disordered)


def committed_records(bootstrap_servers: str, topic: str) -> tuple[Ints, Ints]:
    """Keys and values of the records that a read_committed consumer reads, partition by partition."""
    settings = {"group.id": "soak", "enable.auto.commit": False, "enable.partition.eof": True}
    isolation = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, **settings, **isolation})
    records: list[tuple[int, int]] = []
    for partition in range(PARTITIONS):
        consumer.assign([TopicPartition(topic, partition, 0)])
        is_ended = False
        while not is_ended:
            messages = consumer.consume(1_000, 0.1)  # waits for all of them
            for message in messages:
                is_ended = is_ended or message.error() is not None
                if message.error() is None:
                    records.append((int(message.key() or b""), int(message.value() or b"")))
    consumer.close()
    keys, numbers = np.array(records, np.int64).reshape(-1, 2).T
    return keys, numbers


def held_back(bootstrap_servers: str, topics: Sequence[str]) -> list[str]:
    """The partitions with an open transaction: read_committed readers do not get to their ends."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    latest = {
        TopicPartition(topic, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for topic in topics
        for number in admin.list_topics(topic, READ_TIMEOUT_S).topics[topic].partitions
    }
    stable, ends = (
        {(partition.topic, partition.partition): end.result(READ_TIMEOUT_S).offset for partition, end in found.items()}
        for found in (
            admin.list_offsets(latest, isolation_level=isolation)
            for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        )
    )
    return [f"{topic}-{number}" for topic, number in ends if stable[topic, number] != ends[topic, number]]


# --- the soak ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Seen:
    """Attributes:
    kills: by place.
    failures: why the query ended by itself, each time.
    starting_s: from the start of a run to that of its query.
    unwell: when brokers had faults.
    """

    kills: Counter[str] = field(default_factory=Counter)
    executor_kills: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    starting_s: list[float] = field(default_factory=list)
    unwell: list[Unwell] = field(default_factory=list)


class Soak:
    """The runs of a query, each of which ends violently."""

    def __init__(self, folder: Path, query: Query, seen: Seen) -> None:
        self._folder, self._query, self._seen = folder, query, seen
        self._chance = random.Random(SEED)

    def end_a_run(self, kill: Place | str, executor_kills: int) -> None:
        """Start the query, and kill it. A query that ends by itself before is started again.

        Raises:
            RuntimeError: it has ended by itself too often.
        """
        while not self._is_killed(kill, executor_kills):
            if len(self._seen.failures) > MAX_FAILURES:
                raise RuntimeError(f"the query ended {MAX_FAILURES} times by itself: {self._seen.failures[-1]}")

    def _is_killed(self, kill: Place | str, executor_kills: int) -> bool:
        if isinstance(kill, Place):
            kill.arm(self._folder)
        began = time.monotonic()
        with running(self._folder, self._query) as run:
            if run.wait_until_begun():
                self._seen.starting_s.append(time.monotonic() - began)
                has_failed = not all(self._kill_executors(run) for _ in range(executor_kills)) or self._ends(run, kill)
            else:
                has_failed = True
            place = last_kill(self._folder)
            if place is None and has_failed:
                run.ends_within(COMMIT_TIMEOUT_S)
                self._seen.failures.append(root_cause(run.log))
                print(f"the query ended: {self._seen.failures[-1]}", flush=True)
                return False
        killed = str(place or (STOPPED if kill == STOPPED else AT_RANDOM))
        print(
            f"kill {self._seen.kills.total() + 1} after {committed(self._folder)} micro-batches: {killed}", flush=True
        )
        self._seen.kills[killed] += 1
        return True

    def finish(self) -> None:
        """Write all that is left, and end the query cleanly. Before PySpark 4.2 the first run ends with the micro-batch
        that the killed driver left unfinished."""
        before = -1
        while committed(self._folder) > before:
            before = committed(self._folder)
            with running(self._folder, self._query, available_now=True) as run:
                assert run.ends_within(FINISH_TIMEOUT_S), f"the last run did not end: {run.log[-3000:]}"
                assert run.exit_code == 0, root_cause(run.log)

    def _ends(self, run: Run, kill: Place | str) -> bool:
        """Wait for a random moment; whether the run has ended before by itself, or been killed at its place."""
        if isinstance(kill, Place):
            return run.ends_within(STEP_TIMEOUT_S)
        if not self._commits(run, self._chance.randrange(3)) or run.ends_within(self._chance.uniform(0, RANDOM_S)):
            return True
        if kill == STOPPED:
            run.stop()
        return False

    def _kill_executors(self, run: Run) -> bool:
        """False if the query has ended before."""
        if not self._commits(run, 1) or run.ends_within(self._chance.uniform(0, RANDOM_S)):
            return False
        is_remote = self._query.master != LOCAL
        (kill_executors if is_remote else kill_workers)()
        self._seen.executor_kills["executors" if is_remote else "Python workers"] += 1
        return True

    def _commits(self, run: Run, batches: int) -> bool:
        """Wait for so many more micro-batches, or for `COMMIT_TIMEOUT_S`. False if the query has ended."""
        wanted, deadline = committed(self._folder) + batches, time.monotonic() + COMMIT_TIMEOUT_S
        while committed(self._folder) < wanted and time.monotonic() < deadline:
            if run.ends_within(0.1):
                return False
        return True


@contextmanager
def broker_faults(kafka: LocalKafka, topics: Sequence[str], seen: Seen) -> Iterator[None]:
    """Inside `with`, a broker fails every `FAULT_EVERY_S`."""
    ended = threading.Event()

    def inflict_all() -> None:
        while not ended.wait(FAULT_EVERY_S):
            kind, broker_id = fault(seen.faults.total(), kafka.broker_ids, FAULTS)
            seen.unwell.append(inflict(kafka, topics, kind, broker_id))
            seen.faults[kind] += 1

    with ThreadPoolExecutor(1) as thread:
        inflicting = thread.submit(inflict_all)
        try:
            yield
        finally:
            ended.set()
        inflicting.result()


def result_rows(
    setting: str, seen: Seen, acknowledged: Acknowledged, verdict: Verdict, held: Sequence[str], folder: Path
) -> list[dict[str, str]]:
    steps = taken_steps(folder)
    values = {
        "topics": setting,
        "kills of the driver": str(seen.kills.total()),
        **{f"- {place}": str(count) for place, count in sorted(seen.kills.items())},
        "other kills": told(seen.executor_kills),
        "faults of brokers": told(seen.faults),
        "restarts after failures of the query": str(len(seen.failures)),
        "seconds from start to query, median": f"{np.median(seen.starting_s):.1f}",
        "micro-batches": str(committed(folder)),
        "transactions of later attempts": f"{sum(step.later_attempts for step in steps)}",
        "transactions copied": f"{sum(step.copied for step in steps)}",
        "acknowledged records": f"{acknowledged.records:,}",
        "missing records": f"{verdict.missing:,}",
        "repeated records": f"{verdict.repeated:,}",
        "records after a later record of their key": f"{verdict.disordered:,}",
        "records that the feed wrote again": f"{verdict.fed_again:,}",
        "partitions with open transactions": ", ".join(held) or "none",
        **event_rows(folder / "events", seen.unwell),
    }
    return [{"measure": name, "value": value} for name, value in values.items()]


def main() -> None:
    numbers = {"kills": 40, "executor-kills": 10, "transaction-timeout-ms": 20_000}
    parser = argument_parser(__doc__, **numbers)
    parser.add_argument("--speculation", action="store_true", help="two executors, and speculative copies of tasks")
    parser.add_argument("--kafka", default="4.1.1", help="default: 4.1.1")
    arguments = parser.parse_args()
    away_s, seen, began = arguments.transaction_timeout_ms / 1000 + AWAY_S, Seen(), time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        kafka = stack.enter_context(LocalKafka(config=QUICK_FAILOVER, version=arguments.kafka))
        servers = kafka.bootstrap_servers
        source, target = (new_topic(servers, purpose, PARTITIONS) for purpose in ("source", "target"))
        master = stack.enter_context(standalone_spark(folder)) if arguments.speculation else LOCAL
        query = Query(servers, source, target, "soak", arguments.transaction_timeout_ms, master, PAUSES)
        soak = Soak(folder, query, seen)
        feed = AckedFeed(servers, source, PARTITIONS, RECORDS_PER_S, KEYS)
        first, *rounds = kill_plan(arguments.kills, arguments.executor_kills)
        soak.end_a_run(*first)
        time.sleep(away_s)
        with broker_faults(kafka, [source, target, query.decisions_topic, "__transaction_state"], seen):
            for one in rounds:
                soak.end_a_run(*one)
        acknowledged = feed.close()
        soak.finish()
        held = held_back(servers, [target, query.decisions_topic])
        if held:  # a consumer would not get to their ends
            time.sleep(away_s)
        _, fed = committed_records(servers, source)
        verdict = Verdict.of(acknowledged, fed, *committed_records(servers, target))
        minutes = (time.monotonic() - began) / 60
        setting = (
            f"Kafka {arguments.kafka}, {PARTITIONS} partitions, {RECORDS_PER_S} records a second, {minutes:.1f} minutes"
        )
        report("Exactly-once soak", result_rows(setting, seen, acknowledged, verdict, held, folder), arguments.json)
    sys.exit(not verdict.is_good or bool(held))


if __name__ == "__main__":
    main()
