"""What reading needs of typed values: the schemas of a query, and the typed columns of the records of a task.

What columns are read as is looked up once, at the start of the query, and pinned with it, in its checkpoint too. The
writers' schemas travel with the tasks, so that a thousand workers need not ask the registry for a schema that was just
registered.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from pyspark_kafka_meta.client_facts import LookupReason, MalformedRecords, SchemaLookup
from pyspark_kafka_meta.errors import (
    OptionError,
    SchemaChangedError,
    SchemaRegistryError,
    UnknownSchemaError,
    ValueSchemaError,
)
from pyspark_kafka_meta.model import SchemaPin
from pyspark_kafka_meta.options import (
    ColumnFormat,
    Framing,
    OnMalformedRecord,
    RegistryOptions,
    SubjectNameStrategy,
    TypedValuesOptions,
)
from pyspark_kafka_meta.typed.dead_letters import DeadLetters, WriteLetters
from pyspark_kafka_meta.typed.decoding import (
    ERROR_SUFFIX,
    ERROR_TYPE,
    LETTER_COLUMNS,
    RAW_SUFFIX,
    ColumnDecoding,
    Malformed,
    TypedRows,
    malformed_errors,
)
from pyspark_kafka_meta.typed.formats import Schema, SchemaText, schema_of
from pyspark_kafka_meta.typed.json.schema import spark_type_json
from pyspark_kafka_meta.typed.registry.client import RegisteredSchema, RegistryClient, SubjectVersion
from pyspark_kafka_meta.typed.registry.known_schemas import PAUSE_FACTOR, worker_schemas

__all__ = [
    "ERROR_SUFFIX",
    "ERROR_TYPE",
    "LETTER_COLUMNS",
    "RAW_SUFFIX",
    "Malformed",
    "NewestSchema",
    "NewestSchemas",
    "QuerySchemas",
    "RegisteredSchema",
    "RegistryClient",
    "TypedRows",
    "WriteLetters",
    "WriterSchemas",
    "check_pins",
    "column_schema",
    "digest",
    "given_schema",
    "malformed_errors",
    "query_schemas",
    "reader_schema",
    "spark_type_json",
    "typed_rows",
]

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S, WATCH_BACKOFF_S = 5.0, 30.0
"""How often the planner of a stream looks for new versions, at most, and after a failure; see also `PAUSE_FACTOR`."""
WATCH_TIMEOUT_MS = 2_000
"""Of a request, and of all before one micro-batch."""
MAX_WRITERS = 20
"""The newest versions of a subject that tasks carry."""


@dataclass(frozen=True, slots=True)
class ReaderSchema:
    """What a column is read as.

    Attributes:
        subjects: of its writers' schemas; empty if unknown.
    """

    column: ColumnFormat
    text: SchemaText
    pin: SchemaPin
    subjects: tuple[str, ...]

    @property
    def schema(self) -> Schema:
        return schema_of(self.column.format, self.text)


@dataclass(frozen=True, slots=True)
class QuerySchemas:
    """The readers' schemas of a query, in its plan.

    Attributes:
        readers: of each typed column.
        lookups: the requests that found them, for the events of the planner.
    """

    typed: TypedValuesOptions
    readers: tuple[ReaderSchema, ...]
    lookups: tuple[SchemaLookup, ...] = ()

    @property
    def pins(self) -> dict[str, SchemaPin]:
        """By column."""
        return {reader.column.column: reader.pin for reader in self.readers}

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Of the typed columns, and of the columns with their bytes and what is wrong with them."""
        types = {reader.column.column: reader.schema.type for reader in self.readers}
        names = sorted(types, reverse=True)
        if self.typed.includes_raw:
            types |= {f"{column}{RAW_SUFFIX}": pa.binary() for column in names}
        if self.typed.on_malformed is OnMalformedRecord.RECORD:
            types |= {f"{column}{ERROR_SUFFIX}": ERROR_TYPE for column in names}
        return types


class NewestSchema(NamedTuple):
    """The schema beside the newest value of a topic that has one.

    Attributes:
        place: of its record, for messages.
    """

    text: SchemaText
    place: str


NewestSchemas: TypeAlias = Callable[[str, Callable[[bytes], SchemaText | None]], Sequence[NewestSchema]]
"""Looks for the newest schema in each topic: of the column `key` or `value`, as the function finds it in a value."""


