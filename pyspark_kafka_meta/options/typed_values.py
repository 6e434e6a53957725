"""The options of typed keys and values: their format, their schemas, and what becomes of malformed ones.

The subject name strategies are those of Confluent's serializers (`AbstractKafkaSchemaSerDeConfig`).
"""
# ruff: noqa: RUF009 (the default of a field is an option, made by a function)

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark_kafka_meta.options.option_table import GivenOptions, Query, Rows, Section, default_options, options_of
from pyspark_kafka_meta.options.parsers import parse_choice, parse_number
from pyspark_kafka_meta.options.registry import RegistryOptions, renamed_row
from pyspark_kafka_meta.typed.schemas import formats
from pyspark_kafka_meta.validators import INT32_MAX, non_empty

if TYPE_CHECKING:
    from pyspark_kafka_meta.typed.schemas import Schema

LATEST_VERSION = "latest"


class Framing(StrEnum):
    """What precedes an encoded value in a record."""

    CONFLUENT = "confluent"
    """The byte 0 and a schema id of 4 bytes. What is read may have it in a header instead, or a GUID."""
    CONFLUENT_HEADER = "confluent-header"
    """The same when read; the schema's GUID is written into a header."""
    APICURIO = "apicurio"
    """The byte 0 and a schema id of 8 bytes."""
    APICURIO_HEADER = "apicurio-header"
    """Nothing: a header has a content id of 8 bytes. Not for writes."""
    NONE = "none"

    @property
    def id_bytes(self) -> int:
        """Of the schema id before values; 0 if none is there."""
        return {Framing.NONE: 0, Framing.APICURIO_HEADER: 0, Framing.APICURIO: 8}.get(self, 4)

    @property
    def is_confluents(self) -> bool:
        return self in (Framing.CONFLUENT, Framing.CONFLUENT_HEADER)

    @property
    def is_apicurios(self) -> bool:
        return self in (Framing.APICURIO, Framing.APICURIO_HEADER)


class SubjectNameStrategy(StrEnum):
    """How the subjects of a topic's schemas are named, as Confluent's `SubjectNameStrategy`."""

    TOPIC = "topic"
    RECORD = "record"
    TOPIC_RECORD = "topic-record"


class OnMalformedRecord(StrEnum):
    """What becomes of a key or value that cannot be decoded."""

    FAIL = "fail"
    NULL = "null"
    RECORD = "record"


_rows = Rows(Section.TYPED_VALUES, Query.RECORDS | Query.WRITES)
_values = replace(_rows, needs=("valueFormat",))


def _parse_version(text: str) -> int | str:
    return LATEST_VERSION if text.strip().lower() == LATEST_VERSION else parse_number(text, 1, INT32_MAX)


def _parse_record_names(text: str) -> tuple[str, ...]:
    """Any names: those of JSON are titles, and registries have subjects with any character."""
    try:
        names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    except csv.Error:
        raise ValueError from None
    return non_empty(tuple(dict.fromkeys(filter(None, names))))


def _for_keys(of_values: Any) -> Any:
    """The row of keys beside a row of values."""
    option = of_values.metadata["option"]
    return renamed_row(option, lambda name: name.replace("value", "key", 1), f"As {option.name}, for keys.")


@dataclass(frozen=True, slots=True)
class ColumnFormat:
    """How the column `key` or `value` is typed.

    Attributes:
        column: `key` or `value`.
        schema: the reader's schema as text, or the path of a file with it; None to take it from the registry.
        version: of the subject: a number, or `LATEST_VERSION`.
        subject: instead of those of the strategy.
        record_names: of the strategies record and topic-record, or of a derived schema.
        max_depth: how often a recursive type becomes columns in itself.
        stable_members: members of Avro's unions are named after their types.
    """

    column: str
    format: type[Schema]
    schema: str | None
    version: int | str
    framing: Framing
    strategy: SubjectNameStrategy
    subject: str | None
    record_names: tuple[str, ...]
    max_depth: int = 1
    stable_members: bool = False

    @property
    def is_latest(self) -> bool:
        """Whether the schema is whatever version is the latest."""
        return self.schema is None and self.version == LATEST_VERSION

    def subjects(self, topics: tuple[str, ...]) -> tuple[str, ...]:
        """The subjects in which the schemas of these topics are registered."""
        if self.subject is not None:
            return (self.subject,)
        match self.strategy:
            case SubjectNameStrategy.TOPIC:
                return tuple(f"{topic}-{self.column}" for topic in topics)
            case SubjectNameStrategy.RECORD:
                return self.record_names
            case SubjectNameStrategy.TOPIC_RECORD:
                return tuple(f"{topic}-{name}" for topic in topics for name in self.record_names)


