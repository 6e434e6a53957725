"""The options of typed keys and values: their format, their schemas, and the schema registry.

Names of `schema.registry.*` and the subject name strategies are those of Confluent's serializers
(`AbstractKafkaSchemaSerDeConfig`). An error never repeats a value of these options that may be a secret.
"""
# ruff: noqa: RUF009 (the default of a field is an option, made by a function)

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from pyspark_kafka_meta.options.option_table import GivenOptions, Query, Rows, Section, default_options, options_of
from pyspark_kafka_meta.options.parsers import Secret, parse_choice, parse_number, parse_secret, parse_text
from pyspark_kafka_meta.options.security import PLAINTEXT, SecurityOptions, package_problems
from pyspark_kafka_meta.validators import INT32_MAX, non_empty

logger = logging.getLogger(__name__)

LATEST_VERSION = "latest"


class ValueFormat(StrEnum):
    """How keys or values are encoded."""

    BYTES = "bytes"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON = "json"


class Framing(StrEnum):
    """What precedes an encoded value in a record."""

    CONFLUENT = "confluent"
    """The byte 0 and a schema id of 4 bytes. What is read may have it in a header instead, or a GUID."""
    CONFLUENT_HEADER = "confluent-header"
    """The same when read; the schema's GUID is written into a header."""
    APICURIO = "apicurio"
    """The byte 0 and a schema id of 8 bytes."""
    NONE = "none"

    @property
    def id_bytes(self) -> int:
        """Of the schema id; 0 without a frame."""
        return {Framing.NONE: 0, Framing.APICURIO: 8}.get(self, 4)

    @property
    def is_confluents(self) -> bool:
        return self in (Framing.CONFLUENT, Framing.CONFLUENT_HEADER)


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


# --- the registry -----------------------------------------------------------------------------------------------------

_rows = Rows(Section.TYPED_VALUES, Query.RECORDS | Query.WRITES)


def _text(name: str, doc: str) -> Any:
    return _rows.option(name, None, parse_text, f"Option '{name}' must not be empty", doc)


def _secret(name: str, doc: str) -> Any:
    return _rows.option(name, None, parse_secret, f"Option '{name}' must not be empty", doc)


def _parse_urls(text: str) -> tuple[str, ...]:
    """The URLs without a slash at the end, without duplicates."""
    urls = (_parse_url(url.strip()) for url in text.split(",") if url.strip())
    return non_empty(tuple(dict.fromkeys(urls)))


def _parse_url(url: str) -> str:
    if url.startswith("mock://"):
        raise ValueError("the processes of a Spark query share no mock:// registry; in tests use testing.MockRegistry")
    if "@" in url:  # a password may precede it
        raise ValueError("a URL must have no login: use schema.registry.basic.auth.user.info")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError
    if parts.port == 0:  # the property raises ValueError for other ports that do not exist
        raise ValueError
    return url.rstrip("/")


def _parse_host(text: str) -> str:
    host = text.strip()
    if not re.fullmatch(r"[\w.-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*", host):
        raise ValueError
    return host


def _parse_user_info(text: str) -> Secret:
    if not re.match(r"[^:\s]+:.", text):
        raise ValueError
    return Secret(text)