def query_schemas(
    typed: TypedValuesOptions, topics: tuple[str, ...], newest: NewestSchemas | None = None
) -> QuerySchemas:
    """The schemas of a query that begins now.

    Args:
        topics: of the query; empty if they are unknown.
        newest: for columns whose schemas are in their values.

    Raises:
        OptionError: a schema's file cannot be read, topics have different schemas, or no value has a schema.
        ValueSchemaError: a schema cannot be read as columns.
        SchemaRegistryError: the registry does not have a schema, or does not respond.
    """
    lookups: list[SchemaLookup] = []
    client = None if typed.registry is None else RegistryClient(typed.registry, lookups.append)
    readers = tuple(reader_schema(column, topics, client, newest) for column in typed.columns)
    return QuerySchemas(typed, readers, tuple(lookups))


def reader_schema(
    column: ColumnFormat, topics: tuple[str, ...], client: RegistryClient | None, newest: NewestSchemas | None = None
) -> ReaderSchema:
    """What a column is read as. Args and errors as of `query_schemas`; `client` is None without a registry."""
    found, source = column_schema(column, topics, client, newest)
    text = found.text._replace(
        max_depth=column.max_depth, stable_members=column.stable_members, lenient_fields=column.lenient_fields
    )
    schema = schema_of(column.format, text)
    try:
        columns, left_out = str(schema.type), schema.left_out
    except ValueSchemaError as error:
        raise ValueSchemaError(f"{source} cannot be read as columns: {error}") from None
    for field, why in left_out.items():
        logger.warning("%s is read without the field %s: %s", source, field, why)
    pin = SchemaPin(digest(columns), fingerprint(text), source)
    return ReaderSchema(column, text, pin, column.subjects(topics))


def column_schema(
    column: ColumnFormat, topics: tuple[str, ...], client: RegistryClient | None, newest: NewestSchemas | None = None
) -> tuple[Schema, str]:
    """The schema of options, registry or values, and where it is from. Args and errors as of `reader_schema`."""
    if column.schema is not None:
        text, source = given_schema(column, column.schema), f"option {column.column}Schema"
    elif column.format.is_in_values:
        assert newest is not None, "who reads values can look for the newest"
        text, source = _newest_schema(column, newest(column.column, column.format.schema_in))
    else:
        assert client is not None, "options without a schema need a registry"
        versions = client.each(column.subjects(topics), partial(client.version, version=column.version))
        text, source = common_schema(column, versions), ", ".join(map(_described, versions))
    return schema_of(column.format, text), source


def _newest_schema(column: ColumnFormat, found: Sequence[NewestSchema]) -> tuple[SchemaText, str]:
    """The newest schema, which all topics share, and where it is from."""
    if not found:
        name, has_none = column.column, ", or to bytes if records have no key" if column.column == "key" else ""
        raise OptionError(
            f"no {name} of the newest records has a schema: set '{name}Format' to json for JSON without schemas"
            f"{has_none}; before the first record, set '{name}Schema' to a schema of Kafka Connect"
        )
    _check_same(column, {each.text: each.place for each in found})
    return found[0].text, f"the schema in {found[0].place}"


def given_schema(column: ColumnFormat, given: str) -> SchemaText:
    """Of `valueSchema` or `keySchema`."""
    return _with_message(column, SchemaText(_schema_text(column, given)))


def _with_message(column: ColumnFormat, schema: SchemaText) -> SchemaText:
    """The schema, with the message type that the options name."""
    named = column.format.names_message and column.record_names
    return schema._replace(message=column.record_names[0]) if named else schema


def _schema_text(column: ColumnFormat, given: str) -> str:
    """The text, or that of a file with this path."""
    if column.format.is_text(given):
        return given
    try:
        return column.format.text_of_file(Path(given).read_bytes())
    except (OSError, ValueError) as error:
        if column.format.may_be_text(given):
            return given
        reason = getattr(error, "strerror", None) or "not a text file"
        raise OptionError(
            f"Option '{column.column}Schema' must be the text of a schema, or the path of a file on the driver with it "
            f"({reason})"
        ) from None


