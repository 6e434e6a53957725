"""Spark as the sink sees it: runs of a query, their task attempts, and what can happen to them.

At each moment one actor's request is carried out: an undisturbed world lets an actor go on until it ends or waits. All
else is a `Disturbance`, of which a test allows a few, at any moments.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from pyspark_kafka_meta.errors import FencedError
from pyspark_kafka_meta.model import OpenTransaction, ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka_meta.write.exactly_once.commit_protocol import Protocol, commit, recover
from pyspark_kafka_meta.write.exactly_once.decision import BATCH, STREAM, BatchId, Decisions, is_written
from tests.unit.write.exactly_once.model import (
    SINK_ID,
    DriverModel,
    KafkaModel,
    Request,
    Requests,
    Row,
    Violation,
    text,
)

MAX_TASK_FAILURES = 4
"""spark.task.maxFailures."""
MAX_RUNS = 12
"""More than the disturbances can cause: a query that fails again and again by itself."""


class Disturbance(Enum):
    CRASH = "the driver dies after the request, and a new run begins"
    ERROR = "the response is lost: an error in the driver"
    RESTART = "the response is lost: an error in the driver, whose Python processes the next run uses"
    REPEAT = "the response is lost: the request is repeated"
    PAUSE = "a new run begins, but the old one goes on later"
    SPECULATE = "a further attempt begins, but the old one goes on later"
    FAIL = "the response is lost: the task attempt aborts its transaction and fails"
    KILL = "the task attempt dies after the request"
    SWITCH = "goes on"
    TIME_OUT = "times out"
    MARKER = "the response comes before the markers"
    LATE = "an EndTxn that was sent twice arrives again, in the next transaction"

    __hash__ = object.__hash__  # Enum's own is slow


OF_OTHERS = {Disturbance.SWITCH, Disturbance.TIME_OUT, Disturbance.LATE}
"""They are not of the current actor."""


class Choice(NamedTuple):
    """What happens next. `name` is that of the actor, or a transactional id."""

    disturbance: Disturbance | None
    name: str


class Failure(Exception):  # noqa: N818
    """Fails an attempt, or a run."""


@dataclass(frozen=True)
class Scenario:
    """What is explored.

    Attributes:
        overlapping: the batches are batch writes without txnAppId, each of a driver of its own, all at once. Nobody
            repeats one that fails: all of its rows must be visible, or none. Else they are micro-batches of one query.
        rows: of each task of each batch.
        may_copy: whether records may be copied although none of the disturbances aborts transactions.
    """

    version: TransactionVersion = TransactionVersion.V2
    batches: int = 2
    overlapping: bool = False
    tasks: int = 1
    rows: int = 1
    disturbances: frozenset[Disturbance] = frozenset(Disturbance)
    may_copy: bool = True
    recover: Callable[..., Protocol[Decisions]] = recover
    commit: Callable[..., Protocol[None]] = commit

    def batch_id(self, number: int) -> BatchId:
        return BatchId(BATCH, f"write {number}", number) if self.overlapping else BatchId(STREAM, "query", number)

    def input_rows(self, batch: int, task: int) -> list[Row]:
        return [Row(batch, task, number) for number in range(self.rows)]


@dataclass
class Job:
    """The tasks of a batch: the first message of each task counts."""

    tasks: int
    messages: dict[int, OpenTransaction] = field(default_factory=dict)
    failures: int = 0

    def report(self, task: int, transaction: OpenTransaction) -> None:
        self.messages.setdefault(task, transaction)

    def first_messages(self) -> tuple[tuple[int, OpenTransaction], ...]:
        return tuple(sorted(self.messages.items()))

    @property
    def is_done(self) -> bool:
        return len(self.messages) == self.tasks or self.failures >= MAX_TASK_FAILURES


Actions: TypeAlias = Generator[Request | Job, Any, Any]
"""Requests, and jobs that are waited for."""


class Attempt(NamedTuple):
    """A task attempt."""

    run: int
    job: Job
    batch: int
    task: int
    number: int

    def __str__(self) -> str:
        return f"run {self.run} batch {self.batch} task {self.task} attempt {self.number}"


class Processes(NamedTuple):
    """The Python processes beside a driver of Spark."""

    planner: DriverModel
    committer: DriverModel


class Actor:
    """A run of a query, or a task attempt: what it does next, and a hash of all that it knows.

    Attributes:
        processes: of a run.
        keeps_processes: whether the next run uses them, if this one fails.
    """

    def __init__(
        self,
        name: str,
        run: int,
        actions: Actions,
        attempt: Attempt | None = None,
        processes: Processes | None = None,
        knowledge: int = 0,
    ) -> None:
        """
        Args:
            knowledge: of the processes.
        """
        self.name, self.run, self.attempt = name, run, attempt
        self.processes, self.knowledge, self.keeps_processes = processes, knowledge, False
        self._actions = actions
        self.next: Request | Job = next(actions)

    @property
    def can_go_on(self) -> bool:
        return not isinstance(self.next, Job) or self.next.is_done

    @property
    def order(self) -> tuple[int, ...]:
        """Of undisturbed actors: the last run, its tasks before its driver."""
        return (-self.run, *((0, self.attempt.task, self.attempt.number) if self.attempt else (1,)))

    def key(self) -> tuple[Any, ...]:
        """Equal for equal states."""
        job = self.next if isinstance(self.next, Job) else self.attempt.job if self.attempt else None
        return (self.name, self.knowledge, self.keeps_processes, job and (job.failures, job.first_messages()))

    def request(self) -> Any:
        if isinstance(self.next, Job):
            return self.next.first_messages()
        function, arguments = self.next
        return function(*arguments)

    def go_on(self, result: Any) -> None:
        """Raises StopIteration at its end, and Failure."""
        self.knowledge = hash((self.knowledge, result))
        self.next = self._actions.send(result)

    def die(self) -> None:
        raise Failure

    def fail(self, error: Exception) -> None:
        """Raises as `go_on`."""
        self.knowledge = hash((self.knowledge, "error"))
        self.next = self._actions.throw(error)

    def __str__(self) -> str:
        if isinstance(self.next, Job):
            return f"{self.name}: all tasks have ended"
        function, arguments = self.next
        return f"{self.name}: {function.__name__}({', '.join(map(text, arguments))})"


class World:
    """Brokers, runs and tasks."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.kafka = KafkaModel(scenario.version)
        self.spark_log: set[int] = set()
        """Batches in the commit log of the checkpoint, or whose write has returned."""
        self._actors: list[Actor] = []
        self._runs = 0
        self._is_closing = False
        self._current: Actor
        if scenario.overlapping:
            self._runs = scenario.batches
            for number in range(scenario.batches):
                self._start_run(f"write {number}", number + 1, number)
            self._choose()
        else:
            self._begin_run()

    # --- what can happen next ----------------------------------------------------------------------------------------

    def undisturbed(self) -> Choice | None:
        """What happens next if nothing goes wrong. None at the end."""
        return Choice(None, self._current.name) if self._actors else None

    def disturbances(self) -> Iterator[Choice]:
        """All that can go wrong now."""
        if self._is_closing:
            return
        allowed, current = self.scenario.disturbances, self._current
        for disturbance in self._disturbances_of(current):
            if disturbance in allowed:
                yield Choice(disturbance, current.name)
        if Disturbance.SWITCH in allowed:
            for actor in self._actors:
                if actor is not current and actor.can_go_on:
                    yield Choice(Disturbance.SWITCH, actor.name)
        yield from self._disturbances_of_coordinators()

    def _disturbances_of_coordinators(self) -> Iterator[Choice]:
        if Disturbance.TIME_OUT in self.scenario.disturbances:
            for name in self.kafka.open_ids():
                yield Choice(Disturbance.TIME_OUT, name)
        if Disturbance.LATE in self.scenario.disturbances:
            for name in self.kafka.ids_that_end_again():
                yield Choice(Disturbance.LATE, name)

    def _disturbances_of(self, current: Actor) -> Iterator[Disturbance]:
        yield Disturbance.REPEAT
        if not isinstance(current.next, Job) and current.next[0] == self.kafka.end:
            yield Disturbance.MARKER
        is_last_run = current.run == self._runs
        if current.attempt is None:
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
        match disturbance:
            case None | Disturbance.MARKER:
                self.kafka.delays_markers = disturbance is Disturbance.MARKER
                self._go_on(current, current.request())
                self.kafka.delays_markers = False
            case Disturbance.REPEAT:
                current.request()
                self._go_on(current, current.request())
            case Disturbance.CRASH:
                current.request()
                self._actors.remove(current)
                self._begin_run()
            case Disturbance.KILL:
                current.request()
                self._end(current, current.die)
            case Disturbance.ERROR | Disturbance.RESTART | Disturbance.FAIL:
                current.request()
                current.keeps_processes |= disturbance is Disturbance.RESTART
                self._end(current, lambda: current.fail(Failure(disturbance.value)))
            case Disturbance.PAUSE:
                self._begin_run()
            case Disturbance.SPECULATE:
                assert current.attempt is not None
                self._current = self._begin_next_attempt(current.attempt)
            case Disturbance.SWITCH:
                self._current = next(actor for actor in self._actors if actor.name == name)
            case Disturbance.TIME_OUT | Disturbance.LATE:
                (self.kafka.time_out if disturbance is Disturbance.TIME_OUT else self.kafka.end_again)(name)

    def describe(self, choice: Choice) -> str:
        """For a trace, before it happens."""
        disturbance, name = choice
        if disturbance is None:
            return str(self._current)
        about = "" if disturbance in OF_OTHERS else f"{self._current}: "
        return f"* {about or name + ' '}{disturbance.value}"

    def key(self) -> int:
        """Equal for equal states, as far as hashes tell."""
        actors = tuple(actor.key() for actor in self._actors)
        return hash((actors, self._current.name, self.kafka.key(), tuple(self.spark_log), self._runs, self._is_closing))

    def _go_on(self, actor: Actor, result: Any) -> None:
        self._end(actor, lambda: actor.go_on(result))

    def _end(self, actor: Actor, action: Callable[[], None]) -> None:
        """Carry out an action that may end the actor, and choose who goes on."""
        try:
            action()
        except StopIteration:
            self._actors.remove(actor)
        except (Failure, FencedError):
            self._actors.remove(actor)
            if actor.attempt is not None:
                self._retry(actor.attempt)
            elif actor.run == self._runs:
                self._begin_run(actor if actor.keeps_processes else None)
        if not actor.can_go_on or actor not in self._actors:
            self._choose()

    def _choose(self) -> None:
        """Let the actors of the last run go on, then those of earlier runs, then settle what is left."""
        if not self._actors and not self._is_closing:
            self._is_closing = True
            self._runs += 1
            last = DriverModel(self.kafka).carry_out(self.scenario.recover())
            self._actors.append(Actor("last recovery", self._runs, last))
        if self._actors:
            self._current = min((actor for actor in self._actors if actor.can_go_on), key=lambda actor: actor.order)

    def _begin_run(self, kept: Actor | None = None) -> None:
        """Begin a run of the query, if there is anything left to do. Nobody repeats a batch write.

        Args:
            kept: the run before, if its Python processes are used again.
        """
        if not self._is_complete and not self.scenario.overlapping:
            self._runs += 1
            if self._runs > MAX_RUNS:
                raise Violation("the query fails again and again")
            self._start_run(f"run {self._runs}", self._runs, len(self.spark_log), kept)
        self._choose()

    def _start_run(self, name: str, number: int, first_batch: int, kept: Actor | None = None) -> None:
        processes = (kept and kept.processes) or Processes(DriverModel(self.kafka), DriverModel(self.kafka))
        actions, knowledge = self._run(number, first_batch, processes), kept.knowledge if kept else 0
        self._actors.append(Actor(name, self._runs, actions, processes=processes, knowledge=knowledge))

    def _run(self, run: int, first_batch: int, processes: Processes) -> Actions:
        last_batch = first_batch if self.scenario.overlapping else self.scenario.batches - 1
        try:
            for batch in range(first_batch, last_batch + 1):
                yield from self._batch(processes, run, batch)
        except (Failure, FencedError):
            yield from processes.committer.carry_out(self.scenario.recover())  # Spark calls abort
            raise

    def _batch(self, processes: Processes, run: int, batch: int) -> Actions:
        decisions = yield from processes.planner.plan(self.scenario.recover)
        transactions: tuple[OpenTransaction, ...] = ()
        if not is_written(decisions, self.scenario.batch_id(batch)):
            job = Job(self.scenario.tasks)
            for task in range(job.tasks):
                self._begin_attempt(Attempt(run, job, batch, task, 0))
            messages = yield job
            if len(messages) < job.tasks:
                raise Failure("a task failed too often")
            transactions = tuple(message for _, message in messages)
        yield from processes.committer.commit(self.scenario.commit(self.scenario.batch_id(batch), transactions, 0))
        yield self.spark_log.add, (batch,)

    def _begin_attempt(self, attempt: Attempt) -> Actor:
        actor = Actor(str(attempt), attempt.run, self._attempt(attempt), attempt)
        self._actors.append(actor)
        return actor

    def _begin_next_attempt(self, attempt: Attempt) -> Actor:
        return self._begin_attempt(attempt._replace(number=attempt.number + 1))

    def _retry(self, attempt: Attempt) -> None:
        attempt.job.failures += 1
        if not attempt.job.is_done and attempt.task not in attempt.job.messages:
            self._begin_next_attempt(attempt)

    def _attempt(self, attempt: Attempt) -> Requests[None]:
        name = f"{SINK_ID}/{attempt.task}/{attempt.number}"
        producer: ProducerIdAndEpoch = yield self.kafka.init_producer, (name,)
        try:
            for row in self.scenario.input_rows(attempt.batch, attempt.task):
                if not (yield self.kafka.produce, (name, producer, (row,))):
                    raise FencedError(f"{name} is fenced")
        except Failure:
            yield self.kafka.abort, (name, producer)
            raise
        yield attempt.job.report, (attempt.task, OpenTransaction(name, producer, ()))

    # --- at the end --------------------------------------------------------------------------------------------------

    def require_exactly_once(self) -> None:
        """After the last recovery. Raises Violation."""
        self.kafka.write_all_markers()
        rows = {record.value for record in self.kafka.visible() if isinstance(record.value, Row)}
        missing = [
            row
            for batch in range(self.scenario.batches)
            if not self.scenario.overlapping or batch in self.spark_log or any(row.batch == batch for row in rows)
            for task in range(self.scenario.tasks)
            for row in self.scenario.input_rows(batch, task)
            if row not in rows
        ]
        if missing:
            raise Violation(f"rows are missing: {text(missing)}")
        if open_ids := self.kafka.open_ids():
            raise Violation(f"transactions are open: {text(open_ids)}")
        if self.kafka.copies() and not self.scenario.may_copy:
            raise Violation("rows are copied, although no broker aborted them")
