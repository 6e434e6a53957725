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
from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, TlsError
from pyspark_kafka_meta.kafka.metadata.refresh_events import Origin
from pyspark_kafka_meta.kafka.protocol.fetch import FetchedPartition
from pyspark_kafka_meta.kafka.protocol.frame_codec import FETCH, METADATA, Api
from pyspark_kafka_meta.model import Address, Broker, MetadataResponse, TopicPartition
from pyspark_kafka_meta.tables.rows import PartitionRow
from pyspark_kafka_meta.tools.doctor import (
    Finding,
    Verdict,
    connection_checks,
    failure,
    machine_checks,
    topic_checks,
)
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


# This machine.


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


@pytest.mark.parametrize(
    ("installed", "text"),
    [
        (Installed("18.1", ""), None),
        (Installed(None, ""), None),
        (Installed("17.0", ""), "its version is 17.0, required is pyarrow>=18"),
        (Installed(None, "ImportError: libz"), "it cannot be imported (ImportError: libz)"),
    ],
)
def test_a_package_is_there_new_enough_and_whole(installed: Installed, text: str | None) -> None:
    found = machine_checks.judge_package(Requirement("pyarrow", ">=18"), installed)
    assert (found and found.what) == text
    assert found is None or (found.verdict, "pip install 'pyarrow>=18'" in found.fix) == (FAIL, True)


def test_missing_pyspark_is_a_warning_and_a_broken_one_a_failure() -> None:
    pyspark, error = Requirement("pyspark", ">=4.0"), "ModuleNotFoundError: No module named"
    missing = machine_checks.judge_package(pyspark, Installed(None, f"{error} 'pyspark'", is_missing=True))
    broken = machine_checks.judge_package(pyspark, Installed(None, f"{error} 'py4j'"))
    assert [found and found.verdict for found in (missing, broken)] == [WARN, FAIL]


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
    ("told", "text"),
    [
        (json.dumps([[3, 11], []]), None),
        (json.dumps([[3, 12], []]), "which is Python 3.12; the driver's is 3.11"),
        (json.dumps([[3, 11], ["kio"]]), "which lacks kio"),
        (None, "which does not run"),
    ],
)
def test_the_python_of_workers_must_be_that_of_the_driver(told: str | None, text: str | None) -> None:
    found = machine_checks.judge_worker_python("python3", False, told, (3, 11))
    assert found.verdict is (OK if text is None else FAIL)
    assert "is not set, so that Spark starts python3" in found.what
    assert (text or "with the packages") in found.what
    assert text is None or "export PYSPARK_PYTHON=" in found.fix


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
def test_a_driver_python_that_executors_would_get_is_a_warning(
    environment: dict[str, str], expected: list[Verdict]
) -> None:
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


def test_the_python_and_the_java_that_the_environment_names_are_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "no-such-python")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    *_, python, java = machine_checks.machine_findings()
    assert verdicts([python, java]) == [("PYSPARK_PYTHON", FAIL), ("java", FAIL)]
    assert python.what == "is no-such-python, which does not run"
    assert java.what == f"{tmp_path}/bin/java does not run"
    assert java.fix == "install Java 17 or later and put it on PATH, or set JAVA_HOME"


# Brokers.


def test_a_dead_address_beside_one_that_responds_is_a_warning() -> None:
    found = connection_checks.bootstrap_findings({A: ConnectError("dead"), B: reached()})
    assert verdicts(found) == [("bootstrap a:9092", WARN), ("bootstrap b:9092", OK)]


def test_dead_addresses_alone_are_failures() -> None:
    found = list(connection_checks.bootstrap_findings({A: ConnectError("dead"), B: TlsError("no trust")}))
    assert verdicts(found) == [("bootstrap a:9092", FAIL), ("bootstrap b:9092", FAIL)]
    assert "firewalls" in found[0].fix
    assert "kafka.ssl." in found[1].fix


def test_addresses_of_two_clusters_are_a_failure() -> None:
    *_, found = connection_checks.bootstrap_findings({A: reached("one"), B: reached("two")})
    assert (found.verdict, "a:9092 is in one, b:9092 is in two" in found.what) == (FAIL, True)


@pytest.mark.parametrize(
    ("seen", "verdict", "fix"),
    [
        (reached(), OK, ""),
        (reached(latency_ms=101), WARN, "closer"),
        (ConnectError("cannot connect to a:9092: Connection refused"), FAIL, "advertised.listeners of broker 1"),
        (TlsError("the certificate has expired"), FAIL, "certificate"),
    ],
)
def test_a_broker_is_judged_at_the_address_that_it_advertises(seen: Any, verdict: Verdict, fix: str) -> None:
    found, *_ = connection_checks.broker_findings([Broker(1, A)], {A: seen}, rack="")
    assert (found.check, found.verdict) == ("broker 1", verdict)
    assert fix in found.fix


