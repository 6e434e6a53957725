"""What tasks carry, which columns they read, and how much memory their worker gives them."""

from __future__ import annotations

import pickle
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_kafka_meta.arrow_reader import with_header_type
from pyspark_kafka_meta.errors import WorkerMemoryError
from pyspark_kafka_meta.events import origin
from pyspark_kafka_meta.events.event import Origin
from pyspark_kafka_meta.events.origin import driver_name
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.records.schema import RECORD_COLUMNS, records_arrow_schema
from pyspark_kafka_meta.model import OffsetRange, TopicPartition
from pyspark_kafka_meta.options import ClientOptions, EventsOptions, SourceOptions
from pyspark_kafka_meta.read.fetching import latest_by_key
from pyspark_kafka_meta.read.fetching.latest_by_key import MayEndLater
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.spark import batch_reader
from pyspark_kafka_meta.spark.batch_reader import (
    SCHEMAS_BYTES,
    TOPIC_NAMES_BYTES,
    KafkaMetaReader,
    Task,
    new_tasks,
    read_partition,
)
from pyspark_kafka_meta.spark.client_pool import worker_clients
from pyspark_kafka_meta.spark.records_table import records_struct_type
from pyspark_kafka_meta.spark.stream_reader import KafkaMetaStreamReader
from pyspark_kafka_meta.spark.worker_memory import worker_memory
from pyspark_kafka_meta.typed.formats import SchemaText
from pyspark_kafka_meta.typed.registry.client import RegisteredSchema
from tests.unit.scene import COLUMNS, Scene


