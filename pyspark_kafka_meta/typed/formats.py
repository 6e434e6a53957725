"""`Schema`: a parsed schema, and what all formats have in common. Arrow columns in, Arrow columns out.

A format is a folder of this package whose `FORMAT` is a subclass of `Schema`, and nothing else: options, registry and
columns ask the class. It imports numpy and pyarrow on first use, because the options are imported with the package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from pyspark_kafka_meta import typed
from pyspark_kafka_meta.errors import ValueSchemaError

if TYPE_CHECKING:
    import pyarrow as pa

DECIMAL = "org.apache.kafka.connect.data.Decimal"
"""Bytes with an unscaled number; `scale` is in its parameters."""
PRECISION = "connect.decimal.precision"
"""The parameter that Debezium adds to the scale."""
COMPILED_SCHEMAS = 1_000
"""A process keeps as many schemas, and compiled pairs of schemas: each batch of records needs them."""


class SchemaText(NamedTuple):
    """A schema as its author wrote it.

    Attributes:
        text: of the schema; of Protobuf a FileDescriptorSet in Base64.
        references: texts of the schemas that it refers to by name, each after those that it refers to itself; of
            Protobuf the set has them, of JSON the name is their `$id`.
        message: the message type of Protobuf, by full name or by Confluent's message indexes; empty for the first.
        max_depth: how often a recursive type of Avro or Protobuf becomes columns in itself.
        stable_members: members of Avro's unions are named after their types.
        lenient_fields: of the value, which may differ between schemas that are read as one. What the writer's schema
            has of another type, in them or in their fields, is null, if it may be.
    """

    text: str
    references: tuple[str, ...] = ()
    message: str | tuple[int, ...] = ()
    max_depth: int = 1
    stable_members: bool = False
    lenient_fields: tuple[str, ...] = ()

    def is_lenient(self, path: str) -> bool:
        """Whether the field at a path is, or is in, one of the lenient fields."""
        return path.partition(".")[0] in self.lenient_fields


class ConnectType(NamedTuple):
    """What Kafka Connect calls a type that values are sent as a plainer one.

    Attributes:
        name: such as `io.debezium.time.MicroTimestamp`, of a long, or `org.apache.kafka.connect.data.Decimal`. Empty
            for a type of Connect without a name, if the format tells it.
        parameters: of the type, such as `scale`; empty if the format does not keep them.
    """

    name: str
    parameters: Mapping[str, str]

    @classmethod
    def of(cls, name: str, parameters: object) -> ConnectType:
        """With the parameters in a schema, which may be anything."""
        return cls(name, {key: str(each) for key, each in parameters.items()} if isinstance(parameters, dict) else {})


class Schema(ABC):
    """A schema of one format, parsed when it is first needed. All members raise ValueSchemaError.

    Attributes:
        title: in texts for users.
        registry_type: the format's `schemaType` in a schema registry; in small letters, its name in options.
        is_recursive: a type in itself becomes columns as often as `SchemaText.max_depth` says.
        has_unions: of which `SchemaText.stable_members` names the members.
        has_several_names: values may have one of several schemas: see `any_of`.
        names_message: the name of a record chooses one of the types in a schema.
        has_message_indexes: Confluent's frames end with those of a schema's message type.
        is_in_apicurios_frames: whether values with Apicurio's frames can be read and written.
        may_be_registered: by a write. There is a schema for each type of a DataFrame: see `derived`.
        registry_form: how a registry is asked for schemas, as a query; empty for their text.
        is_in_values: each value has its writer's schema beside it: see `schema_in`. No registry has it, and it is not
            written.
    """

    title: ClassVar[str]
    registry_type: ClassVar[str]
    is_recursive: ClassVar[bool] = False
    has_unions: ClassVar[bool] = False
    has_several_names: ClassVar[bool] = False
    names_message: ClassVar[bool] = False
    has_message_indexes: ClassVar[bool] = False
    is_in_apicurios_frames: ClassVar[bool] = True
    may_be_registered: ClassVar[bool] = True
    registry_form: ClassVar[str] = ""
    is_in_values: ClassVar[bool] = False

    def __init__(self, text: SchemaText) -> None:
        self.text = text

    @property
    @abstractmethod
    def parsed(self) -> Any:
        """In a form of the format's own."""

    @property
    @abstractmethod
    def type(self) -> pa.DataType:
        """Of a column with values of this schema."""

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The full name of its record or message type, of JSON its title; None if it has none."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why fields have no column, by their names."""
        return {}

    @property
    def connect_types(self) -> Mapping[str, ConnectType]:
        """Of fields that a converter of Kafka Connect wrote, by their places as `inner_path` makes them: `after.price`,
        `after.tags.element` for the items of a list, `key` and `value` in a map. That of the whole value has the place
        "". The column has the type of `type`, whatever is named here."""
        return {}

    @property
    def read_as(self) -> Hashable:
        """Equal for schemas by which the same values are read as the same columns, in most formats but for lenient
        fields."""
        return self.text

    @property
    def registered_text(self) -> str:
        """By which a registry finds it."""
        return self.text.text

    @property
    def message_indexes(self) -> tuple[int, ...]:
        """With which Confluent's frames end."""
        return ()

    @abstractmethod
    def decoder(self, writer: Any, is_confluents: bool) -> ValueDecoder:
        """From values of a writer's schema to columns of this one.

        Args:
            writer: a schema of this class.
            is_confluents: whether Confluent's serializers wrote the values.
        """

    @abstractmethod
    def encoder(self, given: pa.DataType, is_confluents: bool) -> ValueEncoder:
        """Of columns of a type. Args as of `decoder`."""

    @classmethod
    def any_of(cls, schemas: Sequence[SchemaText]) -> SchemaText:
        """The schema of values that have one of several schemas."""
        raise NotImplementedError

    @classmethod
    def derived(cls, given: pa.DataType, name: str | None) -> SchemaText:
        """The schema of a type, whose record has this full name, or any."""
        raise NotImplementedError

    @classmethod
    def registered(cls, text: str, references: Sequence[str]) -> SchemaText:
        """A schema as a registry responds with it."""
        return SchemaText(text, tuple(references))

    @classmethod
    def referred(cls, text: str, name: object) -> str:
        """A schema of a registry that another one refers to by this name."""
        return text

    @classmethod
    def schema_in(cls, value: bytes) -> SchemaText | None:
        """The writer's schema; None if the value has none, or cannot be read."""
        raise NotImplementedError

    @classmethod
    def is_text(cls, given: str) -> bool:
        """Whether the value of an option is a schema, and not the path of a file with one."""
        return given.lstrip()[:1] in ("{", "[", '"')

    @classmethod
    def may_be_text(cls, given: str) -> bool:
        """The same, if there is no such file."""
        return False

    @classmethod
    def text_of_file(cls, content: bytes) -> str:
        """Raises ValueError."""
        return content.decode("utf-8-sig")


