"""The columns of a DataFrame that a sink writes.

Names, types and error texts follow Spark's `KafkaWriter`, which has no column `timestamp`; the texts go on with what to
select instead.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import SchemaError
from pyspark_kafka_meta.model import name_first, shortened

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_kafka_meta.typed.writing import ColumnEncoding

logger = logging.getLogger(__name__)

TYPES = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>", "map<string,binary>"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""Spark's names of the types that a column may have."""
FORMATTED = ("key", "value")
"""The columns that the options keyFormat and valueFormat encode."""
_NO_TOPIC = "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkColumns:
    """The position of each column in the schema; None if it is missing, or replaced by the option topic.

    Attributes:
        typed: how columns that are not bytes are encoded, by name.
    """

    key: int | None
    value: int
    headers: int | None
    topic: int | None
    partition: int | None
    timestamp: int | None
    typed: Mapping[str, ColumnEncoding] = field(default_factory=dict)


RECORD_COLUMNS = SinkColumns(key=0, value=1, headers=2, timestamp=3, topic=None, partition=None)
"""Of records that are written as they are: dead letters, and the records of these that are sent again."""


def sink_columns(schema: StructType, topic: str | None, typed: Collection[str] = ()) -> SinkColumns:
    """Find the columns by exact name, as Spark does. Raises SchemaError: one line for each missing column and each
    column of another type.

    Args:
        topic: the option, for all rows.
        typed: columns that may have any type.
    """
    positions = {name: schema.names.index(name) for name in TYPES if name in schema.names}
    ignored = [name for name in schema.names if name not in positions]
    if topic is not None:
        positions.pop("topic", None)
    problems = _missing(positions, schema, topic, typed)
    for name, position in positions.items():
        found, allowed = schema.fields[position].dataType.simpleString(), TYPES[name]
        if found not in allowed and name not in typed:
            problem = (
                f"{name} attribute unsupported type {shortened(found)}. {name} must be a(n) {' or '.join(allowed)}"
            )
            problems.append(f"{problem}: {_cast(name, found, allowed)}")
    if problems:
        raise SchemaError("\n".join(problems))
    if ignored:
        logger.info("these columns are not written: %s", ", ".join(ignored))
    return SinkColumns(**{name: positions.get(name) for name in TYPES})  # type: ignore[arg-type]  # value is there


def _missing(positions: dict[str, int], schema: StructType, topic: str | None, typed: Collection[str]) -> list[str]:
    problems = []
    if topic is None and "topic" not in positions:
        problems.append(_NO_TOPIC + _rename(schema, "topic"))
    required = [name for name in TYPES if (name == "value" or name in typed) and name not in positions]
    return problems + [
        f"Required attribute '{name}' not found." + (_rename(schema, name) or _select(schema, name, name in typed))
        for name in required
    ]


def _rename(schema: StructType, name: str) -> str:
    others = [column for column in schema.names if column.lower() == name]
    return f" Rename column '{others[0]}' to '{name}'." if others else ""


def _select(schema: StructType, name: str, is_typed: bool) -> str:
    if is_typed:
        expressions = f"struct(*) AS {name}"
    else:
        first = f"CAST({shortened(schema.names[0])} AS STRING) AS {name} or " if schema.names else ""
        expressions = f"{first}to_json(struct(*)) AS {name}; or set option {name}Format, and select struct(*) AS {name}"
    return f" The columns are {name_first(schema.names)}: select {expressions}."


def _cast(name: str, found: str, allowed: Sequence[str]) -> str:
    if name == "headers":
        return "select array(struct('name' AS key, CAST('text' AS BINARY) AS value)) AS headers"
    if name not in FORMATTED:
        return f"select CAST({name} AS {allowed[0].upper()}) AS {name}"
    is_nested = found.startswith(("struct", "array", "map"))
    expression = f"to_json({name})" if is_nested else f"CAST({name} AS STRING)"
    return f"select {expression} AS {name}, or set option {name}Format"
