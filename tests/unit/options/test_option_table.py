"""The table of options: each row is complete, and says where its option has an effect."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import partial
from itertools import product

import pytest

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.kafka.network.security.sasl_login import STEPS
from pyspark_kafka_meta.options import MECHANISMS, OPTIONS, PARTS, Query, SinkOptions, SourceOptions
from pyspark_kafka_meta.options.option_table import GivenOptions, Option, Section, options_of
from pyspark_kafka_meta.options.parsers import parse_choice, parse_number
from pyspark_kafka_meta.options.tables import batch_warnings, is_read

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
READ = {**SERVERS, "subscribe": "t"}
NO_OPTIONS = {
    *(
        "changes",
        "client",
        "client_id",
        "driver",
        "events",
        "fetch",
        "lenient_fields",
        "producer",
        "registry",
        "security",
    ),
    *("transaction", "typed"),
}
"""Fields that are not options, but parts of the table, or set later."""


def test_rows_are_complete() -> None:
    for name, option in OPTIONS.items():
        assert option.name == name
        assert option.doc.endswith("."), name
        option.default_value()
        assert option.queries or name == "table", name


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
def test_options_are_of_a_read_if_they_say_so_and_nothing_of_a_sink(given: dict[str, str], expected: bool) -> None:
    assert is_read(given) is expected


def problems_of(*names: str) -> list[str]:
    """The sentences about these options of a read or of a write, of whatever values."""
    kind, others = (SinkOptions, SERVERS) if OPTIONS[names[0]].queries & Query.WRITES else (SourceOptions, READ)
    with pytest.raises(OptionError) as caught:
        kind.parse({**others, **dict.fromkeys(names, "1")})
    return str(caught.value).splitlines()


@pytest.mark.parametrize("option", [option for option in OPTIONS.values() if option.needs], ids=lambda each: each.name)
def test_option_is_refused_without_those_that_it_needs(option: Option) -> None:
    is_write = bool(option.queries & Query.WRITES)
    needs = [name for name in option.needs if OPTIONS[name].queries & Query.WRITES or not is_write]
    needed = " or ".join(f"'{name}'" for name in needs)
    values = f" {' or '.join(option.needs_values)}" if option.needs_values else ""

    expected = f"Option '{option.name}' has no effect without {needed}{values}: set it or remove the option"
    assert expected in problems_of(option.name)


def test_needed_values_are_values_of_the_needed_options() -> None:
    for option in OPTIONS.values():
        for name, text in product(option.needs, option.needs_values):
            OPTIONS[name].value(text)


def test_option_needs_no_option_that_its_query_cannot_have() -> None:
    assert SourceOptions.parse({**READ, "decisionsTopic": "d"}).decisions_topic == "d"


@pytest.mark.parametrize(("name", "other"), [(name, other) for name in OPTIONS for other in OPTIONS[name].excludes])
def test_options_that_exclude_each_other_are_refused(name: str, other: str) -> None:
    assert f"Set either '{name}' or '{other}', not both" in problems_of(name, other)


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.pair])
def test_half_of_a_pair_is_refused(name: str) -> None:
    pair = str(OPTIONS[name].pair)

    for half in (name, pair):
        assert f"Options '{name}' and '{pair}' must be set together" in problems_of(half)


def options_with(parse: object) -> list[Option]:
    return [each for each in OPTIONS.values() if isinstance(each.parse, partial) and each.parse.func is parse]


@pytest.mark.parametrize("option", options_with(parse_number), ids=lambda option: option.name)
def test_number_is_whole_and_within_its_bounds(option: Option) -> None:
    assert isinstance(option.parse, partial)
    low, high = option.parse.keywords["low"], option.parse.keywords["high"]

    assert [option.value(text) for text in (str(low), f" {high} ")] == [low, high]
    for text in (str(low - 1), str(high + 1), "1.0", "1_0", "\u0663", "1MB", "", "x"):
        with pytest.raises(OptionError, match=re.escape(option.name)) as refused:
            option.value(text)
        assert text in str(refused.value)


@pytest.mark.parametrize("option", options_with(parse_choice), ids=lambda option: option.name)
def test_choice_is_one_of_the_named_in_any_case(option: Option) -> None:
    assert isinstance(option.parse, partial)
    choices = option.parse.keywords["values"]

    assert [option.value(f" {text.upper()} ") for text in choices] == list(choices.values())
    for text in ("zz", f"{next(iter(choices))}x"):
        with pytest.raises(OptionError, match=re.escape(option.name)) as refused:
            option.value(text)
        assert all(choice in str(refused.value) for choice in choices)
    assert refused.match(f"did you mean '{next(iter(choices))}'")


@pytest.mark.parametrize("part", PARTS)
def test_value_gets_to_the_field_of_its_option_whatever_the_case_of_its_name(part: type) -> None:
    for field, option in options_of(part).items():
        if option not in [*options_with(parse_number), *options_with(parse_choice)] or not option.queries:
            continue
        texts = option.parse.keywords.get("values") or [option.parse.keywords["high"]]  # type: ignore[attr-defined]
        for spelled, text in product((option.name.lower(), option.name.upper()), map(str, texts)):
            assert GivenOptions({spelled: text}, option.queries).value(part, field) == option.value(text)