_OPTIONS_OF_SIDE = ("schema", "version", "framing", "strategy", "subject", "record_names")
_FRAMINGS = {each.value: each for each in Framing}


@dataclass(frozen=True, slots=True)
class TypedValuesOptions:
    """How keys and values are typed. Each option of values has one for keys beside it.

    Attributes:
        registry: None without a registry.
        value_format: None for bytes.
    """

    registry: RegistryOptions | None
    value_format: type[Schema] | None = _rows.choice(
        "valueFormat",
        {"bytes": None, **formats()},
        "With a format, the column holds the columns of its schema.",
    )
    key_format: type[Schema] | None = _for_keys(value_format)
    value_schema: str | None = _values.text(
        "valueSchema",
        "Schema to read as or to write with, instead of the registry's: text, or the path of a file on the driver. "
        "Protobuf: a file of `protoc --descriptor_set_out`. JSON: also a type of Spark (DDL, `simpleString()` or "
        "`json()`), in a write only with valueFraming none.",
    )
    key_schema: str | None = _for_keys(value_schema)
    value_version: int | str = _values.option(
        "valueSchemaVersion",
        LATEST_VERSION,
        _parse_version,
        "Option 'valueSchemaVersion' must be latest or a version of the subject from 1, got '{value}'",
        "Version of the subject: a number, or the latest when a read is loaded, or before each micro-batch of a write.",
    )
    key_version: int | str = _for_keys(value_version)
    value_framing: Framing | None = _values.option(
        "valueFraming",
        None,
        partial(parse_choice, values=_FRAMINGS),
        f"Option 'valueFraming' must be {' or '.join(_FRAMINGS)}, got '{{value}}'",
        "Where a record has the id of its schema. Default: confluent with a registry, else none.",
    )
    key_framing: Framing | None = _for_keys(value_framing)
    value_strategy: SubjectNameStrategy = _values.choice(
        "valueSubjectNameStrategy",
        {each.value: each for each in SubjectNameStrategy},
        "Subjects of schemas: orders-value, shop.Order or orders-shop.Order.",
    )
    key_strategy: SubjectNameStrategy = _for_keys(value_strategy)
    value_subject: str | None = _values.text(
        "valueSubject",
        "Subject of the schema, whatever the topic is; in a context `:.staging:orders-value`; of Apicurio an "
        "artifact id.",
        excludes=("valueSubjectNameStrategy",),
    )
    key_subject: str | None = _for_keys(value_subject)
    value_record_names: tuple[str, ...] | None = _values.option(
        "valueRecordName",
        None,
        _parse_record_names,
        "Option 'valueRecordName' must be the full name of a record, as shop.Order; several separated by commas, a "
        "name with a comma in double quotes",
        "Full name of the record (JSON: the title), for the strategies record and topic-record and for a derived "
        "schema; of Protobuf's message type (default: the first). Several Avro records, separated by commas, become"
        " a struct with a member for each. Quote a name with a comma.",
    )
    key_record_names: tuple[str, ...] | None = _for_keys(value_record_names)
    max_depth: int = _rows.number(
        "recursiveFieldMaxDepth",
        "1",
        "How often a recursive type of Avro or Protobuf becomes columns in itself: with 1, its fields of this type are "
        "left out.",
        low=1,
        high=15,
        queries=Query.RECORDS,
    )
    stable_members: bool = _rows.flag(
        "enableStableIdentifiersForUnionType",
        False,
        "Whether members of an Avro union are named after their types (member_int), not their places (member0).",
        queries=Query.RECORDS,
    )
    includes_raw: bool = _rows.flag(
        "includeRaw",
        False,
        "Whether a column value_raw (key_raw) has the bytes of a typed column, with their frame.",
        queries=Query.RECORDS,
        needs=("valueFormat", "keyFormat"),
    )
    on_malformed: OnMalformedRecord = _rows.choice(
        "onMalformedRecord",
        {each.value: each for each in OnMalformedRecord},
        "A value that cannot be decoded: fail, null, or null and a column value_error (key_error), a struct of "
        "cause, schema_id and raw bytes.",
        section=Section.FAILURES,
        queries=Query.RECORDS,
        needs=("valueFormat", "keyFormat"),
    )
    auto_register: bool = _rows.flag(
        "auto.register.schemas",
        False,
        "Whether a write registers valueSchema, or else the schema of the DataFrame's type; not of Protobuf. "
        "Otherwise the subject must have the schema.",
        queries=Query.WRITES,
    )

    @classmethod
    def of(cls, given: GivenOptions) -> TypedValuesOptions:
        options = cls(RegistryOptions.of(given), **given.values(cls))
        if not given.has_invalid(cls) and not given.has_invalid(RegistryOptions):
            for column in options.columns:
                given.refuse(_column_problems(given, options, column))
            given.refuse(_format_problems(given, options))
        return options

    @property
    def columns(self) -> tuple[ColumnFormat, ...]:
        """Of `key` and `value`, those that are not bytes."""
        formats_of_sides = (("key", self.key_format), ("value", self.value_format))
        return tuple(self._column(side, format_) for side, format_ in formats_of_sides if format_ is not None)

    def _column(self, side: str, format_: type[Schema]) -> ColumnFormat:
        given = {field: getattr(self, f"{side}_{field}") for field in _OPTIONS_OF_SIDE}
        given["framing"] = given["framing"] or (Framing.NONE if self.registry is None else Framing.CONFLUENT)
        given["record_names"] = given["record_names"] or ()
        return ColumnFormat(side, format_, max_depth=self.max_depth, stable_members=self.stable_members, **given)