def common_schema(column: ColumnFormat, versions: Sequence[SubjectVersion]) -> SchemaText:
    """The schema of each record name, which all topics share, or of any of them."""
    for version in versions:
        if version.registered.kind != column.format.registry_type:
            raise OptionError(
                f"{_described(version)} is {version.registered.kind}, not {column.format.title}: correct "
                f"'{column.column}Format', or the subject"
            )
    names = len(column.record_names) if column.strategy is not SubjectNameStrategy.TOPIC else 1
    schemas = []
    for index in range(names):
        of_name = versions[index::names]
        texts = {version.registered.schema: version for version in of_name}
        _check_same(column, {schema: _described(version) for schema, version in texts.items()})
        schemas.append(of_name[0].registered.schema)
    return _with_message(column, schemas[0]) if len(schemas) == 1 else column.format.any_of(schemas)


def _check_same(column: ColumnFormat, described: Mapping[SchemaText, str]) -> None:
    """Refuse topics that are read as different columns.

    Args:
        described: their different schemas, with what they are called.
    """
    if len(described) > 1:
        distinct = {_read_as(column, schema, name): name for schema, name in described.items()}
        if len(distinct) > 1:
            raise OptionError(
                f"the topics of the query have different schemas ({', '.join(distinct.values())}): read them in a "
                f"query each, or set '{column.column}Schema'"
            )


def _read_as(column: ColumnFormat, schema: SchemaText, described: str) -> Hashable:
    """Equal for schemas by which values are read as the same columns."""
    try:
        text = _with_message(column, schema)._replace(lenient_fields=column.lenient_fields)
        return schema_of(column.format, text).read_as
    except ValueSchemaError as error:
        raise ValueSchemaError(f"{described} cannot be read as columns: {error}") from None


def _described(version: SubjectVersion) -> str:
    return f"version {version.version} of {version.subject} (id {version.registered.schema_id})"


def fingerprint(schema: SchemaText) -> str:
    """Equal for equal schemas, whatever their ids and the blanks in their JSON. The order of names counts: JSON Schema
    has that of its columns."""
    message = [str(schema.message)] if schema.message else []
    columns = schema._replace(text="", references=(), message="", lenient_fields=())
    how = [] if columns == SchemaText("") else [str(columns)]
    return digest("\n".join([*map(_compact, (schema.text, *schema.references)), *message, *how]))


def _compact(text: str) -> str:
    try:
        return json.dumps(json.loads(text))
    except ValueError:
        return text


def digest(text: str) -> str:
    """As in a `SchemaPin`."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_pins(pinned: Mapping[str, SchemaPin], schemas: QuerySchemas) -> None:
    """Compare the schemas of a restarted query with those of its checkpoint.

    Values are read as the query's own schemas say. If those are others than before and the user did not choose them,
    because the latest version is another now, columns must be the same: tables that the query writes to expect them.
    Rows of changes may have more columns than before, as they do after ALTER TABLE. Raises SchemaChangedError: the
    latest version has other columns.
    """
    for reader in schemas.readers:
        column, now = reader.column, reader.pin
        before = pinned.get(column.column, now)
        if before.fingerprint == now.fingerprint:
            continue
        change = f"the schema of {column.column} was {before.source} in the last micro-batch, and is {now.source} now"
        if {*before.columns.split()} <= {*now.columns.split()} or not column.is_latest:
            logger.warning("%s; records are read with the new one from here on", change)
            continue
        if column.format.is_in_values:
            raise SchemaChangedError(f"{change}, with other columns. Set '{column.column}Schema' to the one to read as")
        raise SchemaChangedError(
            f"{change}, with other columns. Set '{column.column}SchemaVersion' to a number: the new version to go on "
            f"with the new columns, or the old one to keep the columns; or set '{column.column}Schema', if no number "
            "is right for all subjects"
        )


class WriterSchemas:
    """The schemas of the versions of the subjects that a query reads, for its tasks.

    A slow or failing registry delays few plans, each for about `WATCH_TIMEOUT_MS`: workers ask for what they lack.
    """

    def __init__(
        self, schemas: QuerySchemas, report: Callable[[SchemaLookup], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` returns seconds that never go back."""
        framed = [reader for reader in schemas.readers if reader.column.framing is not Framing.NONE]
        self._asked_s = dict.fromkeys((subject for reader in framed for subject in reader.subjects), -math.inf)
        registry = schemas.typed.registry
        self._client = None
        if registry is not None:
            asks = RegistryClient(registry, report, reason=LookupReason.NEW_VERSIONS)
            self._client = asks.within(WATCH_TIMEOUT_MS)
        self._clock = clock
        self._due_s = -math.inf
        self._by_subject: dict[str, dict[int, RegisteredSchema]] = {}

    def current(self) -> tuple[RegisteredSchema, ...]:
        """The schemas by now, asked for again if that is due."""
        began_s = self._clock()
        if self._client is not None and began_s >= self._due_s:
            interval_s = WATCH_INTERVAL_S
            try:
                # As many subjects as there is time for, those first that were not asked for longest.
                update = partial(self._update_in_time, self._client, began_s + WATCH_TIMEOUT_MS / 1000)
                self._client.each(sorted(self._asked_s, key=self._asked_s.__getitem__), update)
            except SchemaRegistryError as error:
                logger.warning("%s; workers ask for schemas themselves", error)
                interval_s = WATCH_BACKOFF_S
            now_s = self._clock()
            self._due_s = now_s + max(interval_s, PAUSE_FACTOR * (now_s - began_s))
        known = (schema for versions in self._by_subject.values() for schema in versions.values())
        return tuple({(schema.context, schema.schema_id): schema for schema in known}.values())

    def _update_in_time(self, client: RegistryClient, until: float, subject: str) -> None:
        now_s = self._clock()
        if now_s < until:
            self._asked_s[subject] = now_s
            with suppress(UnknownSchemaError):  # no schema yet, or not under this subject
                self._update_subject(client, subject, until)

    def _update_subject(self, client: RegistryClient, subject: str, until: float) -> None:
        newest, before = client.versions(subject)[-MAX_WRITERS:], self._by_subject.get(subject, {})
        kept = self._by_subject[subject] = {version: before[version] for version in newest if version in before}
        for version in reversed(newest):
            if version not in kept and self._clock() < until:
                with suppress(ValueSchemaError):  # values with a schema that cannot be used are malformed
                    kept[version] = client.version(subject, version).registered


