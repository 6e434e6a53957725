"""Fixtures that tests share: a Kafka cluster, its topics and records, mock brokers, a Spark session."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import cache
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, NoReturn

import hypothesis
import pytest
import typer.testing
from confluent_kafka import KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import SparkSession

from pyspark_kafka_meta.java_launcher import find_java
from pyspark_kafka_meta.testing import LocalKafka, MockCluster, MockRegistry
from tests.kafka.cluster_tools import Cluster, RemoteCluster, all_brokers_know, poll_until
from tests.shared_kafka import CONFIG, shared_kafka, take_own_ports

pytest.register_assert_rewrite("tests.consumer", "tests.kafka.checker", "tests.kafka.harness")

ROOT = Path(__file__).parent.parent
WITH_SPARK = ("tests/spark/", "tests/test_readme.py")

# Test JVMs live for seconds: the C1 compiler and the serial collector save a third of their CPU time, an archive of
# Spark's classes, by `make test`, half of the rest. Java warns wherever other classes are asked for, hence -Xlog.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
if (SPARK_CLASSES := ROOT / "build" / "spark_classes.jsa").exists():
    JAVA_OPTIONS += f" -XX:SharedArchiveFile={SPARK_CLASSES} -Xlog:disable -Xlog:all=error:stderr"
os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS)

# Each of the tests' many Python processes would compile the package again, and each worker all tests.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
sys.dont_write_bytecode = False

# CliRunner would make all commands of the app anew, in 27 ms, each time it invokes one.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]

take_own_ports()

# The duration of one hypothesis example depends on the load of the machine.
hypothesis.settings.register_profile("kafkameta", deadline=None)
hypothesis.settings.load_profile("kafkameta")


_breaking: set[Path] = set()
"""The files with tests that break brokers."""
_shared_kafka = ExitStack()
"""Leaves the cluster that parallel workers share."""


@pytest.hookimpl(trylast=True)  # once markers have left tests out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the files for parallel workers, and finds those that break brokers. Unit and wire tests run neither pyspark
    nor testcontainers: there, open resources are this package's bugs."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        put_in_order(items)
    _breaking.update(item.path for item in items if "local_kafka" in getattr(item, "fixturenames", ()))
    for item in items:
        if is_light(item):
            item.add_marker(pytest.mark.filterwarnings("error::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Has one worker take all fast tests with Spark: a session costs half a minute of CPU time before it is warm. Slow
    tests start many sessions anyway."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    if config.option.dist != "loadfile" or "not slow" not in config.option.markexpr:
        return None
    scheduler = LoadFileScheduling(config, log)
    file_of = scheduler._split_scope
    scheduler._split_scope = lambda nodeid: "spark" if nodeid.startswith(WITH_SPARK) else file_of(nodeid)
    return scheduler


def is_light(item: pytest.Item) -> bool:
    """Whether the test needs neither a cluster nor Spark."""
    return any(item.path.is_relative_to(ROOT / "tests" / folder) for folder in ("unit", "wire"))


def put_in_order(items: list[pytest.Item]) -> None:
    """Files of all folders mixed, so that most of the time some workers compute (Spark) while others wait (for brokers,
    browsers and timeouts). Light tests are last, and of them the short ones, so that the workers end at about the same
    time."""
    turns: dict[Path, int] = {}
    files = Counter[Path]()
    for item in items:
        if item.path not in turns:
            turns[item.path] = files[item.path.parent]
            files[item.path.parent] += 1
    long = {item.path for item in items if item.get_closest_marker("budget")}
    share = {path: turn / files[path.parent] for path, turn in turns.items()}
    items.sort(key=lambda item: (is_light(item), item.path not in long, share[item.path]))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leaves the shared cluster once only light tests are left: idle brokers take a tenth of a core."""
    if is_light(item):
        _shared_kafka.close()


