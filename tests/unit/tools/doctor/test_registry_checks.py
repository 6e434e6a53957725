"""What `kafkameta doctor` says about the schema registry and the schemas of a query."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.testing.mock_registry import MockRegistry
from pyspark_kafka_meta.tools.doctor import Finding, Verdict, registry_checks
from pyspark_kafka_meta.tools.doctor.registry_checks import registry_findings
from pyspark_kafka_meta.tools.doctor.topic_checks import reading_query, writing_query
from pyspark_kafka_meta.typed.protobuf.schema import descriptor_set
from tests.unit.typed.protobuf.test_columns import FILE, sized

SERVERS = {"kafka.bootstrap.servers": "broker-1:9092"}


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_checks, "SLOW_MS", 60_000.0)


def findings(registry: MockRegistry | None, *topics: str, writes: bool = False, **options: str) -> list[Finding]:
    url = {} if registry is None else {"schema.registry.url": registry.url}
    given = {**SERVERS, **url, **options}
    rest, query = writing_query(given, next(iter(topics), "any")) if writes else reading_query(given, topics)
    assert rest == SERVERS
    return list(registry_findings(query.typed, topics, timeout_ms=20_000, writes=writes))


def test_a_registry_and_the_schema_of_each_column_are_fine(registry: MockRegistry) -> None:
    registry.register("t-value", '{"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}]}')
    responds, value = findings(registry, "t", valueFormat="avro")

    assert (responds.verdict, value.verdict) == (Verdict.OK, Verdict.OK)
    assert "with 1 subjects" in responds.what
    assert value.what == "version 1 of t-value (id 1) is read as struct<x: int32 not null>"


def test_a_registry_alone_is_checked_too(registry: MockRegistry) -> None:
    assert [finding.check for finding in findings(registry)] == ["registry"]


def test_a_login_that_is_refused_is_the_only_finding(registry: MockRegistry) -> None:
    registry.login = "Basic bWU6b3RoZXI="
    (refused,) = findings(registry, "t", valueFormat="avro")

    assert refused.verdict is Verdict.FAIL
    assert "refused the login (401)" in refused.what
    assert refused.fix


def test_a_subject_or_a_schema_that_cannot_be_read_is_named(registry: MockRegistry) -> None:
    registry.register("t-key", "{}")
    _, key, value = findings(registry, "t", valueFormat="avro", keyFormat="avro")

    assert (key.check, key.verdict, value.check, value.verdict) == ("key", Verdict.FAIL, "value", Verdict.FAIL)
    assert "version latest of subject t-value" in value.what
    assert value.fix.startswith("register the schema")


def test_a_schema_of_an_option_needs_no_registry() -> None:
    (value,) = findings(None, "t", valueFormat="avro", valueSchema='"int"')

    assert (value.verdict, value.what) == (Verdict.OK, "option valueSchema is read as int32")


def test_without_topics_their_subjects_are_unknown(registry: MockRegistry) -> None:
    assert findings(registry, valueFormat="avro")[1].verdict is Verdict.WARN


def test_schema_that_a_write_registers_need_not_be_there(registry: MockRegistry) -> None:
    _, value = findings(registry, "t", writes=True, valueFormat="avro", **{"auto.register.schemas": "true"})

    assert (value.check, value.verdict) == ("value", Verdict.OK)
    assert registry.requests == ["GET /subjects"]


def test_schema_of_a_write_must_be_in_its_subject(registry: MockRegistry) -> None:
    subject = {"valueSubjectNameStrategy": "record", "valueRecordName": "A"}
    given = {"valueFormat": "avro", "valueSchema": '"int"', **subject}
    *_, missing = findings(registry, "t", writes=True, **given)
    registry.register("A", '"int"')
    *_, value, found = findings(registry, "t", writes=True, **given)

    assert (missing.verdict, "whether subject A has the schema" in missing.what) == (Verdict.FAIL, True)
    assert missing.fix.endswith("or set auto.register.schemas")
    assert (value.verdict, found.verdict, found.what) == (
        Verdict.OK,
        Verdict.OK,
        "subject A has this schema, with id 1",
    )


def test_schema_that_a_write_registers_must_be_compatible(registry: MockRegistry) -> None:
    given = {"valueFormat": "avro", "valueSchema": '"int"', "auto.register.schemas": "true"}
    *_, new = findings(registry, "t", writes=True, **given)
    registry.register("t-value", '"long"')
    *_, accepted = findings(registry, "t", writes=True, **given)
    registry.incompatible = "TYPE_MISMATCH"
    *_, refused = findings(registry, "t", writes=True, **given)

    assert [each.verdict for each in (new, accepted, refused)] == [Verdict.OK, Verdict.OK, Verdict.FAIL]
    assert new.what == "subject t-value is new, and the write registers this schema"
    assert refused.what == "subject t-value does not accept this schema: TYPE_MISMATCH"
    assert not [request for request in registry.requests if request == "POST /subjects/t-value/versions"]


def test_schema_that_no_write_can_register_is_a_finding(registry: MockRegistry, tmp_path: Path) -> None:
    file = tmp_path / "two.desc"
    file.write_bytes(descriptor_set([b"\x0a\x0bother.proto", FILE]))
    *_, refused = findings(registry, "t", writes=True, valueFormat="protobuf", valueSchema=str(file))

    assert (refused.check, refused.verdict) == ("value", Verdict.FAIL)
    assert refused.what == "its Protobuf schema imports other.proto: define all types in one file"


def test_recursive_type_is_read_without_its_field_and_written(registry: MockRegistry) -> None:
    """As deep as the columns are."""
    following = sized(0x0A, b"next") + bytes([0x18, 1, 0x20, 1, 0x28, 11]) + sized(0x32, b".Node")
    node = sized(0x0A, b"node.proto") + sized(0x22, sized(0x0A, b"Node") + sized(0x12, following))
    registry.register("t-value", base64.b64encode(node).decode(), kind="PROTOBUF")
    _, read = findings(registry, "t", valueFormat="protobuf")
    _, written = findings(registry, "t", writes=True, valueFormat="protobuf")

    assert (read.verdict, written.verdict) == (Verdict.OK, Verdict.OK)
    assert read.what == "version 1 of t-value (id 1) is read as struct<>"
    assert written.what == "version 1 of t-value (id 1) can be written"


@pytest.mark.parametrize(("kind", "schema"), [("avro", "{"), ("json", "{")])
def test_schema_that_is_none_cannot_be_written(registry: MockRegistry, kind: str, schema: str) -> None:
    registry.register("t-value", schema, kind=kind.upper())
    _, written = findings(registry, "t", writes=True, valueFormat=kind)

    assert written.verdict is Verdict.FAIL
    assert written.what.startswith("version 1 of t-value (id 1) cannot be written: ")


def test_registry_is_not_asked_for_a_schema_that_a_write_does_not_name(registry: MockRegistry) -> None:
    given = {"valueFormat": "avro", "valueSchema": '"int"', "valueFraming": "none"}
    assert [each.verdict for each in findings(registry, "t", writes=True, **given)] == [Verdict.OK, Verdict.OK]
    assert registry.requests == ["GET /subjects"]


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(OptionError, match=r"needs 'schema\.registry\.url'"):
        reading_query({**SERVERS, "valueFormat": "avro"}, ["t"])


FAULTS: list[tuple[str, Callable[[MockRegistry], object], str, str]] = [
    ("away", lambda registry: registry.stop(), "registry", "check the URL, firewalls on the way, and that the reg"),
    ("login", lambda registry: registry.respond(401), "registry", "set or correct 'schema.registry.basic.auth.user.in"),
    ("right", lambda registry: registry.respond(403), "registry", "allow it there, or use another login"),
    ("path", lambda registry: registry.respond(404), "registry", "correct 'schema.registry.url'"),
    ("page", lambda registry: registry.respond(200, "<html>"), "registry", "something else than the JSON"),
    ("page of a proxy", lambda registry: registry.respond(503, "<html>", 99), "registry", "503: Service Unavailable"),
    ("redirect", lambda registry: registry.respond(307), "registry", "set 'schema.registry.url' to that address"),
    ("no subject", lambda registry: None, "value", "register the schema, or correct the topic, the version or"),
    ("format", lambda registry: registry.register("t-value", "{}", "JSON"), "value", "correct 'valueFormat', or the"),
    ("garbage", lambda registry: registry.register("t-value", "{"), "value", "choose another schema"),
]


@pytest.mark.usefixtures("quick_pauses")
@pytest.mark.parametrize(
    ("script", "check", "next_step"), [each[1:] for each in FAULTS], ids=[each[0] for each in FAULTS]
)
def test_each_failure_is_one_sentence_and_the_next_step(
    registry: MockRegistry, script: Callable[[MockRegistry], object], check: str, next_step: str
) -> None:
    script(registry)
    (failure,) = [found for found in findings(registry, "t", valueFormat="avro") if found.verdict is not Verdict.OK]

    assert (failure.check, failure.verdict) == (check, Verdict.FAIL)
    assert next_step in f"{failure.what} -> {failure.fix}"
    assert check == "registry" or "t-value" in failure.what
    assert "\n" not in failure.what and failure.fix


def test_silent_registry_is_left_at_the_deadline_and_the_next_step_is_told(registry: MockRegistry) -> None:
    registry.delay_s = 30.0
    _, query = reading_query({**SERVERS, "schema.registry.url": registry.url}, ())
    (failure,) = registry_findings(query.typed, (), timeout_ms=1_000, writes=False)

    assert (failure.check, failure.verdict) == ("registry", Verdict.FAIL)
    assert "raise 'schema.registry.timeout.ms'" in f"{failure.what} -> {failure.fix}"


def test_slow_registry_is_a_warning(registry: MockRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_checks, "SLOW_MS", 1.0)
    registry.delay_s = 0.01
    (slow,) = findings(registry)

    assert (slow.verdict, slow.check) == (Verdict.WARN, "registry")


def test_a_schema_in_values_is_checked_with_the_newest_records() -> None:
    assert findings(None, "t", valueFormat="connect-json") == []
    (value,) = findings(None, "t", valueFormat="connect-json", valueSchema='{"type": "int8"}')
    assert (value.verdict, value.what) == (Verdict.OK, "option valueSchema is read as int8")
