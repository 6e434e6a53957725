"""docs/generate.py: the generated parts of the pages are up to date, and how they are made."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

import pytest

from docs import generate
from pyspark_kafka_meta.events.event import COLUMNS
from pyspark_kafka_meta.options import OPTIONS
from pyspark_kafka_meta.tools.exporter.metric_table import METRICS


@pytest.mark.parametrize("page", generate.PAGES, ids=lambda page: page.name)
def test_generated_parts_are_up_to_date(page: Path) -> None:
    text = page.read_text()

    assert generate.rewritten(text) == text
    assert text.count("<!--") == 2 * len(generate.PART.findall(text)), "a marker is incomplete or unknown"


def test_only_the_text_between_markers_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(generate.PARTS, "sum", lambda left, right: f"{left}+{right}\n")

    page = "before\n<!-- generated: sum 1 2 -->\nold\n<!-- end -->\nafter\n"
    expected = "before\n<!-- generated: sum 1 2 -->\n\n1+2\n\n<!-- end -->\nafter\n"

    assert generate.rewritten(page) == expected
    assert generate.rewritten(expected) == expected


def test_benchmark_shows_the_chosen_case_and_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "speed.json").write_text(
        '[{"case": "20B", "reader": "ours", "p50_ms": 2605.3}, {"case": "2kB", "reader": "ours", "p50_ms": 12.34}]'
    )

    chosen = generate.benchmark("speed", "20B:", "reader", "p50_ms")
    assert chosen == "| reader | p50 ms |\n|---|---:|\n| ours | 2,605 |\n"
    assert "| 2kB | ours | 12.34 |\n" in generate.benchmark("speed")
    assert generate.pivot("speed", "reader", "case", "p50_ms").endswith("| ours | 2,605 | 12.34 |\n")
    assert (
        generate.pivot("speed", "reader", "case", "p50_ms", "2kB") == "| reader | 2kB |\n|---|---:|\n| ours | 12.34 |\n"
    )
    assert generate.benchmark("new") == "Not measured yet.\n"


def test_option_is_in_its_section_with_its_values_and_default() -> None:
    sections = generate.all_options().split("\n## ")

    security = next(section for section in sections if section.startswith("Security\n"))
    assert "\n- `kafka.security.protocol` (**PLAINTEXT**, SSL, SASL_PLAINTEXT, SASL_SSL): " in security
    lines = [line for section in sections for line in section.splitlines() if line.startswith("- ")]
    names = [name for line in lines for name in re.findall(r"`([^`]+)`", re.split(r" \(|: ", line)[0])]
    assert sorted(names) == sorted(OPTIONS)


def test_options_of_keys_and_values_share_a_line() -> None:
    assert "\n- `valueFormat`, `keyFormat` (**bytes**, " in generate.all_options()


def test_each_metric_and_each_field_of_an_event_is_listed_once() -> None:
    for text, names in ((generate.metrics(), [metric.name for metric in METRICS]), (generate.event_fields(), COLUMNS)):
        listed = re.findall(r"`(\w+)(?:{[\w,]+})?`", "\n".join(re.findall(r"^- (.*?): ", text, re.MULTILINE)))
        assert [name for name in names if listed.count(name) != 1] == []


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("failOnDataLoss", "boolean"),
        ("startingTimestamp", "long"),
        ("kafka.retry.backoff.ms", "int"),
        ("assign", "JSON"),
        ("subscribe", "list"),
        ("maxTriggerDelay", "duration"),
        ("kafka.sasl.password", "password"),
        ("kafka.ssl.endpoint.identification.algorithm", "https"),
        ("topic", "string"),
    ],
)
def test_an_option_has_a_type_of_kafka_s_documentation(name: str, shown: str) -> None:
    assert generate.type_of(OPTIONS[name]) == shown


def test_each_type_has_a_parser_of_an_option() -> None:
    parsers = {getattr(option.parse, "__name__", "") for option in OPTIONS.values()}
    assert generate.TYPES.keys() <= parsers


class Colour(StrEnum):
    RED = "red"
    """Like
    blood."""
    GREY = "grey"


class Described:
    """Summary.

    Attributes:
        name: of a thing,
            None without one.
        size_bytes: of the same.
    """


def test_docstrings_of_members_and_attributes_are_found() -> None:
    assert generate.member_docs(Colour) == {"RED": "Like blood."}
    assert list(generate.attribute_docs(Described)) == [
        ("name", "of a thing, null without one."),
        ("size_bytes", "of the same."),
    ]