def _parse_token(text: str) -> Secret:
    """Without the line break at the end of a token's file. Python's HTTP client repeats a header that it refuses."""
    token = text.strip()
    if not re.fullmatch(r"[!-~]+", token):
        raise ValueError
    return Secret(token)


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """Where the schema registry is, and how requests to it are authenticated and encrypted.

    Attributes:
        user_info: `user:password`.
    """

    urls: tuple[str, ...] | None = _rows.option(
        "schema.registry.url",
        None,
        _parse_urls,
        "Option 'schema.registry.url' must be http://host:port or https://host:port, several separated by commas",
        "URL of a schema registry with Confluent's API; of several, separated by commas, the next is tried if one "
        "fails. Apicurio has this API at /apis/ccompat/v7.",
    )
    user_info: Secret | None = _rows.option(
        "schema.registry.basic.auth.user.info",
        None,
        _parse_user_info,
        "Option 'schema.registry.basic.auth.user.info' must be user:password",
        "Login at the registry as user:password, or API key and secret.",
    )
    bearer_token: Secret | None = _rows.option(
        "schema.registry.bearer.auth.token",
        None,
        _parse_token,
        "Option 'schema.registry.bearer.auth.token' must be one word of ASCII characters",
        "Token for the registry, instead.",
    )
    timeout_ms: int = _rows.number(
        "schema.registry.timeout.ms", "60000", "Maximum duration of a request to the registry with its retries.", low=1
    )
    proxy_host: str | None = _rows.option(
        "schema.registry.proxy.host",
        None,
        _parse_host,
        "Option 'schema.registry.proxy.host' must be the name or address of a host, without port and scheme",
        "HTTP proxy for requests to the registry, without a login. HTTPS_PROXY and the like have no effect.",
    )
    proxy_port: int | None = _rows.number("schema.registry.proxy.port", None, "Port of the proxy.", low=1, high=65_535)
    truststore_location: str | None = _text(
        "schema.registry.ssl.truststore.location", "As kafka.ssl.truststore.location, for the registry."
    )
    truststore_password: Secret | None = _secret(
        "schema.registry.ssl.truststore.password", "As kafka.ssl.truststore.password."
    )
    truststore_certificates: str | None = _text(
        "schema.registry.ssl.truststore.certificates", "As kafka.ssl.truststore.certificates."
    )
    keystore_location: str | None = _text("schema.registry.ssl.keystore.location", "As kafka.ssl.keystore.location.")
    keystore_password: Secret | None = _secret(
        "schema.registry.ssl.keystore.password", "As kafka.ssl.keystore.password."
    )
    keystore_key: Secret | None = _secret("schema.registry.ssl.keystore.key", "As kafka.ssl.keystore.key.")
    keystore_certificate_chain: str | None = _text(
        "schema.registry.ssl.keystore.certificate.chain", "As kafka.ssl.keystore.certificate.chain."
    )
    key_password: Secret | None = _secret("schema.registry.ssl.key.password", "As kafka.ssl.key.password.")

    @classmethod
    def of(cls, given: GivenOptions) -> RegistryOptions | None:
        """None without `schema.registry.url`. Allowed but weak options are logged."""
        options = cls(**given.values(cls))
        if given.has_invalid(cls):
            return options
        problems = list(_registry_problems(given, options))
        given.refuse(problems)
        if options.urls is None:
            return None
        has_secret = options.user_info is not None or options.bearer_token is not None
        if not problems and has_secret and any(url.startswith("http://") for url in options.urls):
            logger.warning("schema.registry.url is not https: the login is sent unencrypted")
        return options

    @property
    def security(self) -> SecurityOptions:
        """The TLS options in the form of a broker's."""
        names = [name for name in options_of(RegistryOptions) if name.startswith(("truststore_", "key"))]
        return replace(PLAINTEXT, protocol="SSL", **{name: getattr(self, name) for name in names})


def _registry_problems(given: GivenOptions, options: RegistryOptions) -> Iterator[str]:
    others = given.given(RegistryOptions, *(name for name in options_of(RegistryOptions) if name != "urls"))
    if options.urls is None:
        yield from (f"Option '{name}' has no effect without 'schema.registry.url'" for name in others)
        return
    tls = [name for name in others if name.startswith("schema.registry.ssl.")]
    if tls and not any(url.startswith("https://") for url in options.urls):
        yield f"Option '{tls[0]}' has no effect without TLS: begin 'schema.registry.url' with https://"
    for one, other in (
        ("user_info", "bearer_token"),
        ("truststore_location", "truststore_certificates"),
        ("keystore_location", "keystore_key"),
    ):
        if len(names := given.given(RegistryOptions, one, other)) == 2:
            yield f"Set either '{names[0]}' or '{names[1]}', not both"
    for pair in (("keystore_key", "keystore_certificate_chain"), ("proxy_host", "proxy_port")):
        if len(given.given(RegistryOptions, *pair)) == 1:
            one, other = (options_of(RegistryOptions)[field].name for field in pair)
            yield f"Options '{one}' and '{other}' must be set together"
    if options.keystore_location or options.keystore_key:
        yield from package_problems("A client certificate", "cryptography")


# --- keys and values --------------------------------------------------------------------------------------------------


def _parse_version(text: str) -> int | str:

    return LATEST_VERSION if text.strip().lower() == LATEST_VERSION else parse_number(text, 1, INT32_MAX)


def _parse_record_names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not all(re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name) for name in names):
        raise ValueError
    return non_empty(names)


def _format(side: str, doc: str) -> Any:
    return _rows.choice(f"{side}Format", {each.value: each for each in ValueFormat}, doc)


def _schema(side: str, doc: str) -> Any:
    return _text(f"{side}Schema", doc)


def _version(side: str, doc: str) -> Any:
    name = f"{side}SchemaVersion"
    error = f"Option '{name}' must be latest or a version of the subject from 1, got '{{value}}'"
    return _rows.option(name, LATEST_VERSION, _parse_version, error, doc)


