"""What tasks wait for in Spark's Python processes: messages over TCP as Spark sets it up, and collections."""

from __future__ import annotations

import gc
import io
import pickle
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from pyspark.sql.types import StructType

from pyspark_kafka_meta.options import SinkOptions, SourceOptions
from pyspark_kafka_meta.spark import task_latency
from pyspark_kafka_meta.spark.batch_reader import KafkaMetaReader
from pyspark_kafka_meta.spark.stream_writer import KafkaMetaStreamWriter
from pyspark_kafka_meta.spark.task_latency import COLLECT_AFTER_OBJECTS, avoid_plan_delays, avoid_socket_delays

MESSAGE = b"0123456789"
READER = pickle.dumps(
    KafkaMetaReader(SourceOptions.parse({"kafka.bootstrap.servers": "broker:9092", "subscribe": "t"}), {})
)


@pytest.fixture(params=[socket.AF_INET, socket.AF_UNIX])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Of a connection: Spark's, and that of its Python process."""
    with ExitStack() as opened:
        if request.param == socket.AF_UNIX:
            both = socket.socketpair()
        else:
            listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
            both = (socket.create_connection(listener.getsockname()), listener.accept()[0])
        yield opened.enter_context(both[0]), opened.enter_context(both[1])


def main(infile: BinaryIO, work: Callable[[], object]) -> None:
    """As Spark's Python processes have it."""
    work()


def task_ms(jvm: socket.socket, worker: socket.socket, infile: BinaryIO) -> float:
    """How long the worker waits for the second of the messages that a task begins with."""
    for _ in range(2):
        jvm.sendall(MESSAGE)
    assert infile.read(len(MESSAGE)) == MESSAGE
    main(infile, lambda: pickle.loads(READER))
    began = time.perf_counter()
    assert infile.read(len(MESSAGE)) == MESSAGE
    waited_ms = (time.perf_counter() - began) * 1000
    worker.sendall(MESSAGE)
    assert jvm.recv(len(MESSAGE)) == MESSAGE
    return waited_ms


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing can be acknowledged at once")
def test_second_message_does_not_wait_for_the_firsts_acknowledgement(ends: tuple[socket.socket, socket.socket]) -> None:
    with ends[1].makefile("rb") as infile:
        waits_ms = sorted(task_ms(*ends, infile) for _ in range(40))

    assert waits_ms[20] < 20, "a connection that is new acknowledges all at once by itself, for some messages"


def test_what_is_sent_to_spark_waits_for_nothing(ends: tuple[socket.socket, socket.socket]) -> None:
    with ends[1].makefile("rb") as infile:
        main(infile, avoid_socket_delays)

    assert ends[1].family == socket.AF_UNIX or ends[1].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("infile", [io.BytesIO(), object(), None], ids=["in memory", "no file", "nothing"])
def test_reader_is_unpickled_elsewhere_too(infile: Any) -> None:
    main(infile, lambda: pickle.loads(READER))
    assert isinstance(pickle.loads(READER), KafkaMetaReader)


def open_files() -> set[Path]:
    """Of this process, in which other tests' threads open and close theirs."""
    found = set[Path]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(descriptor.readlink())
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w+b") as infile:
        main(infile, avoid_socket_delays)
        assert infile.read() == b""
        assert path in open_files()

    assert path not in open_files()


class Cycle:
    """Nothing but a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


def new_stream_writer() -> KafkaMetaStreamWriter:
    options = SinkOptions.parse({"kafka.bootstrap.servers": "broker:9092", "topic": "t"})
    return KafkaMetaStreamWriter(options, StructType().add("value", "string"), {}, plans=True)


@pytest.mark.parametrize("begin", [lambda: pickle.loads(READER), new_stream_writer], ids=["task", "plan or commit"])
@pytest.mark.usefixtures("topics_exist")
def test_collections_pass_over_what_there_was_at_the_first_two_tasks_and_over_nothing_later(
    monkeypatch: pytest.MonkeyPatch, begin: Callable[[], object]
) -> None:
    monkeypatch.setattr(task_latency, "_begun", count(1))  # other tests have begun tasks in this process
    made, passed_over = [], []

    try:
        for _ in range(4):
            made.append(Cycle())
            main(io.BytesIO(), begin)
            visited = {id(obj) for obj in gc.get_objects()}
            passed_over.append([id(obj) not in visited for obj in made])

        assert passed_over == [[True], [True, True], [True, True, False], [True, True, False, False]]
    finally:
        gc.unfreeze()


def test_collections_of_other_processes_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Sail, a program's own process plans and reads."""
    monkeypatch.setattr(task_latency, "_begun", count(1))
    gc.unfreeze()  # what other tests have frozen may be freed meanwhile
    before = gc.get_threshold(), gc.get_freeze_count()
    pickle.loads(READER)
    avoid_plan_delays()

    assert (gc.get_threshold(), gc.get_freeze_count()) == before


def test_planners_collect_seldom() -> None:
    before = gc.get_threshold()
    try:
        main(io.BytesIO(), avoid_plan_delays)
        assert gc.get_threshold()[0] == COLLECT_AFTER_OBJECTS
    finally:
        gc.set_threshold(*before)