BYTES = default_options(TypedValuesOptions, registry=None)
"""Keys and values as bytes."""


def _format_problems(given: GivenOptions, options: TypedValuesOptions) -> Iterator[str]:
    """A sentence for each option without effect on the chosen formats."""
    for field, trait in (("max_depth", "is_recursive"), ("stable_members", "has_unions")):
        if not any(getattr(column.format, trait) for column in options.columns):
            able = " or ".join(name for name, each in formats().items() if getattr(each, trait))
            for name in given.given(TypedValuesOptions, field):
                yield f"Option '{name}' has no effect without a format {able}"
    if given.given(TypedValuesOptions, "auto_register") and not (options.columns and options.registry):
        yield "Option 'auto.register.schemas' has no effect without 'schema.registry.url' and a format"


def _column_problems(given: GivenOptions, options: TypedValuesOptions, chosen: ColumnFormat) -> Iterator[str]:
    """A sentence for each contradiction among valid values."""
    start, rows = f"{chosen.column}_", options_of(TypedValuesOptions)
    name = {field.removeprefix(start): option.name for field, option in rows.items() if field.startswith(start)}
    is_given = {field: bool(given.given(TypedValuesOptions, start + field)) for field in _OPTIONS_OF_SIDE}
    format_name = chosen.format.registry_type.lower()
    if chosen.framing.is_apicurios and not chosen.format.is_in_apicurios_frames:
        yield f"'{name['framing']}' {chosen.framing} is not supported for {format_name}: use confluent or none"
    if options.registry is None:
        if chosen.framing is not Framing.NONE:
            yield f"'{name['framing']}' {chosen.framing} needs 'schema.registry.url', as a frame has only a schema id"
        elif chosen.schema is None:
            yield f"'{name['format']}' {format_name} needs 'schema.registry.url' or '{name['schema']}'"
    is_write, names_message = given.query in Query.WRITES, chosen.format.names_message
    if chosen.schema is not None:
        others = (
            ("version",)
            if is_write
            else ("version", "strategy", "subject", *(() if names_message else ("record_names",)))
        )
        yield from (
            f"Set either '{name['schema']}' or '{name[field]}', not both" for field in others if is_given[field]
        )
        if not is_write:
            return
    names_derived = is_write and options.auto_register and chosen.schema is None
    yield from _subject_problems(chosen, name, is_given, names_derived or names_message)
    if is_write:
        yield from _write_problems(chosen, name, is_given, options.auto_register)


def _subject_problems(
    chosen: ColumnFormat, name: Mapping[str, str], is_given: Mapping[str, bool], names_schema: bool
) -> Iterator[str]:
    needs_names = chosen.strategy is not SubjectNameStrategy.TOPIC
    if len(chosen.record_names) > 1 and not chosen.format.has_several_names:
        able = " or ".join(each.title for each in formats().values() if each.has_several_names)
        yield f"'{name['record_names']}' must be one name: only {able} has values of several types"
    if needs_names and not chosen.record_names:
        yield f"'{name['strategy']}' {chosen.strategy} needs '{name['record_names']}'"
    if is_given["record_names"] and not needs_names and not names_schema:
        yield f"Option '{name['record_names']}' needs '{name['strategy']}' record or topic-record"


def _write_problems(
    chosen: ColumnFormat, name: Mapping[str, str], is_given: Mapping[str, bool], registers: bool
) -> Iterator[str]:
    if registers and is_given["version"] and chosen.schema is None:
        yield f"Set either 'auto.register.schemas' or '{name['version']}', not both"
    if registers and not chosen.format.may_be_registered:
        yield (
            f"'auto.register.schemas' is not supported for {chosen.format.registry_type.lower()}: register the schema "
            "in the registry"
        )
    if chosen.framing is Framing.APICURIO_HEADER:
        yield f"'{name['framing']}' apicurio-header is not supported in a write: use apicurio"
    if len(chosen.record_names) > 1:
        yield f"Option '{name['record_names']}' must be one name in a write"
