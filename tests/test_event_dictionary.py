"""docs/events.md is true: every field of an event in its order, with the type and the words of the code."""

from __future__ import annotations

import re
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from pyspark_kafka_meta.metadata.refresh_events import EventKind, Origin, Outcome, RefreshEvent
from pyspark_kafka_meta.metadata.snapshot_changes import SnapshotChanges
from pyspark_kafka_meta.model import RefreshReason

TEXT = (Path(__file__).parent.parent / "docs" / "events.md").read_text()
JSON_TYPES = {int: "integer", float: "number", str: "string"}


def rows_below(heading: str) -> list[tuple[str, ...]]:
    """The cells of the table in the section of this heading."""
    section = re.split(r"^## ", TEXT.partition(f"## {heading}\n")[2], flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]


def json_type(hint: Any) -> str:
    if get_origin(hint) is UnionType:
        [kind] = [one for one in get_args(hint) if one is not type(None)]
        return f"{json_type(kind)} or null"
    if get_origin(hint) is tuple:
        return f"list of {json_type(get_args(hint)[0])}"
    if issubclass(hint, StrEnum):
        return "string"
    if hint in JSON_TYPES:
        return JSON_TYPES[hint]
    members = ", ".join(f"{name}: {json_type(kind)}" for name, kind in get_type_hints(hint).items())
    return f"{{{members}}}"


def documented(described: type) -> dict[str, str]:
    """What the docstring says of each attribute, on one line, in the terms of JSON."""
    attributes = (described.__doc__ or "").partition("Attributes:\n")[2]
    found = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", attributes, re.MULTILINE)
    return {name: " ".join(text.split()).replace("None", "null") for name, text in found}


def dictionary() -> list[tuple[str, str, str]]:
    made = []
    for described in (RefreshEvent, SnapshotChanges, Origin):
        hints, texts = get_type_hints(described), documented(described)
        names = [one.name for one in fields(described) if one.name not in ("changes", "origin")]
        made += [(f"`{name}`", json_type(hints[name]), texts[name]) for name in names]
    return made


def test_the_dictionary_of_events_is_that_of_the_code() -> None:
    assert rows_below("Fields") == dictionary()


@pytest.mark.parametrize(
    ("heading", "values"), [("Kinds", EventKind), ("Reasons", RefreshReason), ("Outcomes", Outcome)]
)
def test_every_value_is_explained(heading: str, values: type[StrEnum]) -> None:
    assert [row[0] for row in rows_below(heading)] == [f"`{value}`" for value in values]