# --- the records of a task --------------------------------------------------------------------------------------------


@contextmanager
def typed_rows(
    schemas: QuerySchemas,
    known: Sequence[RegisteredSchema],
    columns: Sequence[str],
    report: Callable[[SchemaLookup | MalformedRecords], None],
    offsets: int = 0,
    write_letters: WriteLetters | None = None,
) -> Iterator[TypedRows]:
    """The conversion of the records of one task, with a client of the registry. Its malformed records are events at the
    end, and all letters are written, unless the task fails.

    Args:
        known: schemas that need not be fetched.
        offsets: number of offsets that the task reads.
        write_letters: for onMalformedRecord deadLetter.

    Raises:
        OptionError: nobody writes letters here.
        DeadLetterError: at the end; letters cannot be written.
    """
    registry, on_malformed = schemas.typed.registry, schemas.typed.on_malformed
    client = None
    if registry is not None:
        client = RegistryClient(registry, report, reason=LookupReason.UNKNOWN_SCHEMA)
        worker_schemas.add(registry, known)
    typed = {}
    for reader in schemas.readers:
        column = reader.column
        writer = partial(_writer, reader, registry, client, on_malformed is OnMalformedRecord.FAIL)
        typed[column.column] = ColumnDecoding(reader.schema, column.framing, writer, column.record_names, column.column)
    if on_malformed is OnMalformedRecord.DEAD_LETTER and write_letters is None:
        raise OptionError("'onMalformedRecord' deadLetter is for Spark's queries: set it to record")
    letters = None if write_letters is None else DeadLetters(schemas.typed, write_letters)
    add_letters = None if letters is None else letters.add
    rows = TypedRows(columns, typed, on_malformed, schemas.typed.most_malformed(offsets), add_letters)
    try:
        with suppress(GeneratorExit):  # Spark needs no more rows, but has those after these letters
            yield rows
        if letters is not None:
            letters.flush()
    finally:
        for (name, partition), count in rows.malformed.items():
            error = f"offset {count.offset}: {count.cause}"
            report(MalformedRecords(partition, error, count.schema_id, name, count.records))


def _writer(
    reader: ReaderSchema, registry: RegistryOptions | None, client: RegistryClient | None, fails: bool, key: int | str
) -> SchemaText:
    """The schema of an id or GUID in a frame. A task that would fail asks the registry first, so its repetition does
    not fail because of what the registry did not know a moment ago."""
    assert registry is not None and client is not None, "the options refuse frames without a registry"
    kind, subject = reader.schema.registry_type, reader.column.subject
    return worker_schemas.schema(registry, key, kind, client, asks_again=fails, subject=subject).schema