@cache
def formats() -> Mapping[str, type[Schema]]:
    """By their names in options."""
    folders = [import_module(f"{typed.__name__}.{each.name}") for each in iter_modules(typed.__path__) if each.ispkg]
    found: list[type[Schema]] = [folder.FORMAT for folder in folders if hasattr(folder, "FORMAT")]
    return {each.registry_type.lower(): each for each in found}


@lru_cache(COMPILED_SCHEMAS)
def schema_of(format_: type[Schema], text: SchemaText) -> Schema:
    """The same object for all uses of a text."""
    return format_(text)


@lru_cache(COMPILED_SCHEMAS)
def compiled_decoder(reader: Schema, writer: Schema, is_confluents: bool) -> ValueDecoder:
    return reader.decoder(writer, is_confluents)


def check_units(reader: Schema, writer: Schema) -> None:
    """Refuse numbers of another unit than the reader names, such as milliseconds for microseconds, and unscaled ones of
    another scale. A schema without any of Connect's names does not tell the units. Raises ValueSchemaError."""
    if reader is writer or not reader.connect_types or not writer.connect_types:
        return
    kinds = dict(_scalars(writer.type))
    for path, kind in _scalars(reader.type):
        is_rescaled = path in kinds and _is_decimal(kind) and _is_decimal(kinds[path])
        if path not in kinds or is_rescaled or reader.text.is_lenient(path):
            continue
        own, given = unit(kind, reader.connect_types.get(path)), unit(kinds[path], writer.connect_types.get(path))
        if own not in ("", given):
            raise ValueSchemaError(f"{path}: the writer's {given or kinds[path]} cannot be read as {own}")


def unit(kind: pa.DataType, named: ConnectType | None) -> str:
    """What the numbers of a field count; empty if they are plain ones, or no numbers.

    Args:
        kind: as which the field is decoded.
    """
    import pyarrow as pa

    if named is not None and named.name == DECIMAL and not pa.types.is_floating(kind):
        return f"{DECIMAL} of scale {named.parameters.get('scale')}"
    is_number = pa.types.is_integer(kind) or pa.types.is_temporal(kind)
    return named.name if named is not None and is_number else ""


def _is_decimal(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_decimal(kind))


def _scalars(kind: pa.DataType, path: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """The paths of fields that have no parts, with their types."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        for field in kind:
            yield from _scalars(field.type, inner_path(path, field.name))
    elif pa.types.is_list(kind):
        yield from _scalars(kind.value_type, inner_path(path, "element"))
    elif pa.types.is_map(kind):
        yield from _scalars(kind.item_type, inner_path(path, "value"))
    else:
        yield path, kind


# --- what decoders and encoders have in common ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a value cannot be decoded.

    Attributes:
        row: index in the decoded column.
        cause: a short sentence without the value itself.
    """

    row: int
    cause: str


class Decoded(NamedTuple):
    """A decoded column.

    Attributes:
        values: one for each input value; null where the input is null or at fault.
        faults: in the order of rows.
    """

    values: pa.Array
    faults: list[Fault]


class UnwritableValueError(ValueError):
    """A value that the schema does not allow.

    Attributes:
        row: index in the column.
        cause: a short sentence that names the field, without the value itself.
    """

    def __init__(self, row: int, cause: str) -> None:
        super().__init__(row, cause)
        self.row, self.cause = row, cause

    def __str__(self) -> str:
        return f"row {self.row}: {self.cause}"


class ValueDecoder(Protocol):
    """Decodes values of one writer's schema to the reader's type."""

    @property
    def type(self) -> pa.DataType:
        """Of all decoded columns."""

    def decode(self, values: pa.Array) -> Decoded:
        """Decodes a column of type binary, without frames."""


class ValueEncoder(NamedTuple):
    """Encodes columns of one type with one schema. Strings and bytes may have Arrow's large types too, which Spark can
    choose.

    Attributes:
        encode: to a column of type binary, without frames; null where the value is null. Raises UnwritableValueError:
            the schema does not allow a value.
    """

    encode: Callable[[pa.Array], pa.Array]


def without_fields(kind: pa.DataType, names: Collection[str]) -> pa.DataType:
    """A struct without the fields of these names; another type as it is."""
    import pyarrow as pa

    return pa.struct([field for field in kind if field.name not in names]) if pa.types.is_struct(kind) else kind


def inner_path(path: str, name: str) -> str:
    """Of a field in the field at a path."""
    return f"{path}.{name}" if path else name
