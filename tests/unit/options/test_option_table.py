"""The table of options: each row is complete, and says where its option has an effect and what it was called before."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.kafka.network.security.sasl_mechanisms import STEPS
from pyspark_kafka_meta.options import (
    MECHANISMS,
    OPTIONS,
    PARTS,
    ClientOptions,
    Query,
    SourceOptions,
    choose_table,
    option_names,
    option_table,
)
from pyspark_kafka_meta.options.option_table import Rows, Section, options_of
from pyspark_kafka_meta.options.tables import batch_warnings, is_read

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
READ = {**SERVERS, "subscribe": "t"}
NO_OPTIONS = {
    "client",
    "client_id",
    "driver",
    "fetch",
    "metrics",
    "producer",
    "registry",
    "security",
    "transaction",
    "typed",
}
"""Fields that are not options, but parts of the table, or set later."""


@pytest.mark.parametrize("name", OPTIONS)
def test_row_is_complete(name: str) -> None:
    option = OPTIONS[name]

    assert option.name == name
    assert option.doc.endswith(".")
    assert option.default is None or option.default_value() is not None
    assert option.queries or name == "table"


@pytest.mark.parametrize("part", PARTS)
def test_every_field_of_options_is_a_row_of_the_table(part: type) -> None:
    rows = options_of(part)

    assert {field.name for field in fields(part)} - rows.keys() <= NO_OPTIONS
    assert all(OPTIONS[row.name] is row for row in rows.values())


def test_every_section_has_options() -> None:
    assert {option.section for option in OPTIONS.values()} == set(Section)


def test_every_mechanism_has_login_steps() -> None:
    assert MECHANISMS.keys() == STEPS.keys()


@pytest.mark.parametrize(
    ("name", "queries"),
    [
        ("kafka.bootstrap.servers", Query.CONNECTED),
        ("kafka.client.rack", Query.FETCHES),
        ("subscribe", Query.RECORDS | Query.PARTITIONS),
        ("decisionsTopic", Query.RECORDS | Query.EXACTLY_ONCE | Query.TRANSACTIONS),
        ("kafka.transactional.id", Query.WRITES),
        ("newPartitions", Query.RECORDS_STREAM),
    ],
)
def test_row_says_where_its_option_has_an_effect(name: str, queries: Query) -> None:
    assert OPTIONS[name].queries == queries


def test_batch_names_options_of_streams() -> None:
    given = {"MAXFILESPERTRIGGER": "1", "newPartitions": "latest", "maxTasks": "1", "table": "records"}
    assert batch_warnings(given) == [
        f"{name} option ignored in batch queries" for name in ("maxFilesPerTrigger", "newPartitions")
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"TABLE": "caches"}, True),
        ({"SubscribePattern": "t.*"}, True),
        (SERVERS, False),
        ({"subscribe": "t", "topic": "u"}, False),
        ({"subscribe": "t", "checkpointlocation": "/c"}, False),
    ],
)
def test_options_are_of_a_read_if_they_say_what_to_read_and_nothing_of_a_sink(
    given: dict[str, str], expected: bool
) -> None:
    assert is_read(given) is expected


# --- former names -----------------------------------------------------------------------------------------------------


@dataclass
class _Renamed:
    limit: int = Rows(Section.FETCHES, Query.FETCHES).number("new.limit", None, "A limit.", former_names=("old.limit",))


def test_names_of_options_include_former_names() -> None:
    assert option_names(_Renamed) == ["new.limit", "old.limit"]


@pytest.fixture
def _renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`subscribe` and `kafka.client.id` had other names."""
    option_table._warn_once.cache_clear()
    for name, former in (("subscribe", "topics"), ("kafka.client.id", "kafka.client.name")):
        monkeypatch.setitem(OPTIONS, name, replace(OPTIONS[name], former_names=(former,)))


@pytest.mark.usefixtures("_renamed")
def test_former_name_is_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    formerly = {**SERVERS, "Topics": "t", "kafka.client.name": "me"}

    assert SourceOptions.parse(formerly) == SourceOptions.parse({**READ, "kafka.client.id": "me"})
    assert caplog.messages == [
        "Option 'Topics' is deprecated: use 'subscribe'",
        "Option 'kafka.client.name' is deprecated: use 'kafka.client.id'",
    ]
    assert ClientOptions.parse({**SERVERS, "kafka.client.name": "me"}).client_id == "me"
    assert choose_table(formerly)[1] == {**READ, "kafka.client.id": "me"}
    assert is_read({"topics": "t"})


@pytest.mark.usefixtures("_renamed")
def test_option_is_refused_under_both_names() -> None:
    with pytest.raises(OptionError, match=r"^Option 'topics' is the former name of 'subscribe': remove it$"):
        SourceOptions.parse({**READ, "topics": "t"})