def test_a_cluster_that_knows_no_broker_cannot_be_read() -> None:
    found = connection_checks.broker_findings([], {A: reached()}, rack="")
    assert verdicts(found) == [("brokers", FAIL), ("versions", OK)]


def test_brokers_behind_one_address_cannot_be_told_apart() -> None:
    found = connection_checks.shared_addresses([Broker(1, A), Broker(3, A), Broker(2, B)])
    (finding,) = found
    assert "brokers 1, 3 all advertise a:9092" in finding.what


@pytest.mark.parametrize(("fetch", "verdict", "release"), [(16, OK, ""), (15, WARN, "3.7"), (12, WARN, "3.7")])
def test_the_oldest_broker_says_what_is_missing(fetch: int, verdict: Verdict, release: str) -> None:
    found = connection_checks.versions_finding([NEW, {METADATA: 12, FETCH: fetch}])
    assert found.verdict is verdict
    assert f"Metadata v12, Fetch v{fetch}" in found.what
    assert release in found.fix


@pytest.mark.parametrize(("rack", "warned"), [("", False), ("r1", False), ("r2", True)])
def test_a_rack_without_brokers_is_a_warning(rack: str, warned: bool) -> None:
    found = connection_checks.broker_findings([Broker(1, A, "r1")], {A: reached()}, rack)
    assert ("rack" in {one.check for one in found}) is warned


# Topics.


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


@pytest.mark.parametrize(
    ("changes", "verdict", "text"),
    [
        ({}, None, ""),
        ({"isr": (1,)}, WARN, "look at broker 2"),
        (
            {"leader_id": -1, "isr": (), "offline_replicas": (1,), "error": "x"},
            FAIL,
            "start the brokers with its replicas: 1",
        ),
        ({"leader_id": -1, "error": "x"}, FAIL, "start the brokers with its replicas: 1, 2"),
        ({"error": "b:9092 did not answer"}, FAIL, "kafka-topics --describe --topic t"),
    ],
)
def test_a_partition_needs_a_leader_and_its_replicas(changes: Any, verdict: Verdict | None, text: str) -> None:
    found = topic_checks.judge_partition(row(**changes))
    assert (found and found.verdict) is verdict
    assert found is None or text in found.fix


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("TOPIC_AUTHORIZATION_FAILED (error 29)", "--operation Read --topic t"),
        ("UNKNOWN_TOPIC_OR_PARTITION (error 3)", "kafka-topics --create --topic t"),
    ],
)
def test_a_topic_that_cannot_be_had_says_how_to_get_it(error: str, fix: str) -> None:
    (found,) = topic_checks.judge_topic([PartitionRow(topic="t", error=error)])
    assert (found.check, found.verdict, found.what) == ("topic t", FAIL, error)
    assert fix in found.fix


def test_a_topic_to_write_needs_the_right_to_write() -> None:
    (found,) = topic_checks.judge_topic(
        [PartitionRow(topic="t", error="TOPIC_AUTHORIZATION_FAILED (error 29)")], "Write"
    )
    assert "--operation Write --topic t (Write includes Describe)" in found.fix


def test_a_topic_tells_its_partitions_and_only_the_bad_ones_by_name() -> None:
    found = list(topic_checks.judge_topic([row(), row(partition=1, isr=(2,)), row(partition=2, start_offset=3)]))
    assert verdicts(found) == [("partition t-1", WARN), ("topic t", OK)]
    assert found[1].what == "partitions: 3, led and in sync: 2; records: about 12"


def test_a_topic_without_an_id_is_warned_of() -> None:
    found = list(topic_checks.judge_topic([row(topic_id=None)]))
    assert verdicts(found) == [("topic t", WARN), ("topic t", OK)]
    assert "the brokers report no topic id" in found[0].what


def test_of_many_bad_partitions_the_worst_are_named() -> None:
    rows = [row(partition=number, isr=(2,)) for number in range(100)] + [row(partition=100, leader_id=-1)]
    found = list(topic_checks.judge_topic(rows))
    assert len(found) == topic_checks.MAX_NAMED + 1
    assert verdicts(found)[0] == ("partition t-100", FAIL)
    assert found[-1].what.startswith("partitions: 101, led and in sync: 0;")