@pytest.mark.parametrize("given", [{}, {"eventsPath": "events"}])
def test_task_writes_its_events_where_its_planner_does(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    options = SourceOptions.parse({"kafka.bootstrap.servers": "b:9", "subscribe": "t", **given})
    worker, used = Scene(monkeypatch).client(), list[EventsOptions | None]()

    @contextmanager
    def client(_: ClientOptions, events: EventsOptions | None, __: Origin) -> Iterator[KafkaClient]:
        used.append(events)
        yield worker

    monkeypatch.setattr(worker_clients, "client", client)
    monkeypatch.setattr(origin, "task_origin", lambda role: Origin(role=role))
    (task,) = new_tasks([()], ["t"])
    assert list(read_partition(options, task, {})) == []

    assert used[0] is not None
    assert used[0].driver == driver_name()


@pytest.mark.parametrize(
    ("is_stream", "ending", "expected"),
    [
        (False, {}, MayEndLater.ANY_KEY),
        (False, {"endingOffsets": '{"t": {"0": 9}}'}, MayEndLater.REMOVED_KEY),
        (False, {"endingTimestamp": "9"}, MayEndLater.REMOVED_KEY),
        (True, {}, MayEndLater.NO_KEY),
        (True, {"endingOffsets": '{"t": {"0": 9}}'}, MayEndLater.NO_KEY),
    ],
)
def test_the_latest_record_of_a_key_may_be_after_the_end_of_a_batch_alone(
    is_stream: bool, ending: dict[str, str], expected: MayEndLater, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream reads it with the next micro-batch."""
    options = SourceOptions.parse({"kafka.bootstrap.servers": "b:9", "subscribe": "t", **ending})
    worker, used = Scene(monkeypatch).client(), list[MayEndLater]()

    @contextmanager
    def client(*_: object) -> Iterator[KafkaClient]:
        yield worker

    def latest(_: object, __: object, ___: object, may_end_later: MayEndLater) -> SimpleNamespace:
        used.append(may_end_later)
        return SimpleNamespace(read=lambda *_: iter([]))

    monkeypatch.setattr(worker_clients, "client", client)
    monkeypatch.setattr(latest_by_key, "LatestReader", latest)
    (task,) = new_tasks([(OffsetRange(TopicPartition("t", 0), None, 0, 5, latest_by_key=True),)], ["t"])
    if is_stream:
        reader = KafkaMetaStreamReader(options.for_stream(), {})
        assert list(reader.read(task)) == []
    else:
        assert list(KafkaMetaReader(options.for_batch(latest_by_key=True), {}).read(task)) == []
    assert used == [expected]


def tasks_of(topics: int, tasks: int) -> list[Task]:
    """Tasks that together read one partition of each topic."""
    names = [f"team-{number % 37}.service-{number:05}.events" for number in range(topics)]
    ranges = [OffsetRange(TopicPartition(name, 0), None, 0, 5) for name in names]
    return [task for task in new_tasks([ranges[at::tasks] for at in range(tasks)], names) if isinstance(task, Task)]


def test_each_task_has_the_schemas_of_writers_and_versions_of_one_take_little_room() -> None:
    fields = ", ".join(f'{{"name": "field_{number}", "type": ["null", "string"]}}' for number in range(100))
    schemas = [RegisteredSchema(number, "AVRO", SchemaText(f"[{fields}, {number}]")) for number in range(20)]
    tasks = pickle.loads(pickle.dumps(new_tasks([(), ()], ["t"], schemas)))

    assert [task.schemas for task in tasks] == [tuple(schemas)] * 2
    assert len(pickle.dumps(tasks[0])) < sum(len(schema.schema.text) for schema in schemas) / 10


def test_schemas_are_compressed_again_when_they_change_alone() -> None:
    schemas = [RegisteredSchema(1, "AVRO", SchemaText('"int"'))]
    first, same, changed = (new_tasks([()], ["t"], each)[0] for each in (schemas, list(schemas), schemas * 2))
    assert isinstance(first, Task) and isinstance(same, Task) and isinstance(changed, Task)

    assert first._schemas is same._schemas
    assert changed.schemas == tuple(schemas * 2)


def test_large_schemas_are_bounded_and_in_the_first_tasks() -> None:
    schemas = [RegisteredSchema(1, "AVRO", SchemaText(Random(1).randbytes(500_000).hex()))]  # half of it compressed
    tasks = new_tasks([()] * 100, ["t"], schemas)
    carried = [bool(task.schemas) for task in tasks if isinstance(task, Task)]

    assert carried[0] and not carried[-1]
    assert carried == sorted(carried, reverse=True)
    assert sum(len(pickle.dumps(task)) for task in tasks) < 1.1 * SCHEMAS_BYTES


def test_each_task_of_hundreds_of_topics_names_them_all() -> None:
    assert {len(task.topics) for task in tasks_of(topics=300, tasks=500)} == {300}


def test_worker_needs_one_metadata_request_for_the_topics_of_all_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, tasks = Scene(monkeypatch), tasks_of(topics=60, tasks=20)
    for topic in tasks[0].topics:
        scene.cluster.create_topic(topic)
    worker = scene.client()
    for task in tasks:
        planned = [scene.range(each.partition) for each in task.ranges]
        assert list(TaskReader(worker, scene.options(), COLUMNS).read(planned, task.topics)) == []
    assert len(scene.sent("Metadata")) == 1


def test_names_of_thousands_of_topics_are_bounded_and_in_the_first_tasks() -> None:
    """Spark starts the first tasks first, each in another worker."""
    tasks = tasks_of(topics=5_000, tasks=500)
    own_ranges = len(pickle.dumps([task.ranges for task in tasks]))
    assert sum(len(pickle.dumps(task)) for task in tasks) < TOPIC_NAMES_BYTES + 2 * own_ranges
    named = [len(task.topics) == 5_000 for task in tasks]
    assert named == sorted(named, reverse=True)
    assert 200 < sum(named) < 500
    assert [task.topics for task in tasks[sum(named) :]] == [frozenset()] * (500 - sum(named))


@pytest.mark.parametrize("include_headers", [False, True])
def test_arrow_schema_equals_the_schema_that_pyspark_derives(include_headers: bool) -> None:
    struct_type = records_struct_type(include_headers)

    derived = to_arrow_schema(struct_type, timezone="UTC")

    assert records_arrow_schema(struct_type.names).equals(derived, check_metadata=True)


def test_headers_as_a_map_have_the_type_that_pyspark_derives() -> None:
    derived = to_arrow_schema(records_struct_type(True, headers_as_map=True), timezone="UTC")
    rows = pa.record_batch(
        {"headers": pa.array([[{"key": "a", "value": b""}]], records_arrow_schema(["headers"]).field(0).type)}
    )
    options = SourceOptions.parse(
        {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "includeHeaders": "true", "headersAsMap": "true"}
    )

    assert with_header_type(rows, options).schema.field("headers").type == derived.field("headers").type


def test_spark_schema_is_that_of_sparks_kafka_source() -> None:
    assert records_struct_type(include_headers=True).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    assert records_struct_type(include_headers=False).names == list(RECORD_COLUMNS)


THREADS_IN_LIMITED_PROCESS = """
import resource, sys, threading
from pathlib import Path
from pyspark_kafka_meta.spark.stream_reader import KafkaMetaStreamReader
from pyspark_kafka_meta.spark.worker_memory import worker_memory

def size():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

if sys.argv[1] == "limited":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
with worker_memory("a and b"):
    started, end, sizes = threading.Barrier(5), threading.Barrier(5), size()
    def work():
        text = bytes(100_000).hex()
        started.wait()
        end.wait()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    print((size() - sizes) >> 20)
    end.wait()
"""


@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowMemoryError("malloc of size 64 failed")])
def test_missing_memory_is_one_sentence_with_the_setting(error: MemoryError) -> None:
    with (
        pytest.raises(WorkerMemoryError, match=r"left: raise spark\.executor\.pyspark\.memory.* lower a and b$"),
        worker_memory("a and b"),
    ):
        raise error


@pytest.mark.parametrize("loaded", [None, SimpleNamespace(CDLL=lambda _: object())], ids=["no ctypes", "no mallopt"])
def test_limited_worker_runs_where_arenas_cannot_be_limited(loaded: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", loaded)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, 1 << 30))
    with worker_memory("a and b"):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, RLIMIT_AS and glibc")
def test_threads_of_a_limited_worker_share_an_arena(request: pytest.FixtureRequest) -> None:
    def reserved_mib(how: str) -> int:
        command = [sys.executable, "-c", THREADS_IN_LIMITED_PROCESS, how]
        return int(subprocess.check_output(command, cwd=request.config.rootpath, text=True, timeout=200))

    assert reserved_mib("limited") < 64 < 4 * 64 <= reserved_mib("free")


@pytest.mark.parametrize(
    ("by_key", "named"), [(False, "lower kafka.fetch.max.bytes"), (True, "lower the number of keys")]
)
def test_a_task_without_memory_names_what_needs_it(by_key: bool, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> Iterator[object]:
        raise MemoryError

    monkeypatch.setattr(batch_reader, "_read", read)
    options = SourceOptions.parse({"kafka.bootstrap.servers": "b:9", "subscribe": "t"})
    planned = OffsetRange(TopicPartition("t", 0), None, 0, 5, latest_by_key=by_key)

    with pytest.raises(WorkerMemoryError, match=f"raise spark.executor.pyspark.memory, .* {named}"):
        list(read_partition(options, Task([planned], b"", "driver"), {}))
