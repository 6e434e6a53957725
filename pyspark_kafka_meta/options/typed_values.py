"""The options of typed keys and values: their format, their schemas, and what becomes of malformed ones.

The subject name strategies are those of Confluent's serializers (`AbstractKafkaSchemaSerDeConfig`).
"""
# ruff: noqa: RUF009 (the default of a field is an option, made by a function)

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark_kafka_meta.options.changes import CONNECTOR_FIELDS, Changes, ChangesOptions
from pyspark_kafka_meta.options.option_table import GivenOptions, Query, Rows, Section, default_options, renamed_row
from pyspark_kafka_meta.options.parsers import parse_choice, parse_number, parse_word
from pyspark_kafka_meta.options.schema_registry import RegistryOptions
from pyspark_kafka_meta.typed.formats import formats
from pyspark_kafka_meta.value_checks import INT32_MAX, non_empty, topic_name

if TYPE_CHECKING:
    from pyspark_kafka_meta.typed.formats import Schema

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
    DEAD_LETTER = "deadLetter"


_rows = Rows(Section.TYPED_VALUES, Query.RECORDS | Query.WRITES)
_values = replace(_rows, needs=("valueFormat",))
_malformed = Rows(Section.FAILURES, Query.RECORDS, ("onMalformedRecord",))
_letters = replace(_malformed, needs_values=(OnMalformedRecord.DEAD_LETTER,))


def _parse_version(text: str) -> int | str:
    return LATEST_VERSION if text.strip().lower() == LATEST_VERSION else parse_number(text, 1, INT32_MAX)