def _framing(side: str, doc: str) -> Any:
    name = f"{side}Framing"
    choices = {each.value: each for each in Framing}
    error = f"Option '{name}' must be {' or '.join(choices)}, got '{{value}}'"
    return _rows.option(name, None, partial(parse_choice, values=choices), error, doc)


def _strategy(side: str, doc: str) -> Any:
    return _rows.choice(f"{side}SubjectNameStrategy", {each.value: each for each in SubjectNameStrategy}, doc)


def _record_names(side: str, doc: str) -> Any:
    name = f"{side}RecordName"
    error = f"Option '{name}' must be the full name of a record, as shop.Order; several separated by commas"
    return _rows.option(name, None, _parse_record_names, error, doc)


@dataclass(frozen=True, slots=True)
class ColumnFormat:
    """How the column `key` or `value` is typed.

    Attributes:
        column: `key` or `value`.
        schema: the reader's schema as text, or the path of a file with it; None to take it from the registry.
        version: of the subject: a number, or `LATEST_VERSION`.
        record_names: of the strategies record and topic-record.
    """

    column: str
    format: ValueFormat
    schema: str | None
    version: int | str
    framing: Framing
    strategy: SubjectNameStrategy
    record_names: tuple[str, ...]

    @property
    def is_latest(self) -> bool:
        """Whether the schema is whatever version is the latest."""
        return self.schema is None and self.version == LATEST_VERSION

    def subjects(self, topics: tuple[str, ...]) -> tuple[str, ...]:
        """The subjects in which the schemas of these topics are registered."""
        match self.strategy:
            case SubjectNameStrategy.TOPIC:
                return tuple(f"{topic}-{self.column}" for topic in topics)
            case SubjectNameStrategy.RECORD:
                return self.record_names
            case SubjectNameStrategy.TOPIC_RECORD:
                return tuple(f"{topic}-{name}" for topic in topics for name in self.record_names)


_OPTIONS_OF_SIDE = ("schema", "version", "framing", "strategy", "record_names")


@dataclass(frozen=True, slots=True)
class TypedValuesOptions:
    """How keys and values are typed.

    Attributes:
        registry: None without a registry.
    """

    registry: RegistryOptions | None
    value_format: ValueFormat = _format(
        "value", "Format of values: bytes, or avro, protobuf or json, whose columns are those of their schema."
    )
    key_format: ValueFormat = _format("key", "As valueFormat, for keys.")
    value_schema: str | None = _schema(
        "value",
        "Schema that values are read as or written with, as text or the path of a file; of Protobuf a file of `protoc "
        "--descriptor_set_out`, of JSON also what Spark's `schema.json()` returns. Default: from the registry.",
    )
    key_schema: str | None = _schema("key", "As valueSchema, for keys.")
    value_version: int | str = _version(
        "value",
        "Version of the subject that values are read as or written with: a number, or latest when the query starts.",
    )
    key_version: int | str = _version("key", "As valueSchemaVersion, for keys.")
    value_framing: Framing | None = _framing(
        "value",
        "What precedes an encoded value: confluent (the byte 0 and a schema id of 4 bytes; default with a registry), "
        "confluent-header (nothing, as a header has the GUID of the schema; a read takes either with both values), "
        "apicurio (8 bytes), or none (default without a registry).",
    )
    key_framing: Framing | None = _framing("key", "As valueFraming, for keys.")
    value_strategy: SubjectNameStrategy = _strategy(
        "value", "Subjects of the schemas: topic (orders-value), record (shop.Order) or topic-record."
    )
    key_strategy: SubjectNameStrategy = _strategy("key", "As valueSubjectNameStrategy, for keys.")
    value_record_names: tuple[str, ...] | None = _record_names(
        "value",
        "Full name of the record, for the strategies record and topic-record, or of Protobuf's message type (default: "
        "the first). Avro values of several records, separated by commas, become a struct with a member for each.",
    )
    key_record_names: tuple[str, ...] | None = _record_names("key", "As valueRecordName, for keys.")
    on_malformed: OnMalformedRecord = _rows.choice(
        "onMalformedRecord",
        {each.value: each for each in OnMalformedRecord},
        "A value that cannot be decoded: fail, null, or record, which is null with a struct of cause, schema_id and "
        "raw bytes in the column value_error (key_error).",
        section=Section.FAILURES,
        queries=Query.RECORDS,
    )
    auto_register: bool = _rows.choice(
        "auto.register.schemas",
        {"false": False, "true": True},
        "Whether a write registers valueSchema, or else the schema of the DataFrame's type, in the subject; not of "
        "Protobuf. Otherwise the subject must have it: valueSchema, or else the version of valueSchemaVersion.",
        queries=Query.WRITES,
    )

    @classmethod
    def of(cls, given: GivenOptions) -> TypedValuesOptions:
        options = cls(RegistryOptions.of(given), **given.values(cls))
        if not given.has_invalid(cls) and not given.has_invalid(RegistryOptions):
            for column in ("value", "key"):
                given.refuse(_column_problems(given, options, column))
            if not options.columns and given.given(cls, "on_malformed"):
                given.refuse(["Option 'onMalformedRecord' has no effect without 'valueFormat' or 'keyFormat'"])
            if given.given(cls, "auto_register") and not (options.columns and options.registry):
                given.refuse(
                    ["Option 'auto.register.schemas' has no effect without 'schema.registry.url' and a format"]
                )
        return options

    @property
    def columns(self) -> tuple[ColumnFormat, ...]:
        """Of `key` and `value`, those that are not bytes."""
        formats = (self.column(column) for column in ("key", "value"))
        return tuple(each for each in formats if each.format is not ValueFormat.BYTES)

    def column(self, column: str) -> ColumnFormat:
        """How the column `key` or `value` is typed."""
        default = Framing.NONE if self.registry is None else Framing.CONFLUENT
        return ColumnFormat(
            column,
            getattr(self, f"{column}_format"),
            getattr(self, f"{column}_schema"),
            getattr(self, f"{column}_version"),
            getattr(self, f"{column}_framing") or default,
            getattr(self, f"{column}_strategy"),
            getattr(self, f"{column}_record_names") or (),
        )


