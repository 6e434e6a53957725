"""Spark and Kafka on hosts of their own, each with its own address, name, disk and Python environment.

`make cluster-test` runs it, through `tests.cluster.run`.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from benchmarks.acked_feed import AckedFeed, Acknowledged
from benchmarks.exactly_once_soak import KEYS, PARTITIONS, Verdict, committed_records, held_back
from benchmarks.topics import new_topic
from pyspark_kafka_meta.model import TopicPartition
from tests.checkpoints import parsed
from tests.cluster.hosts import Network
from tests.cluster.kafka_hosts import BROKER_IDS, BROKERS, CONTROLLER, PORT, SERVERS, start_kafka
from tests.cluster.spark_hosts import (
    DRIVER,
    EXECUTOR_CLASS,
    MASTER,
    MASTER_CLASS,
    PYTHON,
    WORKER_CLASS,
    WORKERS,
    Application,
    SparkHosts,
)
from tests.kafka.cluster_tools import poll_until
from tests.unit.written_events import events_in

pytestmark = pytest.mark.timeout(900)

FOLDER = Path(__file__).parent
ARCHIVE = FOLDER.parent.parent / "build" / "environment.tar.gz"
RECORDS = 3_000
RECORDS_PER_S = 200
DELAY_S = 0.1
TIMED_CONNECT = """
import socket, sys, time
began = time.monotonic()
socket.create_connection((sys.argv[1], int(sys.argv[2])), 30).close()
print(time.monotonic() - began)
"""
SPREAD = {"minPartitions": str(PARTITIONS)}
"""Small ranges would share a task."""
DYNAMIC_ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
}
ELSEWHERE = {"spark.excludeOnFailure.taskAndStage.enabled": "true"}
"""An executor that fails a task does not get it again: else a bad one, which is free first, may get it four times."""
QUICK = {"kafka.request.timeout.ms": "5000", "kafka.socket.connection.setup.timeout.ms": "2000"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All hosts see it."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    names = {"spark": [DRIVER, MASTER, *WORKERS], "kafka": [CONTROLLER, *BROKERS]}
    network = Network(tmp_path_factory.mktemp("hosts"), names)
    start_kafka(network.hosts)
    return network


@pytest.fixture(scope="module")
def spark(network: Network, folder: Path) -> SparkHosts:
    """Master and workers. Only the driver's host has an environment."""
    unpacked = network.hosts[DRIVER].disk / "environment"
    unpacked.mkdir(exist_ok=True)
    subprocess.run(["tar", "--extract", "--file", ARCHIVE, "--directory", unpacked], check=True)
    spark = SparkHosts(network.hosts, folder)
    spark.start()
    return spark


@pytest.fixture(scope="module")
def source(network: Network) -> str:
    """A topic with the values 0 to RECORDS - 1."""
    topic = new_topic(SERVERS, "records", PARTITIONS)
    producer = Producer({"bootstrap.servers": SERVERS})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, b"%d" % (number % PARTITIONS), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return topic


@pytest.fixture(scope="module")
def installed(spark: SparkHosts) -> SparkHosts:
    """Each host has an environment, with its own folders, and links of one copy of the files."""
    for name in WORKERS:
        command = ("cp", "--archive", "--link", spark.hosts[DRIVER].disk / "environment", spark.hosts[name].disk)
        subprocess.run(command, check=True)
    return spark


@pytest.fixture(scope="module")
def application(installed: SparkHosts) -> Iterator[Application]:
    application = installed.open(FOLDER / "cluster_application.py", ELSEWHERE)
    yield application
    application.close()