def test_one_partition_of_each_leader_is_fetched_rather_one_with_records() -> None:
    rows = [row(end_offset=0), row(partition=1), row(partition=2, leader_id=2, end_offset=0), row(partition=3)]
    rows.append(row(partition=4, leader_id=3, start_offset=None, end_offset=None, error="dead"))
    assert [one.partition for one in topic_checks.partition_of_each_leader(rows)] == [1, 2]


def fetched(error_code: int = 0, records: bytes = b"") -> FetchedPartition:
    return FetchedPartition(TopicPartition("t", 0), error_code, records, 5, 5)


@pytest.mark.parametrize(
    ("response", "verdict", "text"),
    [
        (fetched(), OK, ""),
        (fetched(29), FAIL, "--operation Read --topic t"),
        (fetched(6), FAIL, "log of its leader"),
        (fetched(records=b"\x09" * 61), FAIL, "onCorruptBatch"),
        (fetched(records=bytes(61)), FAIL, "docs/troubleshooting.md"),
        (fetched(records=batch([Row(0)], attributes=5)), FAIL, "docs/troubleshooting.md"),
    ],
)
def test_a_fetch_that_gets_no_records_says_why(response: FetchedPartition, verdict: Verdict, text: str) -> None:
    found = topic_checks.judge_fetched("fetch", response, 1.0)
    assert found.verdict is verdict
    assert text in found.fix


@pytest.mark.parametrize(("error_code", "verdict"), [(0, OK), (6, FAIL), (29, WARN)])
def test_a_user_who_only_writes_needs_no_right_to_read(error_code: int, verdict: Verdict) -> None:
    assert topic_checks.judge_fetched("fetch", fetched(error_code), 1.0, must_read=False).verdict is verdict


def test_on_corrupt_batch_is_proposed_for_corrupt_batches_alone() -> None:
    found = topic_checks.judge_fetched("fetch", fetched(records=bytes(61)), 1.0)

    assert "message format v0" in found.what
    assert "onCorruptBatch" not in found.fix


# Executors.


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("Job aborted\n[PYTHON_VERSION_MISMATCH] 3.9 and 3.11\nat", "[PYTHON_VERSION_MISMATCH] 3.9", "PYSPARK_PYTHON"),
        ('java.io.IOException: Cannot run program "python9"', "Cannot run program", "PYSPARK_PYTHON"),
        ("java.net.SocketException: Connection reset", "Connection reset", "PYSPARK_PYTHON"),
        (
            "from the Python worker:\nE: [PYTHON_VERSION_MISMATCH] 3.12",
            "[PYTHON_VERSION_MISMATCH] 3.12",
            "PYSPARK_PYTHON",
        ),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited", "JAVA_GATEWAY_EXITED", "JAVA_HOME"),
        ("Could not parse Master URL: 'x'", "Could not parse", "any small pyspark job"),
        ("", "the job failed", "any small pyspark job"),
    ],
)
def test_an_error_of_spark_is_told_in_one_line(text: str, what: str, fix: str) -> None:
    found = connection_checks.judge_spark_error(text)
    assert (found.verdict, "\n" in found.what) == (FAIL, False)
    assert what in found.what
    assert fix in found.fix


def test_the_worst_that_tasks_of_an_executor_saw_is_kept() -> None:
    rows = [
        ("e1", "ok", "fine", ""),
        ("e1", "fail", "lost", "mend"),
        ("e0", "ok", "fine", ""),
        ("e1", "ok", "again", ""),
    ]
    assert connection_checks.worst_of_each(rows) == [Finding("e0", OK, "fine"), Finding("e1", FAIL, "lost", "mend")]


@pytest.mark.parametrize(("start", "end"), [(None, 5), (0, None), (None, None)])
def test_a_partition_without_known_bounds_is_not_fetched(start: int | None, end: int | None) -> None:
    row = PartitionRow(topic="t", partition=0, leader_id=1, leader_epoch=0, start_offset=start, end_offset=end)
    assert topic_checks.partition_of_each_leader([row]) == []


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


# All of them.


@given(st.sampled_from([kind for kind in vars(errors).values() if isinstance(kind, type)]))
def test_every_error_of_ours_has_a_fix(kind: type[KafkaMetaError]) -> None:
    error = kind("what", 1) if issubclass(kind, errors.BrokerError) else kind("what")
    found = failure("x", error)
    assert (found.verdict, found.what, bool(found.fix)) == (FAIL, "what", True)