BYTES = default_options(TypedValuesOptions, registry=None)
"""Keys and values as bytes."""


def _column_problems(given: GivenOptions, options: TypedValuesOptions, column: str) -> Iterator[str]:
    """A sentence for each contradiction among valid values."""
    names = {field: option.name for field, option in options_of(TypedValuesOptions).items() if field.startswith(column)}
    name = {field.removeprefix(f"{column}_"): option for field, option in names.items()}
    is_given = {field: bool(given.given(TypedValuesOptions, f"{column}_{field}")) for field in _OPTIONS_OF_SIDE}
    chosen = options.column(column)
    if chosen.format is ValueFormat.BYTES:
        yield from (
            f"Option '{name[field]}' has no effect without '{name['format']}': set a format or remove the option"
            for field, is_set in is_given.items()
            if is_set
        )
        return
    if chosen.format is ValueFormat.PROTOBUF and chosen.framing is Framing.APICURIO:
        yield f"'{name['framing']}' apicurio is not supported for protobuf: use confluent or none"
    if options.registry is None:
        if chosen.framing is not Framing.NONE:
            yield f"'{name['framing']}' {chosen.framing} needs 'schema.registry.url', as a frame has only a schema id"
        elif chosen.schema is None:
            yield f"'{name['format']}' {chosen.format} needs 'schema.registry.url' or '{name['schema']}'"
    is_write = given.query in Query.WRITES
    names_message = chosen.format is ValueFormat.PROTOBUF
    if chosen.schema is not None:
        others = ("version",) if is_write else ("version", "strategy", *(() if names_message else ("record_names",)))
        yield from (
            f"Set either '{name['schema']}' or '{name[field]}', not both" for field in others if is_given[field]
        )
        if not is_write:
            return
    yield from _subject_problems(chosen, name, is_given)
    if is_write:
        yield from _write_problems(chosen, name, is_given, options.auto_register)


def _subject_problems(chosen: ColumnFormat, name: Mapping[str, str], is_given: Mapping[str, bool]) -> Iterator[str]:
    needs_names = chosen.strategy is not SubjectNameStrategy.TOPIC
    if len(chosen.record_names) > 1 and chosen.format is not ValueFormat.AVRO:
        yield f"'{name['record_names']}' must be one name: only Avro has values of several types"
    if needs_names and not chosen.record_names:
        yield f"'{name['strategy']}' {chosen.strategy} needs '{name['record_names']}'"
    if is_given["record_names"] and not needs_names and chosen.format is not ValueFormat.PROTOBUF:
        yield f"Option '{name['record_names']}' needs '{name['strategy']}' record or topic-record"


def _write_problems(
    chosen: ColumnFormat, name: Mapping[str, str], is_given: Mapping[str, bool], registers: bool
) -> Iterator[str]:
    if registers and is_given["version"] and chosen.schema is None:
        yield f"Set either 'auto.register.schemas' or '{name['version']}', not both"
    if registers and chosen.format is ValueFormat.PROTOBUF:
        yield "'auto.register.schemas' is not supported for protobuf: register the .proto file in the registry"
    if len(chosen.record_names) > 1:
        yield f"Option '{name['record_names']}' must be one name in a write"