class Copies:
    """Two queries that copy a topic while a producer writes to it: at least once, and exactly once."""

    def __init__(self, application: Application, checkpoints: Path) -> None:
        """
        Args:
            checkpoints: the folder `/mnt/checkpoints` of the driver's host.
        """
        self._application, self._checkpoints = application, checkpoints
        self._source, self._events = new_topic(SERVERS, "source", PARTITIONS), new_topic(SERVERS, "events", 1)
        self._targets = [new_topic(SERVERS, purpose, PARTITIONS) for purpose in ("at-least-once", "exactly-once")]
        self._feed = AckedFeed(SERVERS, self._source, PARTITIONS, RECORDS_PER_S, KEYS)
        cluster = {"kafka.bootstrap.servers": SERVERS, "eventsTopic": self._events, **QUICK}
        source = {**cluster, "subscribe": self._source, "startingOffsets": "earliest", **SPREAD}
        transactional: dict[str, str] = {"kafka.transactional.id": self._source}
        for target, guarantee in zip(self._targets, ({}, transactional), strict=True):
            sink = {**cluster, **guarantee, "topic": target, "checkpointLocation": f"/mnt/checkpoints/{target}"}
            application.call("start", target, source, sink)

    def copy_on(self, timeout_s: float = 150) -> None:
        """Wait until both queries have copied all records that are there now."""
        ends = log_ends(self._source)
        checkpoints = [self._checkpoints / target for target in self._targets]
        poll_until(lambda: all(is_copied(checkpoint, ends) for checkpoint in checkpoints), timeout_s)

    def table(self, name: str, *columns: str) -> set[tuple[Any, ...]]:
        """The distinct values of these columns of a side table."""
        options = {"kafka.bootstrap.servers": SERVERS, "eventsTopic": self._events}
        return {tuple(row) for row in self._application.call("table", name, columns, options)}

    def stop(self) -> Acknowledged:
        """Stop the producer, and the queries once they have copied everything."""
        acknowledged = self._feed.close()
        for target in self._targets:
            self._application.call("stop", target)
        return acknowledged

    def assert_exact(self, acknowledged: Acknowledged) -> None:
        poll_until(lambda: held_back(SERVERS, self._targets) == [])  # a marker may come after its acknowledgement
        _, fed = committed_records(SERVERS, self._source)
        once, exact = (Verdict.of(acknowledged, fed, *committed_records(SERVERS, target)) for target in self._targets)
        assert once.missing == 0
        assert exact.is_good, exact
        assert acknowledged.records == acknowledged.sent > 0

    def all_hosts_are_in_tables(self) -> bool:
        roles = {
            ("planner", DRIVER),
            ("committer", DRIVER),
            *((role, name) for role in ("reader", "writer") for name in WORKERS),
        }
        caches = {host for (host,) in self.table("caches", "host")}
        return self.table("refresh_events", "role", "host") >= roles and caches == {DRIVER, *WORKERS}


@contextmanager
def copying(application: Application, spark: SparkHosts) -> Iterator[Copies]:
    """Copies that run, and are exact at the end."""
    copies = Copies(application, spark.hosts[DRIVER].disk / "checkpoints")
    try:
        copies.copy_on()
        yield copies
    finally:
        acknowledged = copies.stop()
    copies.assert_exact(acknowledged)


def log_ends(topic: str) -> Mapping[TopicPartition, int]:
    admin = AdminClient({"bootstrap.servers": SERVERS, "log_level": 0})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    ends = admin.list_offsets({KafkaPartition(topic, number): latest for number in range(PARTITIONS)})
    return {TopicPartition(topic, entry.partition): end.result(60).offset for entry, end in ends.items()}


def is_copied(checkpoint: Path, ends: Mapping[TopicPartition, int]) -> bool:
    """Whether the finished micro-batches of a query have got to these offsets."""
    finished = [int(file.name) for file in checkpoint.glob("commits/*") if file.name.isdecimal()]
    if not finished:
        return False
    offset = parsed((checkpoint / "offsets" / str(max(finished))).read_text().splitlines()[-1])
    return all(
        partition in offset.positions and offset.positions[partition].offset >= end for partition, end in ends.items()
    )


def test_an_archive_is_all_that_the_workers_need(spark: SparkHosts, source: str, folder: Path) -> None:
    target, events = new_topic(SERVERS, "copies", PARTITIONS), folder / "events-of-archive"
    program = [str(FOLDER / "archived_batch.py"), SERVERS, source, target, str(events)]
    # In client mode the driver's environment is beside the program.
    done = spark.submit(
        "--archives", f"{ARCHIVE}#environment", *program, python="./environment/bin/python", timeout_s=400
    )

    assert done.returncode == 0, done.stderr[-5000:]
    assert sorted(committed_records(SERVERS, target)[1]) == list(range(RECORDS))
    written = events_in(events)
    assert {event["host"] for event in written if event["role"] == "reader"} == set(WORKERS)
    assert {event["host"] for event in written if event["role"] == "planner"} == {DRIVER}


def test_cluster_mode_is_refused_by_spark_for_python_programs(spark: SparkHosts) -> None:
    done = spark.submit("--deploy-mode", "cluster", str(FOLDER / "archived_batch.py"), timeout_s=60)

    assert done.returncode != 0
    assert (
        "Cluster deploy mode is currently not supported for python applications on standalone clusters" in done.stderr
    )


@contextmanager
def without_package(spark: SparkHosts, name: str) -> Iterator[None]:
    [package] = spark.hosts[name].disk.glob("environment/lib/python3.*/site-packages/pyspark_kafka_meta")
    away = package.rename(package.with_name("away"))
    try:
        yield
    finally:
        away.rename(package)


