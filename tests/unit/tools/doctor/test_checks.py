"""What `kafkameta doctor` makes of what it saw: the verdict, and a fix wherever something is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta import errors
from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, TlsError, UnsupportedBrokerError
from pyspark_kafka_meta.events.event import Origin
from pyspark_kafka_meta.kafka.protocol.apis import FETCH, METADATA, Api
from pyspark_kafka_meta.kafka.protocol.fetch import FetchedPartition
from pyspark_kafka_meta.model import Address, Broker, MetadataResponse, TopicPartition
from pyspark_kafka_meta.tables.rows import PartitionRow
from pyspark_kafka_meta.tools.doctor import Finding, Verdict, connection_checks, failure, machine_checks, topic_checks
from pyspark_kafka_meta.tools.doctor.connection_checks import Reached
from pyspark_kafka_meta.tools.doctor.machine_checks import Installed, Requirement
from tests.unit.kafka.records.handmade import Row, batch

OK, WARN, FAIL = Verdict.OK, Verdict.WARN, Verdict.FAIL
A, B = Address("a", 9092), Address("b", 9092)
NEW: Mapping[Api, int] = {METADATA: 13, FETCH: 16}


def reached(cluster: str = "c", latency_ms: float = 1.0, fetch: int = 16) -> Reached:
    response = MetadataResponse(cluster, 1, (Broker(1, A),), (), 13, 1, 10, 10)
    return Reached(2.0, latency_ms, {METADATA: 13, FETCH: fetch}, response)


def verdicts(findings: Iterable[Finding]) -> list[tuple[str, Verdict]]:
    found = list(findings)
    assert all(one.fix for one in found if one.verdict is not OK), found
    return [(one.check, one.verdict) for one in found]


def row(**changes: Any) -> PartitionRow:
    fields: dict[str, Any] = {
        "topic": "t",
        "partition": 0,
        "topic_id": "00000000-0000-0000-0000-000000000001",
        "leader_id": 1,
        "leader_epoch": 4,
        "replicas": (1, 2),
        "isr": (1, 2),
        "start_offset": 0,
        "end_offset": 5,
    }
    return PartitionRow(**{**fields, **changes})


def fetched(error_code: int = 0, records: bytes = b"") -> FetchedPartition:
    return FetchedPartition(TopicPartition("t", 0), error_code, records, 5, 5)


PYARROW, PYSPARK = Requirement("pyarrow", ">=18"), Requirement("pyspark", ">=4.0")
NO_MODULE = "ModuleNotFoundError: No module named"
DENIED, UNKNOWN = "TOPIC_AUTHORIZATION_FAILED (error 29)", "UNKNOWN_TOPIC_OR_PARTITION (error 3)"
REFUSED = ConnectError("cannot connect to a:9092: Connection refused")


def packages(requirement: Requirement, *installed: object) -> list[Finding | None]:
    return [machine_checks.judge_package(requirement, Installed(*installed))]  # type: ignore[arg-type]


def worker_python(report: object) -> list[Finding]:
    text = None if report is None else json.dumps(report)
    return [machine_checks.judge_worker_python("python3", False, text, (3, 11))]


def broker(seen: Any, rack: str = "") -> Iterable[Finding]:
    return connection_checks.broker_findings([Broker(1, A, "r1")], {A: seen}, rack)


def versions(fetch: int) -> list[Finding]:
    return [connection_checks.versions_finding([NEW, {METADATA: 12, FETCH: fetch}])]


def partition(**changes: Any) -> list[Finding | None]:
    return [topic_checks.judge_partition(row(**changes))]


def fetch(response: FetchedPartition, must_read: bool = True) -> list[Finding]:
    return [topic_checks.judge_fetched("fetch", response, 1.0, must_read)]


def spark(text: str) -> list[Finding]:
    return [connection_checks.judge_spark_error(text)]


bootstrap, topic = connection_checks.bootstrap_findings, topic_checks.judge_topic
Expected = tuple[str, Verdict, str, str]
"""Check and verdict; parts of the description and of the fix."""
VERSIONS: Expected = ("versions", OK, "Metadata v13, Fetch v16", "")
CASES: list[tuple[Iterable[Finding | None], list[Expected]]] = [
    ([machine_checks.judge_python("3.14.0 at /usr/bin/python3", False)], [("python", OK, "3.14.0 at /usr/", "")]),
    ([machine_checks.judge_python("3.14.0 at /t", True)], [("python", WARN, "is free-threaded", "with the GIL")]),
    # a package is there, new enough and whole; without pyspark the checks of brokers work
    (packages(PYARROW, "18.1", ""), []),
    (packages(PYARROW, None, ""), []),
    (packages(PYARROW, "17.0", ""), [("package pyarrow", FAIL, "17.0, required is pyarrow>=18", "'pyarrow>=18'")]),
    (packages(PYARROW, None, "ImportError: libz"), [("package pyarrow", FAIL, "(ImportError: libz)", "pip install")]),
    (packages(PYSPARK, None, f"{NO_MODULE} 'pyspark'", True), [("package pyspark", WARN, "is missing", "pip install")]),
    (packages(PYSPARK, None, f"{NO_MODULE} 'py4j'"), [("package pyspark", FAIL, "'py4j'", "pip install")]),
    # the Python of workers must be that of the driver
    (worker_python([[3, 11], []]), [("PYSPARK_PYTHON", OK, "not set, so that Spark starts python3: Python 3.11", "")]),
    (worker_python([[3, 12], []]), [("PYSPARK_PYTHON", FAIL, "is Python 3.12; the driver's is 3.11", "export PYS")]),
    (worker_python([[3, 11], ["kio"]]), [("PYSPARK_PYTHON", FAIL, "which lacks kio", "export PYSPARK_PYTHON=")]),
    (worker_python(None), [("PYSPARK_PYTHON", FAIL, "which does not run", "export PYSPARK_PYTHON=")]),
    # one bootstrap address must respond; all lead to one cluster
    (
        bootstrap({A: ConnectError("dead"), B: reached()}),
        [("bootstrap a:9092", WARN, "dead", "remove it"), ("bootstrap b:9092", OK, "connected in", "")],
    ),
    (
        bootstrap({A: ConnectError("dead"), B: TlsError("no trust")}),
        [("bootstrap a:9092", FAIL, "dead", "firewalls"), ("bootstrap b:9092", FAIL, "no trust", "kafka.ssl.")],
    ),
    (
        bootstrap({A: UnsupportedBrokerError("no Fetch v12")}),
        [("bootstrap a:9092", FAIL, "no Fetch v12", "use brokers of Apache Kafka 2.7 or later")],
    ),
    (
        list(bootstrap({A: reached("one"), B: reached("two")}))[2:],
        [("bootstrap", FAIL, "a:9092 is in one, b:9092 is in two", "single cluster")],
    ),
    # a broker is judged at the address that it advertises
    (broker(reached()), [("broker 1", OK, "a:9092", ""), VERSIONS]),
    (broker(reached(latency_ms=101)), [("broker 1", WARN, "a:9092", "closer"), VERSIONS]),
    (broker(REFUSED), [("broker 1", FAIL, "Connection refused", "advertised.listeners of broker 1")]),
    (broker(TlsError("the certificate has expired")), [("broker 1", FAIL, "expired", "certificate")]),
    (broker(reached(), "r1"), [("broker 1", OK, "a:9092", ""), VERSIONS]),
    (broker(reached(), "r2"), [("broker 1", OK, "a:9092", ""), VERSIONS, ("rack", WARN, "no broker is in it", "rem")]),
    (connection_checks.broker_findings([], {A: reached()}, ""), [("brokers", FAIL, "no brokers", "wait"), VERSIONS]),
    (
        connection_checks.shared_addresses([Broker(1, A), Broker(3, A), Broker(2, B)]),
        [("brokers", FAIL, "brokers 1, 3 all advertise a:9092", "an address of its own")],
    ),
    # the oldest broker says what is missing
    (versions(16), [("versions", OK, "Metadata v12, Fetch v16", "")]),
    (versions(15), [("versions", WARN, "Metadata v12, Fetch v15", "3.7")]),
    (versions(12), [("versions", WARN, "Metadata v12, Fetch v12", "3.7")]),
    # a partition needs a leader and its replicas
    (partition(), []),
    (partition(isr=(1,)), [("partition t-0", WARN, "1 of 2 replicas", "look at broker 2")]),
    (
        partition(leader_id=-1, isr=(), offline_replicas=(1,), error="x"),
        [("partition t-0", FAIL, "no leader", "start the brokers with its replicas: 1")],
    ),
    (partition(leader_id=-1, error="x"), [("partition t-0", FAIL, "no leader", "with its replicas: 1, 2")]),
    (partition(error="no response"), [("partition t-0", FAIL, "no response", "kafka-topics --describe --topic t")]),
    # a topic tells its partitions, and only the bad ones by name
    (topic([PartitionRow(topic="t", error=DENIED)]), [("topic t", FAIL, DENIED, "--operation Read --topic t")]),
    (topic([PartitionRow(topic="t", error=UNKNOWN)]), [("topic t", FAIL, UNKNOWN, "kafka-topics --create --topic t")]),
    (
        topic([PartitionRow(topic="t", error=DENIED)], "Write"),
        [("topic t", FAIL, DENIED, "--operation Write --topic t (Write includes Describe)")],
    ),
    (
        topic([row(), row(partition=1, isr=(2,)), row(partition=2, start_offset=3)]),
        [
            ("partition t-1", WARN, "1 of 2 replicas", "look at broker 1"),
            ("topic t", OK, "partitions: 3, led and in sync: 2; records: about 12", ""),
        ],
    ),
    (
        topic([row(topic_id=None)]),
        [("topic t", WARN, "report no topic id", "upgrade the brokers"), ("topic t", OK, "in sync: all", "")],
    ),
    # a fetch that gets no records says why; who only writes needs no right to read
    (fetch(fetched()), [("fetch", OK, "is empty", "")]),
    (fetch(fetched(29)), [("fetch", FAIL, DENIED, "--operation Read --topic t")]),
    (fetch(fetched(6)), [("fetch", FAIL, "NOT_LEADER_OR_FOLLOWER", "log of its leader")]),
    (fetch(fetched(records=b"\x09" * 61)), [("fetch", FAIL, "t-0: ", "onCorruptBatch")]),
    (fetch(fetched(records=bytes(61))), [("fetch", FAIL, "message format v0", "copy the topic: see docs/troubleshoo")]),
    (fetch(fetched(records=batch([Row(0)], attributes=5))), [("fetch", FAIL, "t-0: ", "docs/troubleshooting.md")]),
    (fetch(fetched(), False), [("fetch", OK, "is empty", "")]),
    (fetch(fetched(6), False), [("fetch", FAIL, "NOT_LEADER_OR_FOLLOWER", "log of its leader")]),
    (fetch(fetched(29), False), [("fetch", WARN, DENIED, "nothing, if this user only writes")]),
    # an error of Spark is its most specific line
    (spark("Job aborted\n[PYTHON_VERSION_MISMATCH] 3\nat"), [("spark", FAIL, "[PYTHON_VERSION_MISMATCH] 3", "SPARK_")]),
    (spark('IOException: Cannot run program "python9"'), [("spark", FAIL, "Cannot run program", "PYSPARK_PYTHON")]),
    (spark("java.net.SocketException: Connection reset"), [("spark", FAIL, "Connection reset", "PYSPARK_PYTHON")]),
    (spark("from the Python worker:\nE: [PYTHON_VERSION_MISMATCH] 3"), [("spark", FAIL, "MISMATCH] 3", "PYSPARK_")]),
    (spark("[JAVA_GATEWAY_EXITED] Java gateway"), [("spark", FAIL, "JAVA_GATEWAY_EXITED", "JAVA_HOME")]),
    (spark("Could not parse Master URL: 'x'"), [("spark", FAIL, "Could not parse", "any small pyspark job")]),
    (spark(""), [("spark", FAIL, "the job failed", "any small pyspark job")]),
]


@pytest.mark.parametrize(("found", "expected"), [(list(found), expected) for found, expected in CASES])
def test_findings(found: list[Finding | None], expected: list[Expected]) -> None:
    findings = [finding for finding in found if finding is not None]

    assert verdicts(findings) == [(check, verdict) for check, verdict, _, _ in expected]
    for finding, (_, _, what, fix) in zip(findings, expected, strict=True):
        assert what in finding.what and "\n" not in finding.what
        assert fix in finding.fix


UNBOUNDED = ({"start_offset": None}, {"end_offset": None}, {"start_offset": None, "end_offset": None})


def test_one_partition_of_each_leader_is_fetched_rather_one_with_records() -> None:
    rows = [row(end_offset=0), row(partition=1), row(partition=2, leader_id=2, end_offset=0), row(partition=3)]
    rows += [row(partition=4 + at, leader_id=3, **bounds) for at, bounds in enumerate(UNBOUNDED)]
    assert [one.partition for one in topic_checks.partition_of_each_leader(rows)] == [1, 2]


def test_of_many_bad_partitions_the_worst_are_named() -> None:
    rows = [row(partition=number, isr=(2,)) for number in range(100)] + [row(partition=100, leader_id=-1)]
    found = list(topic_checks.judge_topic(rows))
    assert len(found) == topic_checks.MAX_NAMED + 1
    assert verdicts(found)[0] == ("partition t-100", FAIL)
    assert found[-1].what.startswith("partitions: 101, led and in sync: 0;")


@pytest.mark.parametrize(
    ("version", "bounds", "holds"),
    [
        ("4.0.1", ">=4.0,<5", True),
        ("4", ">=4.0,<5", True),
        ("3.5.9", ">=4.0,<5", False),
        ("5.0", "<5,>=4.0", False),
        ("2.10", ">=2.9", True),
        ("2.9.post0", ">=2.7,<3", True),
        ("1.0+local.9", "<1.1", True),
        ("0.1", "", True),
    ],
)
def test_a_release_is_judged_by_number_not_by_text(version: str, bounds: str, holds: bool) -> None:
    assert machine_checks.is_within(version, bounds) is holds


@pytest.mark.parametrize("quote", ["'", '"'])
def test_spark_is_checked_and_what_other_extras_require_is_not(quote: str) -> None:
    texts = [
        f"pyspark<5,>=4.0; extra == {quote}spark{quote}",
        "kio (>=0.6.5)",
        f"gssapi; extra == {quote}kerberos{quote}",
    ]
    assert machine_checks.requirements(texts) == [Requirement("pyspark", "<5,>=4.0"), Requirement("kio", ">=0.6.5")]


def test_every_requirement_of_this_package_is_read_whole() -> None:
    required = machine_checks.requirements(metadata.requires(machine_checks.DISTRIBUTION) or ())
    assert {one.name for one in required} >= {"pyspark", "pyarrow", "kio", "cramjam"}
    assert all(set(one.bounds) <= set("0123456789.,<>=") for one in required)


def test_machine_without_pyspark_needs_neither_java_nor_a_python_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_but_pyspark(name: str) -> object:
        if name == "pyspark":
            raise ModuleNotFoundError(name, name=name)
        return object()

    monkeypatch.setattr(machine_checks, "import_module", all_but_pyspark)
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")

    found = {finding.check: finding.verdict for finding in machine_checks.machine_findings()}
    assert found == {"python": OK, "package pyspark": WARN}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, []),
        ({"PYSPARK_PYTHON": "python3"}, []),
        ({"PYSPARK_PYTHON": "python3", "PYSPARK_DRIVER_PYTHON": "python3"}, []),
        ({"PYSPARK_PYTHON": "./environment/bin/python", "PYSPARK_DRIVER_PYTHON": "python3"}, [WARN]),
        ({"PYSPARK_DRIVER_PYTHON": "ipython"}, [WARN]),
    ],
)
def test_driver_python_that_executors_get_is_a_warning(environment: dict[str, str], expected: list[Verdict]) -> None:
    assert [one.verdict for one in machine_checks.driver_python_findings(environment)] == expected


@pytest.mark.parametrize(
    ("given", "proposed"), [("python", True), ("kafkameta-python", False), ("elsewhere/python", False)]
)
def test_the_faster_python_beside_the_workers_python_is_proposed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, proposed: bool
) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("python", "kafkameta-python", "elsewhere/python"):
        (tmp_path / name).symlink_to(sys.executable)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / given))
    monkeypatch.setattr(machine_checks, "_output", lambda _: json.dumps([sys.version_info[:2], []]))

    (found,) = [one for one in machine_checks.machine_findings() if one.check == "PYSPARK_PYTHON"]
    assert (f"PYSPARK_PYTHON={tmp_path}/kafkameta-python starts it faster" in found.what) == proposed


def test_a_command_that_starts_another_python_is_not_proposed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As beside the python3.12 of a machine whose python is older."""
    for name in ("python3", "kafkameta-python"):
        (tmp_path / name).symlink_to(sys.executable)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python3"))
    reports = {"python3": [sys.version_info[:2], []], "kafkameta-python": [(3, 9), ["kio"]]}
    monkeypatch.setattr(machine_checks, "_output", lambda command: json.dumps(reports.get(Path(command[0]).name)))

    (found,) = [one for one in machine_checks.machine_findings() if one.check == "PYSPARK_PYTHON"]
    assert found.verdict is OK
    assert "kafkameta-python" not in found.what


