"""`CommitHistory`: a sink with exactly-once writes on a cluster with faults, all drawn from one seed.

Spark's driver, its task attempts, and whoever disturbs them are processes in virtual time (`processes.py`), each with a
client of its own. They run the commit protocol, `BatchCommitter` and `TaskWriter` as `spark/batch_writer.py` does,
over one cluster in memory. Spark repeats a batch until it is committed, and perhaps once more. It plans in one Python
process and commits in another, and takes any that is idle: each may have missed what others have done since. If
somebody restores a checkpoint from before the last batches, Spark repeats them, with the same rows or planned anew,
until an error tells to use the newest checkpoint. In the end all brokers are healthy, whoever still writes ends, and
one driver recovers.

| drawn | from |
|---|---|
| cluster | brokers, partitions, latencies, delays of markers, transactions V1 or V2, with ListTransactions or without |
| epochs | of new producer ids: the first, or one of the last |
| batches | micro-batches of a query and perhaps its successor, or batch writes with and without txnAppId |
| decisions topic | whether somebody deletes it, perhaps while another sink creates it again |
| checkpoints | whether and when an older one is restored, of any age, and which rows its batches have |
| tasks | their number, new at each run of a batch; sizes of rows and batches; speculation, repeated stages, zombies |
| drivers | whether a failed batch is aborted, whether Python processes are kept between calls, queries and drivers |
| faults | a few kinds of `Faults` and `CommitFaults`, from ten a second to one in 3 s, for up to 60 s |

| invariant | meaning |
|---|---|
| exactly once | rows of a committed batch are visible once; of a batch in doubt, which nobody repeats, all or none |
| no silent loss | a repeated batch with other rows than those that are visible fails |
| no false alarm | a repeated batch with the same rows does not, unless it is too old, or of a stream |
| in order | visible rows of a key are in the order of their numbers |
| ended | no transaction is open after the last recovery, and readers wait at no partition |
| alive | all batches are committed within minutes once all brokers are healthy |
| typed | a process ends with a `KafkaMetaError` or without an error; no error says that records are lost |

After the decisions topic was deleted, rows may be visible twice and out of order, and an error says so. Those of
committed batches are visible nevertheless, and the query goes on, unless a driver of the query before, which still
runs, takes the sink over: then the error of the successor says so, and its other batches are in doubt.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from unittest.mock import patch

import pyarrow as pa
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import ChangedBatchError, DataLossError, FencedError, KafkaMetaError, UnknownTopicError
from pyspark_kafka_meta.kafka.client import broker_requests
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import NO_ROWS, OpenTransaction, RowDigest, TransactionVersion
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.write.exactly_once import commit_protocol
from pyspark_kafka_meta.write.exactly_once.batch_committer import BatchCommitter
from pyspark_kafka_meta.write.exactly_once.commit_protocol import require_owner
from pyspark_kafka_meta.write.exactly_once.decision import BATCH, STREAM, BatchId, TransactionPlan, is_written
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.row_digest import RowDigester
from pyspark_kafka_meta.write.task_writer import TaskWriter
from pyspark_kafka_meta.write.transactional_producer import LAST_EPOCHS, TransactionalProducer
from tests.unit.fake_cluster import FakeCluster
from tests.unit.histories.commit_faults import DECISIONS, RESTART_S, CommitFaults
from tests.unit.histories.commit_network import CommitNetwork, LateCoordinators
from tests.unit.histories.faults import Faults
from tests.unit.histories.history import History
from tests.unit.histories.processes import Process, ProcessClock
from tests.unit.write.writer_scene import rows as rows_of

SINK = "orders"
FAULTS_S = (5.0, 20.0, 20.0, 60.0)
ENDS_WITHIN_S = 600.0
"""A frozen process, and some requests that wait for default.api.timeout.ms."""
POLL_S = 0.05
MAX_ATTEMPTS = 4
MAX_RESTORES = 3
KNOWN_VERSIONS = 2
"""Before the last one, of each txnAppId: fewer than otherwise, so that some are too old."""
MAX_CONNECTIONS = 2
"""To a coordinator: fewer than otherwise, so that some requests wait for another."""
NEW_ROW = 500
"""The first row of a batch that was planned anew."""
MAX_DRIVERS, MAX_TASKS = 3, 6
"""At a time, with those of faults."""
INTERRUPTS_S = (0.05, 0.5, 3.0)
PAIRS = (
    (),
    ("kill_driver", "stale_end"),
    ("kill_driver", "time_out"),
    ("kill_driver", "zombie"),
    ("second_driver", "freeze"),
    ("settle", "freeze"),
    ("change_version", "kill_driver"),
)
"""Faults that matter together."""
FIRST_EPOCHS = ((0,), (0,), range(LAST_EPOCHS - 12, LAST_EPOCHS))
"""Of the producer ids of a history."""
MARKERS_S = ((0.0,), (0.0, 0.0, 0.005), (0.005, 0.1, 2.0))
TAKEN_OVER = "has written with the same kafka.transactional.id since"
COLUMNS = SinkColumns(key=0, value=1, headers=None, topic=None, partition=2, timestamp=None)
CODES = (ErrorCode.unknown_topic_or_partition, ErrorCode.leader_not_available, ErrorCode.not_leader_or_follower)


@contextmanager
def _unlocked(kind: type) -> Iterator[None]:
    """Python 3.11 has one lock for a cached property of all objects: a process that waits within would hold it."""
    with ExitStack() as patches:
        for member in vars(kind).values():
            if isinstance(member, cached_property):
                patches.enter_context(patch.object(member, "lock", nullcontext(), create=True))
        yield


class TaskResult(NamedTuple):
    """What a task attempt reports."""

    transaction: OpenTransaction | None
    rows: RowDigest


class TaskFailedError(Exception):
    """All attempts of a task have failed: so does the batch."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A task attempt, which can be repeated."""

    plan: TransactionPlan
    batch: BatchId
    rows: range  # of the batch
    number: int  # of the batch
    task: int
    tasks: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.batch}, task {self.task} of {self.tasks}, attempt {self.attempt}"