def _parse_most(text: str) -> int | Decimal:
    """A number, or a share with a point. A decimal: 7 % of 100 in binary are a little more than 7."""
    if "." not in text:
        return parse_number(text, 0, INT32_MAX)
    share = Decimal(parse_word(text, r"[01]?\.[0-9]{1,9}"))
    if share > 1:
        raise ValueError
    return share


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
    needs = {"needs": ("keyFormat", "changes")} if option.needs else {}
    return renamed_row(option, lambda name: name.replace("value", "key", 1), f"As {option.name}, for keys.", **needs)


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
        lenient_fields: as of `SchemaText`.
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
    lenient_fields: tuple[str, ...] = ()

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
        value_format: bytes, or the name of a format.
        lenient_fields: of values, as of `SchemaText`.
    """

    registry: RegistryOptions | None
    value_format: str = _rows.choice(
        "valueFormat", {name: name for name in ("bytes", *formats())}, "[Format](typed-values.md) of the column."
    )
    key_format: str = _for_keys(value_format)
    value_schema: str | None = _values.text(
        "valueSchema",
        "Schema instead of the registry's or the newest record's: text, or a file on the driver. Protobuf: of `protoc "
        "--descriptor_set_out`. JSON: also a type of Spark (DDL or `json()`), in a write only with valueFraming none.",
    )
    key_schema: str | None = _for_keys(value_schema)
    value_version: int | str = _values.option(
        "valueSchemaVersion",
        LATEST_VERSION,
        _parse_version,
        "Option 'valueSchemaVersion' must be latest or a version of the subject from 1, got '{value}'",
        "Version of the subject: a number, or the latest at load, in a write at each micro-batch.",
    )
    key_version: int | str = _for_keys(value_version)
    value_framing: Framing | None = _values.option(
        "valueFraming",
        None,
        partial(parse_choice, values=_FRAMINGS),
        f"Option 'valueFraming' must be {' or '.join(_FRAMINGS)}, got '{{value}}'",
        "[Where a record names its schema](typed-values.md#frames). Default: confluent with a registry, else none.",
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
        "Subject for all topics, also in a context (`:.staging:orders-value`); of Apicurio an artifact id.",
        excludes=("valueSubjectNameStrategy",),
    )
    key_subject: str | None = _for_keys(value_subject)
    value_record_names: tuple[str, ...] | None = _values.option(
        "valueRecordName",
        None,
        _parse_record_names,
        "Option 'valueRecordName' must be the full name of a record, as shop.Order; several separated by commas, a "
        "name with a comma in double quotes",
        "Full name of the record (JSON: title) for the strategies record and topic-record and for a derived schema, or "
        "of the Protobuf message type (default: the first).",
    )
    key_record_names: tuple[str, ...] | None = _for_keys(value_record_names)
    max_depth: int = _rows.number(
        "recursiveFieldMaxDepth",
        "1",
        "Depth of the columns of a recursive Avro or Protobuf type.",
        low=1,
        high=15,
        queries=Query.RECORDS,
    )
    stable_members: bool = _rows.flag(
        "enableStableIdentifiersForUnionType",
        False,
        "Whether Avro unions have members named by type (member_int), not position (member0).",
        queries=Query.RECORDS,
    )
    includes_raw: bool = _rows.flag(
        "includeRaw",
        False,
        "Whether value_raw (key_raw) has the bytes of a typed column with their frame.",
        queries=Query.RECORDS,
        needs=("valueFormat", "keyFormat"),
    )
    on_malformed: OnMalformedRecord = _rows.choice(
        "onMalformedRecord",
        {each.value: each for each in OnMalformedRecord},
        "What happens to [a value that cannot be decoded](typed-values.md#malformed-records).",
        section=Section.FAILURES,
        queries=Query.RECORDS,
        needs=("valueFormat", "keyFormat"),
    )
    max_malformed: int | Decimal | None = _malformed.option(
        "maxMalformedRecords",
        None,
        _parse_most,
        "Option 'maxMalformedRecords' must be a whole number from 0, or a share from 0.0 to 1.0, got '{value}'",
        "A task with more malformed records fails: a number, or a share of its offsets (0.01).",
    )
    dead_letter_topic: str | None = _letters.option(
        "deadLetterTopic",
        None,
        topic_name,
        "Option 'deadLetterTopic' must be the name of one topic, got '{value}'",
        "Topic of the same cluster for malformed records. subscribePattern does not match it.",
    )
    dead_letter_has_own_key: bool = _letters.choice(
        "deadLetterKey",
        {"record": False, "offset": True},
        "Key of a dead letter: the record's, or its topic, partition and offset.",
    )
    auto_register: bool = _rows.flag(
        "auto.register.schemas",
        False,
        "Whether a write [registers its schema](typed-values.md#writing) if the subject lacks it.",
        queries=Query.WRITES,
    )
    lenient_fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: GivenOptions) -> TypedValuesOptions:
        """The keys of changes have the format of their values, unless another is given."""
        values = given.values(cls)
        if given.value(ChangesOptions, "changes") is Changes.DEBEZIUM:
            values["lenient_fields"] = CONNECTOR_FIELDS
        if given.given(ChangesOptions, "changes") and not given.given(cls, "key_format"):
            values["key_format"] = values["value_format"]
        options = cls(RegistryOptions.of(given), **values)
        if not given.has_invalid(cls) and not given.has_invalid(RegistryOptions):
            for column in options.columns:
                problems = _in_values_problems if column.format.is_in_values else _column_problems
                given.refuse(problems(given, options, column))
            given.refuse(_format_problems(given, options))
        return options

    def most_malformed(self, offsets: int) -> int | None:
        """How many malformed records a task of so many offsets may have; None for any number."""
        most = self.max_malformed
        return math.ceil(most * offsets) if isinstance(most, Decimal) else most

    @property
    def columns(self) -> tuple[ColumnFormat, ...]:
        """Of `key` and `value`, those that are not bytes."""
        return tuple(self._column(side) for side in ("key", "value") if getattr(self, f"{side}_format") != "bytes")

    def _column(self, side: str) -> ColumnFormat:
        format_ = formats()[getattr(self, f"{side}_format")]
        given = {field: getattr(self, f"{side}_{field}") for field in _OPTIONS_OF_SIDE}
        is_framed = self.registry is not None and not format_.is_in_values
        given["framing"] = given["framing"] or (Framing.CONFLUENT if is_framed else Framing.NONE)
        given["record_names"] = given["record_names"] or ()
        given["lenient_fields"] = self.lenient_fields if side == "value" else ()
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
    if options.on_malformed is OnMalformedRecord.DEAD_LETTER and options.dead_letter_topic is None:
        yield "'onMalformedRecord' deadLetter needs 'deadLetterTopic', an existing topic: set it"
    if given.given(TypedValuesOptions, "auto_register") and not (options.columns and options.registry):
        yield "Option 'auto.register.schemas' has no effect without 'schema.registry.url' and a format"


def _in_values_problems(given: GivenOptions, _: TypedValuesOptions, chosen: ColumnFormat) -> Iterator[str]:
    """A sentence for each option that a format with its schemas in values cannot have."""
    name, rows = chosen.format.registry_type.lower(), [f"{chosen.column}_{each}" for each in _OPTIONS_OF_SIDE]
    for option in given.given(TypedValuesOptions, *rows):
        if option != f"{chosen.column}Schema":
            yield f"Option '{option}' has no effect on {name}, whose values have their schemas with them"
    if given.query in Query.WRITES:
        yield f"'{chosen.column}Format' {name} is for reads alone: write json, or avro with a registry"


def _column_problems(given: GivenOptions, options: TypedValuesOptions, chosen: ColumnFormat) -> Iterator[str]:
    """A sentence for each contradiction among valid values."""
    side, format_, framing = chosen.column, chosen.format, f"'{chosen.column}Framing' {chosen.framing}"
    name, has_schema = format_.registry_type.lower(), chosen.schema is not None
    rows = {field: f"{side}_{field}" for field in _OPTIONS_OF_SIDE}
    is_given = {field: bool(given.given(TypedValuesOptions, row)) for field, row in rows.items()}
    is_write = given.query in Query.WRITES
    registers, is_read_as_given = is_write and options.auto_register, has_schema and not is_write
    needs_names, names = chosen.strategy is not SubjectNameStrategy.TOPIC, len(chosen.record_names)
    names_schema = format_.names_message or (registers and not has_schema)
    several = " or ".join(each.title for each in formats().values() if each.has_several_names)
    instead_of_schema = (
        ("SchemaVersion", is_given["version"]),
        ("SubjectNameStrategy", is_given["strategy"] and not is_write),
        ("Subject", is_given["subject"] and not is_write),
        ("RecordName", is_given["record_names"] and not is_write and not format_.names_message),
    )
    rules = (
        (
            chosen.framing.is_apicurios and not format_.is_in_apicurios_frames,
            f"{framing} is not supported for {name}: use confluent or none",
        ),
        (
            options.registry is None and chosen.framing is not Framing.NONE,
            f"{framing} needs 'schema.registry.url', as a frame has only a schema id",
        ),
        (
            options.registry is None and chosen.framing is Framing.NONE and not has_schema,
            f"'{side}Format' {name} needs 'schema.registry.url' or '{side}Schema'",
        ),
        *(
            (has_schema and is_there, f"Set either '{side}Schema' or '{side}{other}', not both")
            for other, is_there in instead_of_schema
        ),
        (
            names > 1 and not format_.has_several_names and not is_read_as_given,
            f"'{side}RecordName' must be one name: only {several} has values of several types",
        ),
        (
            needs_names and not names and not is_read_as_given,
            f"'{side}SubjectNameStrategy' {chosen.strategy} needs '{side}RecordName'",
        ),
        (
            is_given["record_names"] and not needs_names and not names_schema and not is_read_as_given,
            f"Option '{side}RecordName' needs '{side}SubjectNameStrategy' record or topic-record",
        ),
        (
            registers and is_given["version"] and not has_schema,
            f"Set either 'auto.register.schemas' or '{side}SchemaVersion', not both",
        ),
        (
            registers and not format_.may_be_registered,
            f"'auto.register.schemas' is not supported for {name}: register the schema in the registry",
        ),
        (
            is_write and chosen.framing is Framing.APICURIO_HEADER,
            f"{framing} is not supported in a write: use apicurio",
        ),
        (is_write and names > 1, f"Option '{side}RecordName' must be one name in a write"),
    )
    return (text for is_broken, text in rules if is_broken)