def test_the_doctor_finds_what_is_wrong_on_each_host(installed: SparkHosts) -> None:
    deaf, bare = installed.hosts[WORKERS[1]], installed.hosts[WORKERS[2]]
    arguments = ("doctor", "--executors", "--bootstrap-servers", SERVERS, "--path", "/mnt/events")
    deaf.forget(BROKERS[0])
    try:
        with without_package(installed, bare.name):
            done = installed.run("-m", "pyspark_kafka_meta", *arguments, timeout_s=300)
    finally:
        deaf.know_all()
    found = [json.loads(line) for line in done.stdout.splitlines()]
    executors = {
        (re.sub(r"executor( \d+)? on ", "", row["check"]), row["verdict"]): row["what"]
        for row in found
        if row["section"] == "Executors" and row["verdict"] != "ok"
    }

    assert executors.keys() == {
        (f"{WORKERS[0]}: eventsPath", "warn"),
        (f"{deaf.name}: eventsPath", "warn"),
        (f"{deaf.name}: {BROKERS[0]}:9092", "fail"),
        (bare.name, "fail"),
    }, (done.stdout, done.stderr)
    assert "is not the driver's folder" in executors[f"{WORKERS[0]}: eventsPath", "warn"]
    assert f"cannot connect to {BROKERS[0]}:9092" in executors[f"{deaf.name}: {BROKERS[0]}:9092", "fail"]
    assert "does not have pyspark_kafka_meta" in executors[bare.name, "fail"]


def test_executors_that_come_and_go_cost_no_record(installed: SparkHosts, source: str) -> None:
    application = installed.open(FOLDER / "cluster_application.py", DYNAMIC_ALLOCATION)

    def executors() -> int:
        return int(installed.state()["coresused"])

    try:
        with copying(application, installed) as copies:
            poll_until(lambda: executors() == len(WORKERS), timeout_s=240)
            copies.copy_on()
        poll_until(lambda: executors() == 0, timeout_s=240)
        options = {"kafka.bootstrap.servers": SERVERS, "subscribe": source, **SPREAD}
        assert application.call("values", options) == list(range(RECORDS))
    finally:
        application.close()


def test_spark_names_an_executor_without_the_package_and_repeats_its_tasks_elsewhere(
    installed: SparkHosts, application: Application, source: str
) -> None:
    options = {"kafka.bootstrap.servers": SERVERS, "subscribe": source, **SPREAD}
    with without_package(installed, WORKERS[2]):
        assert application.call("values", options) == list(range(RECORDS))
    assert re.search(rf"Lost task .*\({WORKERS[2]} executor \d+\)", application.log)
    assert "ModuleNotFoundError: No module named 'pyspark_kafka_meta'" in application.log


def test_partitions_between_an_executor_and_a_broker_cost_no_record(
    network: Network, application: Application, installed: SparkHosts
) -> None:
    executor, broker = network.hosts[WORKERS[0]], network.hosts[BROKERS[1]]
    there, back = (executor.name, broker.name), (broker.name, executor.name)

    def cut(*routes: tuple[str, str]) -> None:
        """Until connections are given up."""
        connections = poll_until(lambda: executor.connections(broker))
        with network.partition(*routes):
            poll_until(lambda: connections - executor.connections(broker))

    with copying(application, installed) as copies:
        for routes in ([there, back], [there], [back]):
            cut(*routes)
            copies.copy_on()

        def is_reported() -> bool:
            causes = copies.table("refresh_events", "host", "reason", "cause_node_id")
            reasons = ("connection_lost", "request_timeout")
            return bool(causes & {(executor.name, reason, BROKER_IDS[broker.name]) for reason in reasons})

        poll_until(is_reported)
        poll_until(copies.all_hosts_are_in_tables)  # an executor may have come late


def test_a_late_and_lossy_line_costs_no_record(
    network: Network, application: Application, installed: SparkHosts
) -> None:
    with copying(application, installed) as copies:
        with network.bad_line(delay_s=DELAY_S, loss=0.02):
            connecting = network.hosts[WORKERS[0]].run(PYTHON, "-c", TIMED_CONNECT, BROKERS[0], str(PORT))
            assert float(connecting.stdout) >= 2 * DELAY_S, "there and back"
            copies.copy_on()
        copies.copy_on()


def test_a_broker_name_that_an_executor_cannot_resolve_costs_no_record(
    network: Network, application: Application, installed: SparkHosts
) -> None:
    host = network.hosts[WORKERS[1]]
    with copying(application, installed) as copies:
        host.forget(BROKERS[2])
        try:
            assert host.kill("pyspark.daemon")  # new workers have to resolve all names
            with pytest.raises(AssertionError):
                copies.copy_on(timeout_s=10)
        finally:
            host.know_all()
        copies.copy_on()


def test_killed_processes_of_spark_cost_no_record(application: Application, installed: SparkHosts) -> None:
    executor, master, worker = WORKERS[2], MASTER, WORKERS[0]
    with copying(application, installed) as copies:
        assert installed.hosts[executor].kill(EXECUTOR_CLASS)
        copies.copy_on()

        assert installed.hosts[master].kill(MASTER_CLASS)
        copies.copy_on()
        installed.start_master()
        installed.wait_for_workers()
        copies.copy_on()

        assert installed.hosts[worker].kill(WORKER_CLASS)
        copies.copy_on()
        installed.start_worker(worker)
        installed.wait_for_workers()
        copies.copy_on()
