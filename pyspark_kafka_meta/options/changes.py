"""The options of changes of databases: what the records of a topic say about the rows of a table.

Terms are those of Debezium's envelope and of its event flattening (`ExtractNewRecordState`).
"""
# ruff: noqa: RUF009 (the default of a field is an option, made by a function)

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from pyspark_kafka_meta.options.option_table import GivenOptions, Query, Rows, Section
from pyspark_kafka_meta.options.parsers import parse_choice, parse_placeholder

HEARTBEAT_TOPICS = "__debezium-heartbeat"
"""Debezium's default prefix of their names."""

CONNECTOR_FIELDS = ("source", "transaction", "ts_ms", "ts_us", "ts_ns")
"""Of Debezium's envelope, beside the row: they differ by the connector and its version."""


class Changes(StrEnum):
    """What a value is."""

    DEBEZIUM = "debezium"
    """Debezium's envelope: the row before and after a change."""
    UPSERT = "upsert"
    """The row; null deletes it."""


class ChangeOrder(StrEnum):
    """What `_change.sequence` is."""

    KAFKA = "kafka"
    """The offset, after a generation that rises when the topic is recreated."""
    SOURCE = "source"
    """The position of the connector in its database, and the offset among changes of the same position."""


class OnTruncate(StrEnum):
    """What becomes of the record of a TRUNCATE."""

    FAIL = "fail"
    SKIP = "skip"
    ROW = "row"


_changes = Rows(Section.CHANGES, Query.RECORDS)
_debeziums = replace(_changes, needs=("changes",), needs_values=(Changes.DEBEZIUM,))


@dataclass(frozen=True, slots=True)
class ChangesOptions:
    """How records become changes of rows."""

    changes: Changes = _changes.option(
        "changes",
        None,
        partial(parse_choice, values={each.value: each for each in Changes}),
        "Option 'changes' must be debezium or upsert, got '{value}'",
        "[Changes of a table](changes.md) as rows: values are envelopes (debezium), or rows and null for deletes "
        "(upsert). keyFormat is valueFormat by default.",
        needs=("valueFormat",),
        excludes=("includeRaw", "includeHeaders"),
    )
    order: ChangeOrder = _debeziums.choice(
        "changeOrder",
        {each.value: each for each in ChangeOrder},
        "[Order](changes.md#order) of `_change.sequence`: the topic's, or, for topics that get partitions, the "
        "database's.",
    )
    on_truncate: OnTruncate = _debeziums.choice(
        "onTruncate",
        {each.value: each for each in OnTruncate},
        "A truncated table: fail, skip the record, or return a row without a key.",
    )
    include_before: bool = _debeziums.flag(
        "includeBefore", False, "Whether `_change.before` has the row before the change."
    )
    unavailable_value: bytes = _changes.option(
        "unavailableValue",
        "__debezium_unavailable_value",
        parse_placeholder,
        "Option 'unavailableValue' must be a text, or hex: and the digits of bytes, got '{value}'",
        "Debezium's `unavailable.value.placeholder` for [columns that were not "
        "sent](changes.md#columns-that-were-not-sent).",
        needs=("changes",),
    )

    @classmethod
    def of(cls, given: GivenOptions) -> ChangesOptions | None:
        """None without the option `changes`."""
        values = given.values(cls)
        return None if values["changes"] is None else cls(**values)
