"""A sink in the world of fakes: Spark's drivers with their committers, task attempts, and what can befall them.

Drivers and attempts are processes with clients of their own, over one `FakeCluster`. They run `BatchCommitter` and
`TransactionalProducer` as Spark does, and stop before each request that changes something in Kafka, or that asks
coordinators what is open. An undisturbed world lets a process go on until it ends or waits. All else is a
`Disturbance`, of which a test allows a few, at any stops: `test_explored_commits` chooses them.
`histories/commit_history.py` has the brokers' faults.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.kafka.protocol.produce import ProduceRequest
from pyspark_kafka_meta.kafka.protocol.transactions import (
    AddPartitionsRequest,
    DescribeTransactionsRequest,
    EndTransactionRequest,
    ListTransactionsRequest,
    ProducerIdRequest,
)
from pyspark_kafka_meta.kafka.records.batches import read_batch_headers
from pyspark_kafka_meta.model import OpenTransaction, TopicPartition, TransactionVersion
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.write.exactly_once.batch_committer import BatchCommitter
from pyspark_kafka_meta.write.exactly_once.decision import (
    BATCH,
    STREAM,
    BatchId,
    RecordKey,
    TransactionPlan,
    is_written,
    parse_decision,
)
from pyspark_kafka_meta.write.task_writer import TaskWriter
from pyspark_kafka_meta.write.transactional_producer import TransactionalProducer
from tests.partitions import T0
from tests.unit.fake_cluster import FakeCluster
from tests.unit.fake_coordinators import ONGOING
from tests.unit.fake_network import FakeClock, FakeNetwork
from tests.unit.fake_requests import FakeRequests
from tests.unit.histories.commit_checks import CommittedRecords
from tests.unit.histories.commit_history import COLUMNS
from tests.unit.histories.commit_network import PREPARE_COMMIT, LateCoordinators
from tests.unit.histories.processes import Killed, Process
from tests.unit.scene import RecordingPublisher
from tests.unit.write.exactly_once.commit_scene import DECISIONS, SINK
from tests.unit.write.writer_scene import rows

MAX_TASK_FAILURES = 4
"""spark.task.maxFailures."""
MAX_RUNS = 12
"""More than the disturbances can cause: a query that fails again and again by itself."""
ALL = "all open transactions"
MARKER_S = 0.15
"""Of late markers."""
STOPS = (
    ProduceRequest,
    AddPartitionsRequest,
    EndTransactionRequest,
    ProducerIdRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
OPTIONS = SinkOptions.parse(
    {
        "kafka.bootstrap.servers": "broker-1:9092",
        "topic": "t",
        "kafka.transactional.id": SINK,
        "kafka.transaction.timeout.ms": "60000",
    }
)


class Violation(Exception):  # noqa: N818
    """What a user of the sink would see and must not."""


class Disturbance(Enum):
    CRASH = "the driver dies after the request, and a new run begins"
    ERROR = "the response is lost: an error in the driver, and a new run begins"
    RESTART = "the response is lost: an error in the driver, whose Python processes the next run uses"
    REPEAT = "the response is lost: the request is sent again"
    PAUSE = "a new run begins, but the old one goes on later"
    SPECULATE = "a further attempt begins, but the old one goes on later"
    FAIL = "the response is lost: the task attempt aborts its transaction and fails"
    KILL = "the task attempt dies after the request"
    SWITCH = "goes on"
    TIME_OUT = "times out"
    MARKER = "the response comes before the markers"
    STALE = "its leader of the decisions topic was replaced, and shows no decision, until the next write there"
    LATE = "an EndTxn that was sent twice arrives again, in the next transaction"

    __hash__ = object.__hash__  # Enum's own is slow


class Choice(NamedTuple):
    """What happens next. `name` is that of the process, or a transactional id."""

    disturbance: Disturbance | None
    name: str

    def __str__(self) -> str:
        return f"* {self.name}: {self.disturbance.value}" if self.disturbance else self.name


class FailedError(KafkaMetaError):
    """Fails an attempt, or a run."""


@dataclass(frozen=True)
class Scenario:
    """What is explored.

    Attributes:
        overlapping: the batches are batch writes without txnAppId, each of a driver of its own, all at once. Nobody
            repeats one that fails: all of its rows must be visible, or none. Else they are micro-batches of one query.
        rows: of each task of each batch.
        order: the kinds of the first disturbance, the second one and so on, instead of any of `disturbances`.
        begins_at: the first stop that may be disturbed.
        may_copy: whether records may be copied although none of the disturbances aborts transactions.
    """

    version: TransactionVersion = TransactionVersion.V2
    batches: int = 2
    overlapping: bool = False
    tasks: int = 1
    rows: int = 1
    disturbances: frozenset[Disturbance] = frozenset(Disturbance)
    order: tuple[Disturbance, ...] = ()
    begins_at: int = 0
    may_copy: bool = True

    def allowed(self, taken: int) -> frozenset[Disturbance]:
        """After so many disturbances."""
        return frozenset(self.order[taken : taken + 1]) if self.order else self.disturbances

    def batch_id(self, number: int) -> BatchId:
        return BatchId(BATCH, f"write {number}", 0) if self.overlapping else BatchId(STREAM, "query", number)

    def task_rows(self, batch: int, task: int) -> range:
        first = 100 * batch + 10 * task
        return range(first, first + self.rows)

    def batch_rows(self, batch: int) -> list[int]:
        return [row for task in range(self.tasks) for row in self.task_rows(batch, task)]


@dataclass
class Job:
    """The tasks of a batch: the first message of each task counts."""

    tasks: int
    messages: dict[int, OpenTransaction] = field(default_factory=dict)
    failures: int = 0

    @property
    def is_done(self) -> bool:
        return len(self.messages) == self.tasks or self.failures >= MAX_TASK_FAILURES


class Attempt(NamedTuple):
    """A task attempt."""

    job: Job
    plan: TransactionPlan
    batch: int
    task: int
    number: int


class Processes(NamedTuple):
    """The Python processes beside a driver of Spark."""

    planner: BatchCommitter
    committer: BatchCommitter


class Actor(Process):
    """A run of a query, or a task attempt, which has stopped before a request, or waits for a job.

    Attributes:
        request: that it is about to send.
        dies: once a broker has handled the request; at once if none is sent. So with `fails`.
        fails: an error comes in place of the response.
        loses: the response is lost, and the client sends the request again.
        keeps_processes: whether the next run uses those of this one, if it fails.
    """

    request: Any = None
    job: Job | None = None
    dies = fails = loses = keeps_processes = False
    processes: Processes
    run_number: int
    attempt: Attempt | None = None

    @property
    def has_begun(self) -> bool:
        return self.request is not None or self.job is not None

    @property
    def can_go_on(self) -> bool:
        return self.job is None or self.job.is_done

    @property
    def order(self) -> tuple[int, ...]:
        """Of undisturbed actors: the last run, its tasks before its driver."""
        return (-self.run_number, *((0, self.attempt.task, self.attempt.number) if self.attempt else (1,)))

    def stop(self) -> None:
        if not self.is_killed:
            self.park()
        if self.is_killed:
            raise Killed
        if self.request is None or isinstance(self.request, str):
            self.strike()

    def strike(self) -> None:
        """Raises Killed or FailedError if a disturbance ends the actor here."""
        if self.dies:
            self.is_killed = True
            raise Killed
        if self.fails:
            self.fails = False
            raise FailedError("the response is lost")


class WorldNetwork(FakeNetwork):
    """The network of one client."""

    def __init__(self, world: World) -> None:
        super().__init__(world.cluster, world.clock)
        self.configs[DECISIONS.topic] = {"cleanup.policy": "compact"}
        self.replica_ends = world.replica_ends
        self._world = world

    def handle(self, requests: FakeRequests[Any, Any], node_id: int, request: Any, sent_at: float) -> Any:
        if not isinstance(request, STOPS):
            return super().handle(requests, node_id, request, sent_at)
        actor = self._world.stop(request)
        if isinstance(request, ProduceRequest) and request.partitions[0].partition == DECISIONS:
            self.replica_ends.clear()
        response = super().handle(requests, node_id, request, sent_at)
        self._world.marker_s = 0.0
        actor.strike()
        if not actor.loses:
            return response
        actor.loses = False
        requests.in_flight.pop(node_id, None)
        return RequestFailure(node_id, ConnectError(f"broker {node_id} closed the connection"))


class World:
    """Brokers, runs and tasks.

    Attributes:
        spark_log: batches in the commit log of the checkpoint, or whose write has returned.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = FakeClock()
        self.cluster = FakeCluster(brokers=1)
        for topic in (T0.topic, DECISIONS.topic):
            self.cluster.create_topic(topic)
        self.marker_s = 0.0
        self.coordinators = LateCoordinators(self.cluster, self.clock, lambda: self.marker_s)
        self.coordinators.version = scenario.version
        self.cluster.coordinators = self.coordinators
        self.replica_ends: dict[tuple[int, TopicPartition], int] = {}
        self.spark_log: set[int] = set()
        self._rows, self._decisions = (CommittedRecords(self.cluster, each) for each in (T0, DECISIONS))
        self._visible = list[int]()
        self._ended: dict[str, EndTransactionRequest] = {}  # the last EndTxn of each id
        self._until_parked = threading.Lock()
        self._until_parked.acquire()
        self._actors: list[Actor] = []
        self._all: list[Actor] = []
        self._runs = self._stops = self._taken = self._preferred = 0
        self._is_closing = False
        self._current: Actor
        if scenario.overlapping:
            for number in range(scenario.batches):
                self._begin_run(number)
        else:
            self._begin_next_run()
        self._choose()

    # --- what can happen next ----------------------------------------------------------------------------------------

    def undisturbed(self) -> Choice | None:
        """What happens next if nothing goes wrong. None at the end."""
        return Choice(None, f"{self._current.name}: {_text(self._current)}") if self._actors else None

    def disturbances(self) -> Iterator[Choice]:
        """All that can go wrong now."""
        allowed, current = self.scenario.allowed(self._taken), self._current
        if self._is_closing or not current.has_begun or self._stops < self.scenario.begins_at:
            return
        yield from (Choice(each, current.name) for each in self._of_current() if each in allowed)
        if Disturbance.SWITCH in allowed:
            others = (actor for actor in self._actors if actor is not current and actor.can_go_on)
            yield from (Choice(Disturbance.SWITCH, actor.name) for actor in others)
        opened = self._open_ids()
        if Disturbance.TIME_OUT in allowed:
            yield from (Choice(Disturbance.TIME_OUT, name) for name in [*opened, *([ALL] if len(opened) > 1 else [])])
        if Disturbance.LATE in allowed:
            ended = {name: self._ended[name].producer for name in opened if name in self._ended}
            again = (name for name in ended if ended[name] == self.coordinators.transactions[name].producer)
            yield from (Choice(Disturbance.LATE, name) for name in again)

    def _open_ids(self) -> list[str]:
        """The transactional ids of open transactions that have not begun to end."""
        return [name for name, known in self.coordinators.transactions.items() if known.state == ONGOING]

    def _of_current(self) -> Iterator[Disturbance]:
        current = self._current
        if current.job is None and not isinstance(current.request, str):
            yield Disturbance.REPEAT
        if isinstance(current.request, EndTransactionRequest):
            yield Disturbance.MARKER
        is_last_run = current.run_number == self._runs
        if current.attempt is None:
            if self.cluster.logs[DECISIONS] and not self.replica_ends:
                yield Disturbance.STALE
            yield Disturbance.ERROR
            if is_last_run:
                yield Disturbance.RESTART
        else:
            yield Disturbance.FAIL
            yield Disturbance.KILL
            if current.attempt.number == 0 and is_last_run:
                yield Disturbance.SPECULATE
        if is_last_run and not self._is_complete:
            if not self.scenario.overlapping:
                yield Disturbance.PAUSE
            if current.attempt is None:
                yield Disturbance.CRASH

    @property
    def _is_complete(self) -> bool:
        return len(self.spark_log) == self.scenario.batches

    # --- let it happen -----------------------------------------------------------------------------------------------

    def take(self, choice: Choice) -> None:
        """Raises Violation."""
        disturbance, name = choice
        current = self._current
        self._stops += 1
        self._taken += disturbance is not None
        match disturbance:
            case Disturbance.PAUSE:
                self._begin_next_run()
                self._choose()
            case Disturbance.SPECULATE:
                assert current.attempt is not None
                self._current = self._begin_next_attempt(current)
            case Disturbance.SWITCH:
                self._current = next(actor for actor in self._actors if actor.name == name)
                self._preferred = self._current.run_number
            case Disturbance.TIME_OUT:
                for each in self._open_ids() if name == ALL else [name]:
                    self.coordinators.time_out(each)
            case Disturbance.STALE:
                self.replica_ends[1, DECISIONS] = 0
            case Disturbance.LATE:
                again = self._ended[name]
                self.coordinators.end(name, again.producer, again.committed, again.version)
            case _:
                self.marker_s = MARKER_S * (disturbance is Disturbance.MARKER)
                current.loses = disturbance is Disturbance.REPEAT
                current.fails = disturbance in (Disturbance.ERROR, Disturbance.RESTART, Disturbance.FAIL)
                current.dies = disturbance in (Disturbance.CRASH, Disturbance.KILL)
                current.keeps_processes |= disturbance is Disturbance.RESTART
                self._go_on(current)
        self._require_decided()

    def close(self) -> None:
        for actor in self._all:
            if not actor.has_ended:
                self._current, actor.is_killed = actor, True
                actor.run()
            actor.join()

    def stop(self, request: Any) -> Actor:
        """Called by a process which is about to send a request."""
        actor = self._current
        actor.request = request
        actor.stop()
        actor.request = None
        if isinstance(request, EndTransactionRequest):
            self._ended[request.transactional_id] = request
        return actor

    def _go_on(self, actor: Actor) -> None:
        """Let an actor go on until it stops or ends, and choose who goes on then."""
        self._current = actor
        actor.run()
        if actor.has_ended:
            self._actors.remove(actor)
            if actor.error is not None and not isinstance(actor.error, KafkaMetaError):
                raise actor.error
            if actor.error is not None or actor.is_killed:
                self._begin_again(actor)
        if actor.has_ended or not actor.can_go_on:
            self._choose()

    def _begin_again(self, actor: Actor) -> None:
        if actor.attempt is not None:
            job = actor.attempt.job
            job.failures += 1
            if not job.is_done and actor.attempt.task not in job.messages:
                self._begin_next_attempt(actor)
        elif actor.run_number == self._runs:
            self._begin_next_run(actor.processes if actor.keeps_processes else None)

    def _choose(self) -> None:
        """Let the actors of the run go on that was switched to, then those of the last run, then those of earlier
        runs; then settle what is left."""
        if not self._actors and not self._is_closing:
            self._is_closing = True
            self._runs += 1
            self._begin(Actor("last recovery", lambda: self._committer().recover(), self._until_parked), self._runs)
        if self._actors:
            able = (actor for actor in self._actors if actor.can_go_on)
            self._current = min(able, key=lambda actor: (actor.run_number != self._preferred, *actor.order))

    def _begin(self, actor: Actor, run: int, attempt: Attempt | None = None) -> Actor:
        actor.run_number, actor.attempt = run, attempt
        self._actors.append(actor)
        self._all.append(actor)
        return actor

    # --- runs and attempts -------------------------------------------------------------------------------------------

    def _begin_next_run(self, processes: Processes | None = None) -> None:
        """Begin a run of the query, if there is anything left to do. Nobody repeats a batch write.

        Args:
            processes: of the run before, if they are used again.
        """
        if self._is_complete or self.scenario.overlapping:
            return
        if self._runs == MAX_RUNS:
            raise Violation("the query fails again and again")
        self._begin_run(len(self.spark_log), processes)

    def _begin_run(self, first: int, processes: Processes | None = None) -> None:
        self._runs += 1
        self._preferred = 0
        last = first if self.scenario.overlapping else self.scenario.batches - 1
        used = processes or Processes(self._committer(), self._committer())
        actor = Actor(f"run {self._runs}", lambda: self._run(used, range(first, last + 1)), self._until_parked)
        actor.processes = used
        self._begin(actor, self._runs)

    def _run(self, processes: Processes, batches: Sequence[int]) -> None:
        """As Spark's driver."""
        try:
            for batch in batches:
                self._write_batch(processes, batch)
        except KafkaMetaError:
            processes.committer.abort(self.scenario.tasks, all_ended=True)
            raise

    def _write_batch(self, processes: Processes, batch: int) -> None:
        driver, batch_id = self._current, self.scenario.batch_id(batch)
        plan = processes.planner.plan(batch_id.series)
        transactions: list[OpenTransaction] = []
        if not is_written(plan.decisions, batch_id):
            driver.job = job = Job(self.scenario.tasks)
            for task in range(job.tasks):
                self._begin_attempt(driver.run_number, Attempt(job, plan, batch, task, 0))
            driver.stop()
            driver.job = None
            if len(job.messages) < job.tasks:
                raise FailedError("a task failed too often")
            transactions = [job.messages[task] for task in range(job.tasks)]
        processes.committer.commit(batch_id, transactions, 0)
        self.stop(f"{batch_id} is logged")
        self.spark_log.add(batch)

    def _begin_attempt(self, run: int, attempt: Attempt) -> Actor:
        name = f"run {run} batch {attempt.batch} task {attempt.task} attempt {attempt.number}"
        return self._begin(Actor(name, lambda: self._write(attempt), self._until_parked), run, attempt)

    def _begin_next_attempt(self, actor: Actor) -> Actor:
        assert actor.attempt is not None
        return self._begin_attempt(actor.run_number, actor.attempt._replace(number=actor.attempt.number + 1))

    def _write(self, attempt: Attempt) -> None:
        """As an attempt: each row is in a request of its own."""
        job, plan, batch, task, number = attempt
        client = self._client()
        producer = TransactionalProducer(client, plan.task_id(task, number), plan.timeout_ms, plan.version)
        writer = TaskWriter(client, OPTIONS.producer, COLUMNS, T0.topic, producer, rng=random.Random(0))
        for row in self.scenario.task_rows(batch, task):
            written = writer.write([rows(key=[b"k"], value=[b"%d" % row], partition=[0])])
        opened = producer.opened(written)
        assert opened is not None
        job.messages.setdefault(task, opened)

    def _committer(self) -> BatchCommitter:
        return BatchCommitter(self._client(), OPTIONS)

    def _client(self) -> KafkaClient:
        return KafkaClient(
            OPTIONS.client,
            RecordingPublisher([]),
            network=WorldNetwork(self),
            clock=self.clock,
            sleep=self.clock.sleep,
            rng=random.Random(0),
        )

    # --- what must be true -------------------------------------------------------------------------------------------

    def _require_decided(self) -> None:
        """At any time. A decision counts once EndTxn is acknowledged: its marker may be late."""
        if len(found := self._rows.read()) == len(self._visible):
            return
        self._visible = [int(row) for _, row in found]
        sink = self.coordinators.transactions.get(SINK)
        is_ending = sink is not None and sink.state == PREPARE_COMMIT
        records = self._decisions.read([sink.producer.producer_id] if sink is not None and is_ending else [])
        decided = {
            parse_decision(key, value).batch
            for json, value in records
            if (key := RecordKey.parse(json)) and key.note is None
        }
        undecided = [row for row in self._visible if self.scenario.batch_id(row // 100) not in decided]
        if undecided:
            raise Violation(f"rows are visible although their batch is undecided: {undecided}")

    def require_exactly_once(self) -> None:
        """After the last recovery. Raises Violation."""
        self.clock.sleep(MARKER_S)
        self._require_decided()
        scenario, found = self.scenario, self._visible
        if len(set(found)) < len(found):
            raise Violation(f"rows are visible twice: {found}")
        batches, of_tasks = [row // 100 for row in found], dict[int, list[int]]()
        for row in found:  # of overlapping batches, those of each are in order
            of_tasks.setdefault(row // 10 % (1000 if scenario.overlapping else 10), []).append(row)
        is_in_order = scenario.overlapping or batches == sorted(batches)
        if not is_in_order or any(rows != sorted(rows) for rows in of_tasks.values()):
            raise Violation(f"rows are visible out of order: {found}")
        for batch in range(scenario.batches):
            expected = set(scenario.batch_rows(batch))
            is_due = not scenario.overlapping or batch in self.spark_log or expected & set(found)
            if is_due and not expected <= set(found):
                raise Violation(f"rows are missing: {expected - set(found)}")
        if opened := [each for each in self.coordinators.transactions if self.coordinators.is_open(each)]:
            raise Violation(f"transactions are open: {opened}")
        if self._copies() and not scenario.may_copy:
            raise Violation("rows are copied, although no broker aborted them")

    def _copies(self) -> int:
        """How many batches of rows the drivers have written."""
        own = self.coordinators.transactions[SINK].producer.producer_id
        headers = [read_batch_headers(batch.data)[0] for batch in self.cluster.logs[T0]]
        return sum(header.producer_id == own and not header.is_control for header in headers)


def _text(actor: Actor) -> str:
    """What an actor does next, for a trace."""
    if actor.request is None or isinstance(actor.request, str):
        return actor.request or "goes on"
    return f"{type(actor.request).__name__} {getattr(actor.request, 'transactional_id', None)}"
