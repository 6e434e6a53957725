"""`SteppedSource`: this sink, with a driver that records each step of the commit protocol, and can be killed there.

The first attempt of task 0 can pause, at random, amid its rows or with all of them in its open transaction: Spark
starts a speculative copy, or a kill comes.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import GeneratorType
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from benchmarks.processes import kill_session
from pyspark_kafka_meta import KafkaMetaDataSource
from pyspark_kafka_meta.spark.stream_api import DataSourceStreamArrowWriter
from pyspark_kafka_meta.write.exactly_once import batch_committer
from pyspark_kafka_meta.write.exactly_once.commit_protocol import Protocol, Step, WriteDecision, WriteSettled
from pyspark_kafka_meta.write.exactly_once.step_runner import StepRunner

DURING_S = 0.02
"""A kill during a step comes at most this long after its start. Most steps take 2 to 20 ms."""
KILL, KILLED, STEPS = "kill.json", "killed.json", "steps.jsonl"
"""Files: the place of the next kill, of the last one, and the steps of all runs."""

T = TypeVar("T")


class Place(NamedTuple):
    """A moment in the driver's protocol (commit or recover): before, during or after a step, by its class."""

    protocol: str
    step: str
    when: str

    def __str__(self) -> str:
        return f"{self.protocol}: {self.when} {self.step}"

    def arm(self, folder: Path) -> None:
        """Have the driver killed when it gets here."""
        (folder / KILL).write_text(json.dumps(self))


def last_kill(folder: Path) -> Place | None:
    """Where a driver was killed since the last call, if it got to the armed place. Disarms."""
    (folder / KILL).unlink(missing_ok=True)
    file = folder / KILLED
    if not file.exists():
        return None
    place = Place(*json.loads(file.read_text()))
    file.unlink()
    return place


class TakenStep(NamedTuple):
    """A step that a driver has carried out.

    Attributes:
        later_attempts: transactions of a written decision whose tasks had been tried before.
        copied: aborted transactions that were copied.
    """

    protocol: str
    step: str
    ms: float
    later_attempts: int
    copied: int

    @classmethod
    def of(cls, protocol: str, step: Step, ms: float, result: Any) -> TakenStep:
        later_attempts = copied = 0
        match step:
            case WriteDecision(decision) if result:
                later_attempts = sum(not each.transactional_id.endswith("/0") for each in decision.transactions)
            case WriteSettled(_, aborted) if result:
                copied = len(aborted)
        return cls(protocol, type(step).__name__, ms, later_attempts, copied)


def taken_steps(folder: Path) -> list[TakenStep]:
    file = folder / STEPS
    return [TakenStep(*json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


class SteppedRunner(StepRunner):
    """Records its steps in `folder`, and dies with its driver at the place that a file there names."""

    folder: ClassVar[Path]
    _protocol = ""

    def carry_out(self, protocol: Protocol[T]) -> T:
        self._protocol = cast("GeneratorType[Step, Any, T]", protocol).__name__
        return super().carry_out(protocol)

    def run(self, step: Step) -> Any:
        self._die_if_here(step, "before")
        self._die_if_here(step, "during", DURING_S * random.random() ** 3)  # half of them within 2.5 ms
        began = time.perf_counter()
        result = super().run(step)
        taken = TakenStep.of(self._protocol, step, (time.perf_counter() - began) * 1000, result)
        with (self.folder / STEPS).open("a") as file:
            file.write(json.dumps(taken) + "\n")
        self._die_if_here(step, "after")
        return result

    def _die_if_here(self, step: Step, when: str, after_s: float = 0.0) -> None:
        place, armed = Place(self._protocol, type(step).__name__, when), self.folder / KILL
        if not armed.exists() or Place(*json.loads(armed.read_text())) != place:
            return
        armed.replace(self.folder / KILLED)
        if after_s:
            threading.Timer(after_s, kill_session, [os.getsid(0)]).start()
        else:
            kill_session(os.getsid(0))


def record_steps(folder: Path) -> None:
    """Let the drivers of this process run their steps by `SteppedRunner`."""
    SteppedRunner.folder = folder
    batch_committer.StepRunner = SteppedRunner  # type: ignore[attr-defined]


class SteppedSource(KafkaMetaDataSource):
    """Has options of its own: the folder of `SteppedRunner`, and the probability and the length of pauses."""

    def __init__(self, options: dict[str, str]) -> None:
        given = dict(options)
        self._folder = Path(given.pop("folder"))
        self._pauses, self._pause_s = float(given.pop("pauses")), float(given.pop("pause_s"))
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "stepped"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        record_steps(self._folder)
        return PausingWriter(super().streamWriter(schema, overwrite), self._pauses, self._pause_s)


class PausingWriter(DataSourceStreamArrowWriter):
    def __init__(self, writer: DataSourceStreamWriter, pauses: float, pause_s: float) -> None:
        self._writer, self._pauses, self._pause_s = writer, pauses, pause_s

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task is not None
        is_paused = task.partitionId() == 0 and task.attemptNumber() == 0 and random.random() < self._pauses
        is_amid = random.random() < 0.5
        message = self._writer.write(_with_pause(iterator, self._pause_s) if is_paused and is_amid else iterator)
        if is_paused and not is_amid:
            time.sleep(self._pause_s)
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._writer.commit(list(messages), batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._writer.abort(list(messages), batchId)


def _with_pause(batches: Iterator[pa.RecordBatch], seconds: float) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(batches):
        yield batch
        if number == 0:
            time.sleep(seconds)
