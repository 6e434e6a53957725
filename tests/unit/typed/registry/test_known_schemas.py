"""What the registry is asked for, and who waits for whom: `KnownSchemas` and `KnownVersions`."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from pyspark_kafka_meta.errors import SchemaRegistryError, UnknownSchemaError, ValueSchemaError
from pyspark_kafka_meta.options import RegistryOptions, Secret
from pyspark_kafka_meta.testing.mock_registry import MockRegistry
from pyspark_kafka_meta.typed.formats import SchemaText
from pyspark_kafka_meta.typed.registry.client import RegisteredSchema, RegistryClient, SubjectVersion
from pyspark_kafka_meta.typed.registry.known_schemas import (
    ASK_AGAIN_S,
    MAX_UNKNOWN_IDS,
    PAUSE_FACTOR,
    UNKNOWN_FOR_S,
    KnownSchemas,
    KnownVersions,
)
from tests.unit.typed.registry.test_client import UNKNOWN_GUID, client, options

REGISTRY = options("u")


def test_an_id_is_fetched_once(registry: MockRegistry) -> None:
    registry.register("t-value", '"int"')
    known, asks = KnownSchemas(), client(registry)

    assert known.schema(REGISTRY, 1, "AVRO", asks) == known.schema(REGISTRY, 1, "AVRO", asks)
    assert len(registry.requests) == 1
    known.schema(options("v"), 1, "AVRO", asks)
    assert len(registry.requests) == 2


def test_another_login_may_lead_to_another_registry_at_the_same_url(registry: MockRegistry) -> None:
    registry.register("t-value", '"int"')
    known, given = KnownSchemas(), RegisteredSchema(1, "AVRO", SchemaText('"string"'))
    known.add(options("u", user_info=Secret("production:1")), [given])

    assert known.schema(options("u", user_info=Secret("staging:1")), 1, "AVRO", client(registry)).schema.text == '"int"'


def test_each_context_of_a_registry_has_ids_of_its_own(registry: MockRegistry) -> None:
    registry.register("t-value", '"int"')
    known, asks, given = KnownSchemas(), client(registry), RegisteredSchema(1, "AVRO", SchemaText('"long"'))
    known.add(REGISTRY, [given, replace(given, context=".b", schema=SchemaText('"string"'))])

    found = [known.schema(REGISTRY, 1, "AVRO", asks, subject=f"{context}t-value") for context in ("", ":.a:", ":.b:")]
    assert [schema.schema.text for schema in found] == ['"long"', '"int"', '"string"']
    assert registry.requests == ["GET /schemas/ids/1?subject=%3A.a%3At-value"]


def test_given_schemas_are_not_fetched(registry: MockRegistry) -> None:
    known, given = KnownSchemas(), RegisteredSchema(5, "AVRO", SchemaText('"int"'))
    known.add(REGISTRY, [given])

    assert known.schema(REGISTRY, 5, "AVRO", client(registry)) == given
    assert registry.requests == []


def test_given_schemas_are_known_by_their_guids_too(registry: MockRegistry) -> None:
    known, given = KnownSchemas(), RegisteredSchema(5, "AVRO", SchemaText('"int"'), UNKNOWN_GUID)
    known.add(REGISTRY, [given])

    assert known.schema(REGISTRY, UNKNOWN_GUID, "AVRO", client(registry)) == given
    assert registry.requests == []


@pytest.fixture
def unknown(registry: MockRegistry) -> Callable[..., bool]:
    """Whether schema id 1, which the registry lacks, was asked for at this time."""
    now_s = 0.0
    known, asks = KnownSchemas(lambda: now_s), client(registry)

    def is_asked(at_s: float, asks_again: bool = False) -> bool:
        nonlocal now_s
        now_s, before = at_s, len(registry.requests)
        with pytest.raises(UnknownSchemaError, match="asked for schema id 1 and does not have it"):
            known.schema(REGISTRY, 1, "AVRO", asks, asks_again=asks_again)
        return len(registry.requests) > before

    return is_asked


def test_an_unknown_id_is_asked_for_again_soon_and_then_less_and_less(unknown: Callable[..., bool]) -> None:
    """A registry may lag behind the writers of records for a moment, while an id that does not exist stays unknown."""
    times_s = [number / 10 for number in range(10 * int(UNKNOWN_FOR_S))]

    assert [at_s for at_s in times_s if unknown(at_s)] == [0, 0.5, 1, 2, 4, 8, 16, 32]
    assert unknown(UNKNOWN_FOR_S) and unknown(UNKNOWN_FOR_S + ASK_AGAIN_S)


def test_who_would_fail_asks_again_at_once(unknown: Callable[..., bool]) -> None:
    assert all(unknown(at_s, asks_again=True) for at_s in (0, 0, 0.1, 20, 20.1))


def test_an_id_that_a_lagging_registry_knows_by_now_is_found(registry: MockRegistry) -> None:
    now_s = 0.0
    known, asks = KnownSchemas(lambda: now_s), client(registry)
    with pytest.raises(UnknownSchemaError):
        known.schema(REGISTRY, 1, "AVRO", asks)
    registry.register("t-value", '"int"')
    with pytest.raises(UnknownSchemaError):
        known.schema(REGISTRY, 1, "AVRO", asks)
    now_s = ASK_AGAIN_S

    assert known.schema(REGISTRY, 1, "AVRO", asks).schema.text == '"int"'


def test_unknown_id_keeps_nothing_of_its_task_in_memory(registry: MockRegistry) -> None:
    known, asks = KnownSchemas(), client(registry)

    def task() -> weakref.ref[set[int]]:
        records = {1, 2, 3}
        with suppress(UnknownSchemaError):
            known.schema(REGISTRY, 1, "AVRO", asks)
        return weakref.ref(records)

    records = task()
    gc.collect()
    assert records() is None


def test_values_that_are_no_frames_do_not_ask_the_registry_for_each_of_their_ids(registry: MockRegistry) -> None:
    now_s = 0.0
    known, asks = KnownSchemas(lambda: now_s), client(registry)
    registry.register("t-value", '"int"')
    for schema_id in range(1_000, 1_000 + 5 * MAX_UNKNOWN_IDS):
        with pytest.raises(UnknownSchemaError):
            known.schema(REGISTRY, schema_id, "AVRO", asks)

    assert len(registry.requests) == MAX_UNKNOWN_IDS
    with pytest.raises(
        UnknownSchemaError, match="was not asked for schema id 1, because it did not have 100 other ids"
    ):
        known.schema(REGISTRY, 1, "AVRO", asks)
    known.schema(options("another registry"), 1, "AVRO", asks)
    now_s = UNKNOWN_FOR_S
    assert known.schema(REGISTRY, 1, "AVRO", asks).schema.text == '"int"'


def test_a_query_that_goes_on_without_schemas_makes_no_other_one_fail(registry: MockRegistry) -> None:
    known, asks = KnownSchemas(), client(registry)
    for schema_id in range(MAX_UNKNOWN_IDS):
        with pytest.raises(UnknownSchemaError):
            known.schema(REGISTRY, 1_000 + schema_id, "AVRO", asks)
    registry.register("t-value", '"int"')

    assert known.schema(REGISTRY, 1, "AVRO", asks, asks_again=True).schema.text == '"int"'


def test_a_schema_of_another_kind_is_asked_for_once_and_without_what_it_refers_to(registry: MockRegistry) -> None:
    known, asks = KnownSchemas(), client(registry)
    registry.register("t-value", '{"type": "object"}', "JSON")
    for _ in range(3):
        with pytest.raises(ValueSchemaError, match="its schema is JSON, not PROTOBUF"):
            known.schema(REGISTRY, 1, "PROTOBUF", asks)

    assert len(registry.requests) == 1
    assert known.schema(REGISTRY, 1, "JSON", asks).kind == "JSON"


def test_schemas_of_another_kind_are_not_counted_as_unknown(registry: MockRegistry) -> None:
    known, asks = KnownSchemas(), client(registry)
    for number in range(MAX_UNKNOWN_IDS):
        registry.register("others", f'{{"title": "{number}"}}', "JSON")
        with pytest.raises(ValueSchemaError):
            known.schema(REGISTRY, number + 1, "AVRO", asks)
    wanted = registry.register("t-value", '"int"')
    assert known.schema(REGISTRY, wanted, "AVRO", asks).schema.text == '"int"'


# --- several threads --------------------------------------------------------------------------------------------------


class SlowClient(RegistryClient):
    """Its registry responds once `answer` is set.

    Attributes:
        error: raised instead of a response.
        asked: the keys so far.
        is_asked: set by the first request.
    """

    def __init__(self, error: SchemaRegistryError | None = None) -> None:
        super().__init__(REGISTRY)
        self.error = error
        self.asked: list[int | str] = []
        self.is_asked, self.answer = threading.Event(), threading.Event()

    def schema(self, key: int | str, kind: str | None = None, subject: str | None = None) -> RegisteredSchema:
        self.asked.append(key)
        self.is_asked.set()
        assert self.answer.wait(20)
        if self.error is not None:
            raise self.error
        return given(key)


def given(key: int | str) -> RegisteredSchema:
    return RegisteredSchema(int(key), "AVRO", SchemaText('"int"'))


@contextmanager
def another_task_asks(
    known: KnownSchemas, slow: SlowClient, key: int, registry: RegistryOptions = REGISTRY
) -> Iterator[None]:
    """Inside, the registry has not responded yet. Afterwards it has."""
    with ThreadPoolExecutor(1) as tasks:
        task = tasks.submit(known.schema, registry, key, "AVRO", slow, asks_again=True)
        assert slow.is_asked.wait(20)
        try:
            yield
        finally:
            slow.answer.set()
        assert task.exception(20) is slow.error


def test_slow_look_up_delays_no_task_that_needs_another_schema(registry: MockRegistry) -> None:
    known, slow = KnownSchemas(), SlowClient()
    known.add(REGISTRY, [given(1)])
    registry.register("t-value", '"a"')
    second = registry.register("t-value", '"b"')

    with another_task_asks(known, slow, 5):
        assert known.schema(REGISTRY, 1, "AVRO", slow) == given(1)
        assert known.schema(REGISTRY, second, "AVRO", client(registry)).schema.text == '"b"'
        known.add(REGISTRY, [given(5)])
        assert known.schema(REGISTRY, 5, "AVRO", slow) == given(5)
    assert slow.asked == [5]


@pytest.mark.parametrize("error", [None, UnknownSchemaError("no such id", 40403)], ids=str)
def test_tasks_that_need_the_same_schema_share_a_request(error: UnknownSchemaError | None) -> None:
    known, slow, other = KnownSchemas(), SlowClient(error), SlowClient()
    with another_task_asks(known, slow, 5):
        threading.Timer(0.05, slow.answer.set).start()
        if error is None:
            assert known.schema(REGISTRY, 5, "AVRO", other) == given(5)
        else:
            with pytest.raises(UnknownSchemaError, match="no such id"):
                known.schema(REGISTRY, 5, "AVRO", other, asks_again=True)
    assert other.asked == []


def test_task_whose_predecessor_found_the_registry_away_asks_itself() -> None:
    known, slow, other = KnownSchemas(), SlowClient(SchemaRegistryError("away")), SlowClient()
    other.answer.set()
    with another_task_asks(known, slow, 5):
        threading.Timer(0.05, slow.answer.set).start()
        assert known.schema(REGISTRY, 5, "AVRO", other) == given(5)
    assert other.asked == [5]


def test_task_asks_itself_if_its_predecessor_does_not_end_in_time() -> None:
    known, hasty, other = KnownSchemas(), replace(REGISTRY, timeout_ms=20), SlowClient()
    other.answer.set()
    with another_task_asks(known, SlowClient(), 5, hasty):
        assert known.schema(hasty, 5, "AVRO", other) == given(5)
    assert other.asked == [5]


# --- known versions ---------------------------------------------------------------------------------------------------


class AwayClient(RegistryClient):
    """Its registry has one version of each subject while `waits_s` is 0, and else takes as long to fail.

    Attributes:
        refused: subjects that fail soon.
        asked: the subjects so far.
    """

    def __init__(self) -> None:
        super().__init__(REGISTRY)
        self.now_s = self.waits_s = 0.0
        self.newest = 1
        self.refused: set[str] = set()
        self.asked: list[str] = []

    def within(self, timeout_ms: int) -> RegistryClient:
        return self

    def version(self, subject: str, version: int | str) -> SubjectVersion:
        self.asked.append(subject)
        self.now_s += 0.01 if subject in self.refused else self.waits_s
        if self.waits_s or subject in self.refused:
            raise SchemaRegistryError("away")
        return SubjectVersion(subject, self.newest, given(self.newest))


def test_stream_waits_for_each_known_version_of_a_failing_registry_a_tenth_of_its_time() -> None:
    registry = AwayClient()
    known = KnownVersions(lambda: registry.now_s)
    subjects = ("t-key", "t-value")
    for subject in subjects:
        known.version(REGISTRY, subject, "latest", registry)
    registry.asked.clear()
    registry.waits_s = 5.0
    while registry.now_s < 12 * registry.waits_s * PAUSE_FACTOR:
        assert [known.version(REGISTRY, subject, "latest", registry).version for subject in subjects] == [1, 1]
        registry.now_s += 0.1  # the rest of a micro-batch

    assert registry.asked == [*subjects] * 11
    with pytest.raises(SchemaRegistryError, match="away"):
        known.version(REGISTRY, "unknown", "latest", registry)


def test_subject_that_is_refused_keeps_no_other_one_from_its_new_version() -> None:
    registry = AwayClient()
    known = KnownVersions(lambda: registry.now_s)
    subjects = ("t-key", "t-value")
    for registry.newest in (1, 2):
        versions = [known.version(REGISTRY, subject, "latest", registry).version for subject in subjects]
        registry.refused, registry.now_s = {"t-key"}, 1.0
    assert versions == [1, 2]


def test_new_version_is_found_once_the_registry_is_back() -> None:
    registry = AwayClient()
    known = KnownVersions(lambda: registry.now_s)
    known.version(REGISTRY, "t-value", "latest", registry)
    registry.waits_s = 5.0
    known.version(REGISTRY, "t-value", "latest", registry)
    registry.waits_s, registry.newest = 0.0, 2
    assert known.version(REGISTRY, "t-value", "latest", registry).version == 1
    registry.now_s += 5.0 * PAUSE_FACTOR
    for registry.newest in (2, 3):
        assert known.version(REGISTRY, "t-value", "latest", registry).version == registry.newest