class CommitHistory(History):
    """One history.

    Attributes:
        rows: how many each batch has. Row i of a batch has the key i modulo `keys`.
        committed: whether each batch ended with a commit, in order; the other batches may be visible or not.
        violations: of "alive", "typed" and restored checkpoints; `commit_checks` has the others.
    """

    clock: ProcessClock

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._restores = random.Random(seed)  # draws of their own: the others are the same without restores
        self.clock = ProcessClock(self._rng())
        self.cluster = FakeCluster(self.rng.choice([1, 3, 3]))
        markers_s = self.rng.choice(MARKERS_S)
        first_epochs = self.rng.choice(FIRST_EPOCHS)
        self.coordinators = LateCoordinators(
            self.cluster, self.clock, lambda: self.rng.choice(markers_s), lambda: self.rng.choice(first_epochs)
        )
        self.coordinators.version = self.rng.choice(
            [TransactionVersion.V1, TransactionVersion.V2, TransactionVersion.V2]
        )
        self.cluster.coordinators = self.coordinators
        self.cluster.create_topic("t", self.rng.choice([1, 2, 3]))
        self.network = CommitNetwork(self.cluster, self.clock, self._rng())
        self.network.lists_transactions = self.coordinators.version > 1 or self.rng.random() < 0.7
        self.given = {
            "kafka.bootstrap.servers": "broker-1:9092",
            "topic": "t",
            "kafka.transactional.id": SINK,
            "kafka.transaction.timeout.ms": "60000",
            "kafka.batch.size": self.rng.choice(["100", "200", "16384"]),
        }
        self.options = SinkOptions.parse(self.given)
        self.batches = self._draw_batches()
        self.rows = [self.rng.choice([1, 6, 20]) for _ in self.batches]
        self.keys = self.rng.choice([1, 3, 7])
        self.committed: list[bool] = []
        self._begun: set[int] = set()  # batches that nobody may repeat
        self._restores_checkpoints = self._restores.choice([0.0, 0.3]) if all(self.batches) else 0.0
        self._restored = 0
        self.deletes_decisions = self._restores_checkpoints == 0 and self._restores.random() < 0.3
        self._newest: list[bool] | None = None  # `committed` of the newest checkpoint, while an older one is in use
        self._planned_anew: dict[int, range] = {}  # rows of batches that have other rows than before
        self._attempts: list[Attempt] = []
        self._idle: list[KafkaClient] = []  # of Python workers
        self._planners: list[BatchCommitter] = []  # idle, beside a driver
        self._committers: list[BatchCommitter] = []
        self._keeps_processes = self.rng.choice([0.0, 0.8, 0.95, 1.0])
        self._repeats_committed = self.rng.choice([0.0, 0.2])
        self._speculates = self.rng.choice([0.0, 0.02])
        self._repeats_stage = self.rng.choice([0.0, 0.2])
        self._interrupts_commits = self.rng.choice([0.0, 0.2, 0.5])
        self._paces_s = self.rng.choice([(0.0,), (0.0, 0.1), (0.1, 1.0)])
        self.faults = Faults(self.network, self._rng(), CODES)
        self.violations = self.faults.violations
        self._more_faults = CommitFaults(self.faults, self.network, self.clock, self._rng())
        self.faults.kinds |= {"kill_driver": self._kill_driver, "settle": self._settle, "zombie": self._zombie}
        if self.is_stream:  # of overlapping batch writes the last to be decided is the last in order
            self.faults.kinds["second_driver"] = self._second_driver
        pair = self.rng.choice(PAIRS)
        others = self.rng.sample(list(self.faults.kinds), self.rng.randint(2, 6))
        kinds = [*(kind for kind in pair if kind in self.faults.kinds), *others]
        self.faults.start(kinds, self.rng.choice([0.1, 0.3, 1.0, 3.0]), self.rng.choice(FAULTS_S))
        self.clock.at(self.faults.healed_at - self.clock.now, self._more_faults.heal)
        for _ in range(self._restores.choice([1, 2, 4]) if self.deletes_decisions else 0):
            self.clock.at(self._restores.random() * (self.faults.healed_at - self.clock.now), self._delete_decisions)
        self.clock.latest = self.faults.healed_at + ENDS_WITHIN_S

    def _draw_batches(self) -> list[BatchId | None]:
        """Batches in the order of writing; None for a batch write without txnAppId."""
        count = self.rng.choice([2, 3, 3, 4, 5, 8])
        if self.rng.random() < 0.3:
            apps = [self.rng.choice(["a", "b", None]) for _ in range(count)]
            if self._restores.random() < 0.7:
                apps = [app or "a" for app in apps]
            return [BatchId.of_app(app, number) if app else None for number, app in enumerate(apps)]
        first_of_successor = self.rng.choice([count, count, self.rng.randint(1, count)])
        of_query = [BatchId(STREAM, "query", number) for number in range(first_of_successor)]
        return [*of_query, *(BatchId(STREAM, "successor", number) for number in range(count - first_of_successor))]

    @property
    def is_stream(self) -> bool:
        return all(batch is not None and batch.is_stream for batch in self.batches)

    def run(self) -> CommitHistory:
        with (
            _unlocked(BatchCommitter),
            patch.object(commit_protocol, "MAX_EARLIER", KNOWN_VERSIONS),
            patch.object(broker_requests, "MAX_CONNECTIONS", MAX_CONNECTIONS),
        ):
            try:
                self._start_driver()
                self.clock.run()
                self.clock.start("last recovery", lambda: self._committer().recover())
                self.clock.run()
                if not self.network.lists_transactions:  # what nobody knows of stays open until its timeout
                    self.coordinators.time_out_all()
                    self.clock.run()
            finally:
                still_alive = [process.name for process in self.clock.alive]
                self.clock.close()
        self.violations += [f"at the end {name} still runs" for name in still_alive]
        if not self.has_written:
            self.violations.append(f"{len(self.committed)} of {len(self.batches)} batches were written")
        self.violations += [
            f"{process.name} ended with {process.error!r}"
            for process in self.clock.processes
            if process.error is not None and not isinstance(process.error, KafkaMetaError)
        ]
        for process in self.clock.processes:
            if isinstance(process.error, KafkaMetaError):
                self._note_error(process.name, process.error)
        return self

    @property
    def has_written(self) -> bool:
        return len(self.committed) == len(self.batches)

    # --- drivers ------------------------------------------------------------------------------------------------------

    def _start_driver(self) -> None:
        if not self.has_written:
            self.clock.start(f"driver {len(self.clock.processes)}", self._drive)

    def _drive(self) -> None:
        """Spark's driver writes the batches that are left."""
        while not self.has_written:
            number = len(self.committed)
            batch = self.batches[number] or BatchId(BATCH, f"write {self.rng.random()}", 0)
            rows = self._planned_anew.get(number, range(self.rows[number]))
            may_begin = self.batches[number] is not None or number not in self._begun
            self._begun.add(number)
            try:
                if may_begin:
                    self._write_batch(batch, number, rows)
                is_committed = may_begin
            except (KafkaMetaError, TaskFailedError) as error:
                self._note_error(f"{batch} failed", error)
                if self._has_refused_checkpoint(number, rows, error):
                    continue
                if self._gives_up(error):
                    return
                self._wait_to_repeat()
                if self.batches[number] is not None:
                    continue
                is_committed = False
            if len(self.committed) > number:  # another driver was faster: Spark's commit log refuses a second entry
                if self._has_other_drivers:
                    return
                continue  # the query is started again
            if self.batches[number] is not None and self.rng.random() < self._repeats_committed:
                self.faults.note(f"{batch} is committed, and fails nevertheless")
                continue
            self._log_commit(batch, number, rows, is_committed)

    def _gives_up(self, error: Exception) -> bool:
        """Whether this driver ends because of an error, which advises to stop one of the queries."""
        if isinstance(error, FencedError) and self._has_other_drivers:
            return True
        is_taken_over = self.deletes_decisions and TAKEN_OVER in str(error)
        if is_taken_over:
            self.committed += [False] * (len(self.batches) - len(self.committed))
        return is_taken_over

    def _wait_to_repeat(self) -> None:
        if self.rng.random() < 0.5:
            self.clock.sleep(self.rng.choice(RESTART_S))

    def _log_commit(self, batch: BatchId, number: int, rows: range, is_committed: bool) -> None:
        """Add the batch to the commit log of the checkpoint."""
        if rows != range(self.rows[number]):
            self.violations.append(f"batch {number} counts as written with other rows")
        self.committed.append(is_committed)
        self.faults.note(f"{batch} {'is committed' if is_committed else 'is in doubt'}")
        if self._newest is not None and len(self.committed) == len(self._newest):
            self._use_newest_checkpoint()  # which has the same batches
        self._restore_checkpoint()

    def _restore_checkpoint(self) -> None:
        """Perhaps forget the last batches; Spark plans some of them anew."""
        draw = self._restores
        if self._newest is not None or self._restored == MAX_RESTORES or draw.random() >= self._restores_checkpoints:
            return
        self._restored += 1
        self._newest, first = list(self.committed), draw.randrange(len(self.committed))
        del self.committed[first:]
        for number in range(first, len(self._newest)):
            rows = self.rows[number]
            others = [range(NEW_ROW, NEW_ROW + rows), range(rows + 1), range(1, rows + 1)]
            if draw.random() < 0.5:
                self._planned_anew[number] = draw.choice(others)
        self.faults.note(f"restore the checkpoint of batch {first}; other rows: {self._planned_anew}")

    def _use_newest_checkpoint(self) -> None:
        assert self._newest is not None
        self.committed, self._newest = self._newest, None
        self._planned_anew.clear()

    def _has_refused_checkpoint(self, number: int, rows: range, error: Exception) -> bool:
        """Whether this error made somebody use the newest checkpoint instead of an older one."""
        batch, newest = self.batches[number], self._newest or self.committed
        if isinstance(error, ChangedBatchError) and rows == range(self.rows[number]) and batch is not None:
            later = [each for each in self.batches[number + 1 : len(newest)] if each and each.series == batch.series]
            if len(later) < KNOWN_VERSIONS:
                self.violations.append(f"batch {number} is refused with the same rows")
        if self._newest is None or not isinstance(error, (ChangedBatchError, FencedError, TaskFailedError)):
            return False
        self._use_newest_checkpoint()
        return True

    @property
    def _has_other_drivers(self) -> bool:
        return len(self._more_faults.processes("driver")) > 1

    def _write_batch(self, batch: BatchId, number: int, rows: range) -> None:
        tasks = self.rng.randint(1, 3)
        try:
            with self._process(self._planners) as planner:
                plan = planner.plan(batch.series)
            results = self._run_tasks(plan, batch, rows, number, tasks)
            transactions = [each.transaction for each in results if each.transaction is not None]
            digest = sum((each.rows for each in results), NO_ROWS)
            self.faults.note(f"commit {batch} {[each.transactional_id for each in transactions]}")
            self._interrupt()
            with self._process(self._committers) as committer:
                committer.commit(batch, transactions, int(self.clock.now * 1000), digest)
        except (KafkaMetaError, TaskFailedError) as error:
            self._note_error(f"{batch} is aborted", error)
            if self.rng.random() < 0.7:
                with self._process(self._committers) as committer:
                    committer.abort(tasks, all_ended=self.rng.random() < 0.5)
            raise

    @contextmanager
    def _process(self, idle: list[BatchCommitter]) -> Iterator[BatchCommitter]:
        """A Python process of Spark, which is idle again afterwards, unless it was killed."""
        is_kept = idle and self.rng.random() < self._keeps_processes
        committer = idle.pop(self.rng.randrange(len(idle))) if is_kept else self._committer()
        try:
            yield committer
        except KafkaMetaError:
            idle.append(committer)
            raise
        idle.append(committer)

    def _interrupt(self) -> None:
        """Perhaps kill or freeze this driver soon: most times between commits, faults are in vain."""
        driver = self.clock.running
        if driver is None or self.rng.random() >= self._interrupts_commits:
            return
        strike = self.rng.choice([self._kill_with_tasks, self._more_faults.freeze])

        def interrupt() -> None:
            if not driver.has_ended:
                self.faults.note(f"commit is interrupted: {strike(driver)}")

        self.clock.at(self.rng.choice(INTERRUPTS_S) * self.rng.random(), interrupt)

    def _note_error(self, text: str, error: Exception) -> None:
        self.faults.note(f"{text}: {type(error).__name__}: {error}")
        is_allowed = (self.deletes_decisions and "decisions are gone" in str(error)) or "just created" in str(error)
        if isinstance(error, (DataLossError, UnknownTopicError)) and not is_allowed:
            self.violations.append(f"{self.clock.now:.3f}: {text}: {error}")

    def _committer(self) -> BatchCommitter:
        return BatchCommitter(self._client(), self.options)

    def _client(self) -> KafkaClient:
        return self._new_client(self.options.client, self.network.another())

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _run_tasks(
        self, plan: TransactionPlan, batch: BatchId, rows: range, number: int, tasks: int
    ) -> list[TaskResult]:
        """Of the attempts that Spark chooses."""
        running: dict[int, list[Process]] = {task: [] for task in range(tasks)}
        begun = dict.fromkeys(range(tasks), 0)
        results: dict[int, TaskResult] = {}
        repeats_stage = self.rng.random() < self._repeats_stage
        while len(results) < tasks:
            for task in running.keys() - results.keys():
                ended = [process for process in running[task] if process.has_ended]
                chosen = next((process for process in ended if process.error is None and not process.is_killed), None)
                is_idle = len(ended) == len(running[task])
                if chosen is not None:
                    results[task] = chosen.result
                    self._give_up(running[task])
                elif is_idle and begun[task] == MAX_ATTEMPTS:
                    self._give_up([process for processes in running.values() for process in processes])
                    raise TaskFailedError(f"task {task} has failed {MAX_ATTEMPTS} times: {ended[-1].error}")
                elif is_idle or (begun[task] < MAX_ATTEMPTS and self.rng.random() < self._speculates):
                    running[task].append(
                        self._start_attempt(Attempt(plan, batch, rows, number, task, tasks, begun[task]))
                    )
                    begun[task] += 1
            if repeats_stage and len(results) == tasks:  # the output of a stage before was lost: attempts count from 0
                repeats_stage, again = False, self.rng.randrange(tasks)
                del results[again]
                running[again], begun[again] = [], 0
            self.clock.sleep(POLL_S)
        return [results[task] for task in range(tasks)]

    def _give_up(self, processes: list[Process]) -> None:
        """Spark kills attempts that it does not need any more, and does not wait for their end."""
        for process in processes:
            if not process.has_ended and self.rng.random() < 0.5:
                self.clock.kill(process)

    def _start_attempt(self, attempt: Attempt) -> Process:
        self._attempts.append(attempt)
        return self.clock.start(f"task {len(self.clock.processes)} ({attempt})", lambda: self._write(attempt))

    def _write(self, attempt: Attempt) -> TaskResult:
        """As `write_task`."""
        plan, digester = attempt.plan, RowDigester(COLUMNS)
        batches = digester.passing(self._rows_of(attempt))
        if is_written(plan.decisions, attempt.batch):
            deque(batches, maxlen=0)
            return TaskResult(None, digester.digest)
        require_owner(plan.decisions, attempt.batch)
        client = self._idle.pop() if self._idle else self._client()
        transactional_id, producer = plan.task_id(attempt.task, attempt.attempt), self.options.producer
        transaction = TransactionalProducer(
            client, transactional_id, plan.timeout_ms, plan.version, producer.max_block_ms
        )
        writer = TaskWriter(client, producer, COLUMNS, "t", transaction, rng=self._rng())
        written = writer.write(batches)
        self._idle.append(client)
        return TaskResult(transaction.opened(written), digester.digest)

    def _rows_of(self, attempt: Attempt) -> Iterator[pa.RecordBatch]:
        """The rows whose keys the task has."""
        numbers = [row for row in attempt.rows if row % self.keys % attempt.tasks == attempt.task]
        partitions = len(self.cluster.topics["t"].partitions)
        while numbers:
            size = self.rng.choice([1, 3, 20])
            taken, numbers = numbers[:size], numbers[size:]
            yield rows_of(
                key=[b"%d" % (row % self.keys) for row in taken],
                value=[b"%06d" % (1000 * attempt.number + row) for row in taken],
                partition=[row % self.keys % partitions for row in taken],
            )
            self.clock.sleep(self.rng.choice(self._paces_s))

    # --- faults that need Spark ---------------------------------------------------------------------------------------

    def _delete_decisions(self) -> None:
        if DECISIONS.topic in self.cluster.topics:
            self.cluster.delete_topic(DECISIONS.topic)
            if is_recreated := self._restores.random() < 0.4:
                self.cluster.create_topic(DECISIONS.topic)
            self.faults.note(f"the decisions topic is deleted{' and created again' * is_recreated}")

    def _kill_driver(self) -> str:
        return self._more_faults.of_one(self._more_faults.processes("driver"), self._kill_with_tasks)

    def _kill_with_tasks(self, driver: Process) -> str:
        with_tasks = self.rng.random() < 0.5
        for process in [driver, *(self._more_faults.processes("task") if with_tasks else ())]:
            self.clock.kill(process)
        seconds = self.rng.choice(RESTART_S)
        self.clock.at(seconds, self._start_driver)
        return f"{driver.name} is killed{' with tasks' * with_tasks}, back in {seconds} s"

    def _second_driver(self) -> str:
        if len(self._more_faults.processes("driver")) >= MAX_DRIVERS:
            return "nobody"
        self._start_driver()
        return self.clock.processes[-1].name

    def _settle(self) -> str:
        if self.has_written or self._more_faults.processes("settling"):
            return "nobody"
        return self.clock.start(f"settling {len(self.clock.processes)}", lambda: self._committer().recover()).name

    def _zombie(self) -> str:
        if not self._attempts or self.has_written or len(self._more_faults.processes("task")) >= MAX_TASKS:
            return "nobody"
        return self._start_attempt(self.rng.choice(self._attempts[-10:])).name

    def __str__(self) -> str:
        batches = [str(batch) for batch in self.batches]
        return self._told(f"{self.coordinators.version.name}, {batches} of {self.rows} rows", 200)