def test_python_and_java_that_the_environment_names_are_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "no-such-python")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    *_, python, java = machine_checks.machine_findings()
    assert verdicts([python, java]) == [("PYSPARK_PYTHON", FAIL), ("java", FAIL)]
    assert python.what == "is no-such-python, which does not run"
    assert java.what == f"{tmp_path}/bin/java does not run"
    assert java.fix == "install Java 17 or later and put it on PATH, or set JAVA_HOME"


def test_the_worst_that_tasks_of_an_executor_saw_is_kept() -> None:
    rows = [
        ("e1", "ok", "fine", ""),
        ("e1", "fail", "lost", "mend"),
        ("e0", "ok", "fine", ""),
        ("e1", "ok", "again", ""),
    ]
    assert connection_checks.worst_of_each(rows) == [Finding("e0", OK, "fine"), Finding("e1", FAIL, "lost", "mend")]


def test_an_option_that_is_no_good_there_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        connection_checks, "task_origin", lambda role: Origin(role=role, executor_id="1", host="worker")
    )
    options = {"kafka.bootstrap.servers": "b:9", "kafka.security.protocol": "NONE"}
    *_, (check, verdict, what, _) = connection_checks.check_executor(None, options, [("b", 9)], None)

    assert (check, verdict) == ("executor 1 on worker: options", "fail")
    assert "kafka.security.protocol" in what


@pytest.mark.parametrize(("marker", "verdict"), [("doctor-1", "ok"), ("doctor-2", "warn")])
def test_an_executor_with_another_folder_than_the_driver_is_told(
    marker: str, verdict: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        connection_checks, "task_origin", lambda role: Origin(role=role, executor_id="1", host="worker")
    )
    (tmp_path / "doctor-1").touch()
    *_, found = connection_checks.check_executor(None, {}, [], (str(tmp_path), marker))

    assert found[:2] == ("executor 1 on worker: eventsPath", verdict)
    assert ("eventsTopic" in found[3]) is (verdict == "warn")


@given(st.sampled_from([kind for kind in vars(errors).values() if isinstance(kind, type)]))
def test_every_error_of_ours_has_a_fix(kind: type[KafkaMetaError]) -> None:
    error = kind("what", 1) if issubclass(kind, errors.BrokerError) else kind("what")
    found = failure("x", error)
    assert (found.verdict, found.what, bool(found.fix)) == (FAIL, "what", True)