@pytest.fixture(scope="session", autouse=True)
def no_terminal() -> None:
    """What commands print depends on these variables, which CI services and shells set."""
    for name in ("COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def go_without() -> Callable[[str], NoReturn]:
    """Skips a test that lacks a program on this machine, with the given reason. In CI the test fails instead."""
    return pytest.fail if "CI" in os.environ else pytest.skip


@pytest.fixture(scope="session")
def common_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The brokers in KAFKAMETA_BOOTSTRAP_SERVERS, else those of docker-compose.yml if Docker runs, else a LocalKafka,
    which parallel workers share."""
    servers = os.environ.get("KAFKAMETA_BOOTSTRAP_SERVERS")
    if servers:
        yield RemoteCluster(servers)
    elif docker_runs():
        yield from compose_cluster()
    elif "PYTEST_XDIST_WORKER" in os.environ:
        find_java()
        with _shared_kafka:
            folder = tmp_path_factory.getbasetemp().parent  # that of the run
            yield RemoteCluster(_shared_kafka.enter_context(shared_kafka(folder)))
    else:
        find_java()
        with LocalKafka(config=CONFIG) as cluster:
            yield cluster


@pytest.fixture(scope="module")
def local_kafka() -> Iterator[LocalKafka]:
    """A cluster for the tests of one file. Use `breakable_kafka` in a test that breaks it."""
    find_java()
    with LocalKafka(config=CONFIG) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kafka(request: pytest.FixtureRequest) -> Cluster:
    """The brokers that all tests share. In a file that breaks brokers, `local_kafka`."""
    cluster: Cluster = request.getfixturevalue("local_kafka" if request.path in _breaking else "common_kafka")
    return cluster


@pytest.fixture
def breakable_kafka(local_kafka: LocalKafka) -> Iterator[LocalKafka]:
    """`local_kafka` for a test that kills, stops or pauses nodes. All nodes run again after the test."""
    yield local_kafka
    local_kafka.restore()


@pytest.fixture(scope="module")
def make_topic(kafka: Cluster) -> Callable[..., str]:
    """Creates a topic and waits until every broker knows it. `replication` -1 is the brokers' default."""

    def make(
        partitions: int = 1, config: Mapping[str, str] | None = None, name: str | None = None, replication: int = -1
    ) -> str:
        topic = name or f"test-{uuid.uuid4().hex}"
        request = NewTopic(topic, partitions, replication, config=dict(config or {}))
        admin = admin_client(kafka)
        wait_for_results(admin.create_topics([request]))
        poll_until(lambda: all_brokers_know(kafka.bootstrap_servers, topic, partitions))
        return topic

    return make


@pytest.fixture
def topic(make_topic: Callable[..., str]) -> str:
    """A new, empty topic with three partitions."""
    return make_topic(partitions=3)


@pytest.fixture(scope="module")
def add_partitions(kafka: Cluster) -> Callable[[str, int], None]:
    """Increases the partition count of a topic and waits until every broker knows the new partitions."""

    def add(topic: str, partitions: int) -> None:
        admin = admin_client(kafka)
        wait_for_results(admin.create_partitions([NewPartitions(topic, partitions)]))
        poll_until(lambda: all_brokers_know(kafka.bootstrap_servers, topic, partitions))

    return add


@pytest.fixture(scope="module")
def produce(kafka: Cluster) -> Callable[..., list[int]]:
    """Writes records and returns their offsets, in the order of the records.

    A record is a value or a mapping of arguments of confluent_kafka's `Producer.produce`. Without `partition` the
    producer chooses. Further settings, such as `**{"compression.type": "zstd"}`, configure the producer.
    """

    def write(
        topic: str,
        records: Iterable[str | bytes | Mapping[str, Any] | None],
        partition: int | None = None,
        **settings: Any,
    ) -> list[int]:
        offsets: dict[int, int] = {}
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, **settings})
        placement: dict[str, Any] = {} if partition is None else {"partition": partition}
        count = 0
        for number, record in enumerate(records):
            arguments = record if isinstance(record, Mapping) else {"value": record}
            producer.produce(topic, on_delivery=delivery(offsets, number), **placement, **arguments)
            producer.poll(0)
            count += 1
        assert producer.flush(60) == 0, f"the brokers did not acknowledge all records of {topic} in time"
        return [offsets[number] for number in range(count)]

    return write


@pytest.fixture(scope="module")
def delete_records(kafka: Cluster) -> Callable[[str, int, int], None]:
    """Moves the log start of a partition to `before_offset`, as retention does."""

    def delete(topic: str, partition: int, before_offset: int) -> None:
        admin = admin_client(kafka)
        wait_for_results(admin.delete_records([TopicPartition(topic, partition, before_offset)]))

    return delete


@pytest.fixture(scope="module")
def leader_of(kafka: Cluster) -> Callable[[str, int], int]:
    """Returns the node id of a partition's leader from the first Metadata response, -1 for no leader."""
    return lambda topic, partition: partition_leader(kafka, topic, partition)


@pytest.fixture(scope="session")
def wait_for() -> Callable[..., Any]:
    """Waits until a condition returns a true value, at most two minutes or `timeout_s`, and returns the value."""
    return poll_until


class NoPyspark(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] == "pyspark":
            raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")


@pytest.fixture
def no_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing pyspark fails as where it is not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoPyspark(), *sys.meta_path])


@pytest.fixture
def mock_cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


@pytest.fixture
def registry() -> Iterator[MockRegistry]:
    with MockRegistry() as registry:
        yield registry


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session whose Python workers import this checkout, and whose tasks may fail three times."""
    find_java()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.pollingDelay": "100",  # ms; by default idle streams plan a hundred times a second
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
    }
    site = tmp_path_factory.mktemp("site")
    # Spark's processes do without hypothesis, as at users: the protocol library imports it wherever it finds it, in a
    # third of a second.
    (site / "sitecustomize.py").write_text("import sys\n\nsys.modules['hypothesis'] = None\n")
    builder = SparkSession.builder.master("local[2,4]").appName("kafkameta-tests").config(map=settings)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def docker_runs() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, timeout=30).returncode == 0


def compose_cluster() -> Iterator[Cluster]:
    """The brokers of docker-compose.yml, in a separate project: a demo of the user keeps running."""
    from testcontainers.compose import DockerCompose

    os.environ["COMPOSE_PROJECT_NAME"] = "kafkameta-tests"
    with DockerCompose(ROOT, "docker-compose.yml", services=["broker-2", "broker-3", "broker-4"]):
        yield RemoteCluster("localhost:19092,localhost:29092,localhost:39092")


def admin_client(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


def wait_for_results(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        future.result(60)


def partition_leader(cluster: Cluster, topic: str, partition: int) -> int:
    def metadata() -> Any:
        with suppress(KafkaException):  # librdkafka keeps the broker that it chose, and the broker may hang
            return admin_client(cluster).list_topics(topic, timeout=5)

    return int(poll_until(metadata).topics[topic].partitions[partition].leader)


def delivery(offsets: dict[int, int], number: int) -> Callable[[Any, Message], None]:
    def delivered(error: Any, message: Message) -> None:
        assert error is None, error
        offset = message.offset()
        assert offset is not None
        offsets[number] = offset

    return delivered
