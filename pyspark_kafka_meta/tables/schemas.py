"""Derives the columns of the side tables, for Spark and for Arrow, from the dataclasses of their rows.

int becomes bigint, float double, an enumeration string, datetime timestamp, a tuple an array, and a dataclass or
`TopicPartition` in a tuple a struct. All columns are nullable: events of other versions may lack fields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass
from datetime import datetime
from enum import StrEnum
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from pyspark_kafka_meta.kafka.metadata.refresh_events import RefreshEvent
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import Table
from pyspark_kafka_meta.tables.rows import BrokerRow, CacheRow, PartitionRow, TransactionRow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

T = TypeVar("T")

ROWS: Mapping[Table, type] = {
    Table.REFRESH_EVENTS: RefreshEvent,
    Table.CACHES: CacheRow,
    Table.BROKERS: BrokerRow,
    Table.PARTITIONS: PartitionRow,
    Table.TRANSACTIONS: TransactionRow,
}


def struct_type(row: type) -> StructType:
    """The Spark columns of a table of `row`s."""
    from pyspark.sql import types

    scalars: dict[type, types.DataType] = {
        int: types.LongType(),
        float: types.DoubleType(),
        str: types.StringType(),
        bool: types.BooleanType(),
        datetime: types.TimestampType(),
    }

    def struct(members: Mapping[str, types.DataType]) -> types.DataType:
        return types.StructType([types.StructField(name, kind) for name, kind in members.items()])

    build = _builder(scalars, types.ArrayType, struct)
    return types.StructType([types.StructField(name, build(hint)) for name, hint in _columns(row).items()])


def arrow_schema(row: type, names: Collection[str] | None = None) -> pa.Schema:
    """The Arrow columns of a table of `row`s: all columns, or `names` in their order."""
    import pyarrow as pa

    scalars = {
        int: pa.int64(),
        float: pa.float64(),
        str: pa.string(),
        bool: pa.bool_(),
        datetime: pa.timestamp("us", tz="UTC"),
    }

    def array(member: pa.DataType) -> pa.DataType:
        return pa.list_(pa.field("element", member))

    build = _builder(scalars, array, lambda members: pa.struct(list(members.items())))
    columns = _columns(row)
    return pa.schema([(name, build(columns[name])) for name in (columns if names is None else names)])


def _columns(row: type) -> dict[str, Any]:
    """The type of each column. The fields of a nested dataclass become columns at the end, as in
    `RefreshEvent.to_dict`; `time_ms` is also a timestamp column, the first one."""
    flat: dict[str, Any] = {}
    nested: dict[str, Any] = {}
    for name, hint in get_type_hints(row).items():
        kind = _without_none(hint)
        if is_dataclass(kind):
            nested |= get_type_hints(kind)
        else:
            flat[name] = hint
    return {**({"time": datetime} if "time_ms" in flat else {}), **flat, **nested}


def _builder(
    scalars: Mapping[type, T], array: Callable[[T], T], struct: Callable[[Mapping[str, T]], T]
) -> Callable[[Any], T]:
    def build(hint: Any) -> T:
        kind = _without_none(hint)
        if get_origin(kind) is tuple:
            return array(build(get_args(kind)[0]))
        if is_dataclass(kind) or issubclass(kind, TopicPartition):
            return struct({name: build(member) for name, member in get_type_hints(kind).items()})
        return scalars[str if issubclass(kind, StrEnum) else kind]

    return build


def _without_none(hint: Any) -> Any:
    """X of `X | None`."""
    return next(kind for kind in get_args(hint) if kind is not NoneType) if NoneType in get_args(hint) else hint
