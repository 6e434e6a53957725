"""`bind`: from a condition and the types of columns to a function that makes a mask of rows: true, false or null.

Types are compared as Spark's `TypeCoercion` and `AnsiTypeCoercion` say, where both say the same and no value is rounded
in another way than Spark rounds it; other pairs are refused. Arrow compares as Spark does but for NaN, which Spark
takes as equal to itself and greater than others, and for zeros in `is_in`, where their signs count. Its LIKE has
another escape character, so a pattern becomes a regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial, reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import number_array
from pyspark_kafka_meta.model import name_first
from pyspark_kafka_meta.where.syntax import (
    MAX_DIGITS,
    And,
    Column,
    Comparison,
    Condition,
    Header,
    In,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Or,
)

Values: TypeAlias = pa.Array | pa.Scalar
Compute: TypeAlias = Callable[[pa.RecordBatch], Values]
Mask: TypeAlias = Callable[[pa.RecordBatch], pa.BooleanArray]

_LITERALS = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
"""Of the decimals that integers become, by their bits."""


def bind(condition: Condition, node: Node, schema: pa.Schema) -> Mask:
    """The mask of a part of a condition in rows of this schema, or of one with more columns. Raises ValueError: a
    column is missing, or types are not compared; with the part that it is about."""
    bound = _Binder(condition, schema).flag(node)

    def mask(batch: pa.RecordBatch) -> pa.BooleanArray:
        values = bound(batch)
        return values if isinstance(values, pa.Array) else pa.repeat(values, batch.num_rows)

    return mask


class _Bound(NamedTuple):
    """`literal` is there if the values are one."""

    type: pa.DataType
    compute: Compute
    literal: Literal | None = None

    def of_type(self, target: pa.DataType) -> Compute:
        """Its values, of a type that `_Binder.common` chose."""
        if self.literal is not None:
            scalar = pa.scalar(_converted(self.literal.value, target), target)
            return lambda batch: scalar
        if self.type == target:
            return self.compute
        # Arrow refuses to round integers, which Spark does.
        return lambda batch: pc.cast(self.compute(batch), target, safe=not pa.types.is_floating(target))


class _Binder:
    def __init__(self, condition: Condition, schema: pa.Schema) -> None:
        self._refused = condition.refused
        self._schema = schema

    def flag(self, node: Node) -> Compute:
        bound = self._bound(node)
        if not pa.types.is_boolean(bound.type) and not pa.types.is_null(bound.type):
            raise self._refused(node, f"this is of type {bound.type}, and no condition")
        return bound.of_type(pa.bool_())

    def _bound(self, node: Node) -> _Bound:
        match node:
            case Literal():
                scalar = pa.scalar(node.value, _literal_type(node))
                return _Bound(scalar.type, lambda batch: scalar, node)
            case Column():
                return self._column(node)
            case Header(name):
                return _Bound(pa.binary(), lambda batch: _last_header(batch.column("headers"), name))
            case IsNull(value):
                values = self._bound(value).compute
                return _Bound(pa.bool_(), lambda batch: pc.is_null(values(batch)))
            case Not(value):
                flags = self.flag(value)
                return _Bound(pa.bool_(), lambda batch: pc.invert(flags(batch)))
            case And(parts) | Or(parts):
                joined = pc.and_kleene if isinstance(node, And) else pc.or_kleene
                each = [self.flag(part) for part in parts]
                return _Bound(pa.bool_(), lambda batch: reduce(joined, (part(batch) for part in each)))
            case Comparison():
                return self._comparison(node)
            case In():
                return self._in(node)
            case Like():
                return self._like(node)

    def _column(self, node: Column) -> _Bound:
        name, kind = self._field(node, node.path[0], self._schema)
        indexes: list[int] = []
        for part in node.path[1:]:
            if not pa.types.is_struct(kind):
                raise self._refused(node, f"{part} is no field of a column of type {kind}, which is no struct")
            name_of_field, of_field = self._field(node, part, kind)
            indexes.append(kind.get_field_index(name_of_field))
            kind = of_field
        if not indexes:
            return _Bound(kind, lambda batch: batch.column(name))
        return _Bound(kind, lambda batch: pc.struct_field(batch.column(name), indexes))

    def _field(self, node: Column, name: str, among: pa.Schema | pa.StructType) -> tuple[str, pa.DataType]:
        """Names count in any case, as in Spark."""
        found = [field for field in among if field.name.lower() == name.lower()]
        if len(found) != 1:
            reason = f"several columns have the name {name}, in any case" if found else f"there is no column {name}"
            raise self._refused(node, f"{reason}: there are {name_first([field.name for field in among])}")
        return found[0].name, found[0].type

    def _comparison(self, node: Comparison) -> _Bound:
        left, right = self._bound(node.left), self._bound(node.right)
        target = self._common(node, left, right)
        if pa.types.is_null(target):
            target = pa.bool_()  # Arrow compares no nulls without a type
        of_left, of_right = left.of_type(target), right.of_type(target)
        compare = partial(_compare, node.operator, pa.types.is_floating(target))
        return _Bound(pa.bool_(), lambda batch: compare(of_left(batch), of_right(batch)))

    def _in(self, node: In) -> _Bound:
        value, items = self._bound(node.value), [self._bound(item) for item in node.items]
        target = reduce(lambda kind, item: self._common(node, value._replace(type=kind), item), items, value.type)
        if pa.types.is_null(target):
            return _Bound(pa.bool_(), lambda batch: pa.scalar(None, pa.bool_()))
        wanted = [_converted(item.value, target) for item in node.items if item.type != "void"]
        values, members = value.of_type(target), _with_one_zero(pa.array(wanted, target))
        has_null = len(wanted) < len(items)
        return _Bound(pa.bool_(), lambda batch: _is_in(values(batch), members, has_null))

    def _like(self, node: Like) -> _Bound:
        value, regex = self._bound(node.value), node.regex
        if regex is None or pa.types.is_null(value.type):
            return _Bound(pa.bool_(), lambda batch: pa.scalar(None, pa.bool_()))
        if not (pa.types.is_string(value.type) or pa.types.is_binary(value.type)):
            raise self._refused(node, f"LIKE needs a text, and this is of type {value.type}")
        return _Bound(pa.bool_(), lambda batch: pc.match_substring_regex(_text(value.compute(batch)), pattern=regex))

    def _common(self, node: Comparison | In, left: _Bound, right: _Bound) -> pa.DataType:
        """The type in which Spark compares both."""
        if pa.types.is_null(right.type):
            return left.type
        if pa.types.is_null(left.type):
            return right.type
        kinds = {_kind(left.type): left, _kind(right.type): right}
        if "" in kinds:
            raise self._refused(node, f"a column of type {kinds[''].type} can be tested for NULL alone")
        if len(kinds) == 1 and "decimal" not in kinds:
            return max(left.type, right.type, key=lambda each: each.bit_width if "integer" in kinds else 0)
        reason = _conflict(kinds)
        if reason is not None:
            raise self._refused(node, reason)
        if kinds.keys() <= {"integer", "decimal"}:
            return self._common_decimal(node, left, right)
        return pa.binary() if "binary" in kinds else pa.float64()

    def _common_decimal(self, node: Comparison | In, left: _Bound, right: _Bound) -> pa.DataType:
        (left_digits, left_scale), (right_digits, right_scale) = (
            _digits_and_scale(each, isinstance(node, Comparison)) for each in (left, right)
        )
        scale = max(left_scale, right_scale)
        digits = max(left_digits - left_scale, right_digits - right_scale) + scale
        if digits > MAX_DIGITS:
            raise self._refused(node, f"{left.type} and {right.type} have no common type of {MAX_DIGITS} digits")
        return pa.decimal128(digits, scale)


# --- types ------------------------------------------------------------------------------------------------------------


def _literal_type(literal: Literal) -> pa.DataType:
    if literal.type != "decimal":
        return _LITERALS[literal.type]
    _, digits, exponent = literal.value.as_tuple()
    return pa.decimal128(max(len(digits), -exponent), -exponent)


def _kind(kind: pa.DataType) -> str:
    """Types of a kind are compared with each other; "" with none."""
    tests = {
        "integer": pa.types.is_signed_integer,
        "decimal": pa.types.is_decimal128,
        "float": pa.types.is_float32,
        "double": pa.types.is_float64,
    }
    found = next((name for name, is_of in tests.items() if is_of(kind)), "")
    return found or (str(kind) if kind in _LITERALS.values() else "")


def _conflict(kinds: dict[str, _Bound]) -> str | None:
    """Why Spark's result for two kinds is not known exactly; None if it is."""
    literals = {kind: None if bound.literal is None else bound.literal.value for kind, bound in kinds.items()}
    names = " and ".join(str(bound.type) for bound in kinds.values())
    match sorted(kinds):
        case ["decimal"] | ["double", "float"] | ["double", "integer"] | ["binary", "string"]:
            return None
        case ["decimal", "integer"]:
            value = literals["decimal"]
            return None if value is None or -(2**63) <= value < 2**63 else "the number is out of range of a bigint"
        case ["decimal", "double" | "float"]:
            is_known = literals["decimal"] is not None
            return None if is_known else f"{names} are not compared: write a decimal number, as 1.5"
        case ["float", "integer"]:
            value = literals["integer"]
            is_exact = value is not None and int(np.float32(value)) == value
            return None if is_exact else f"{names}: what Spark returns depends on spark.sql.ansi.enabled"
    hint = {"date32[day]": ": write DATE '...'", "timestamp[us, tz=UTC]": ": write TIMESTAMP '...' with a zone"}
    return f"{names} are not compared" + next((hint[kind] for kind in kinds if kind in hint), "")


def _digits_and_scale(bound: _Bound, literal_counts: bool) -> tuple[int, int]:
    """Of the decimal that Spark makes: a comparison counts the digits of an integer literal, IN those of its type."""
    if pa.types.is_decimal(bound.type):
        return bound.type.precision, bound.type.scale
    if literal_counts and bound.literal is not None:
        return len(Decimal(bound.literal.value).as_tuple().digits), 0
    return _INTEGER_DIGITS[bound.type.bit_width], 0


def _converted(value: Any, target: pa.DataType) -> Any:
    if isinstance(value, str) and pa.types.is_binary(target):
        return value.encode()
    if isinstance(value, int) and pa.types.is_decimal(target):
        return Decimal(value)
    return float(value) if value is not None and pa.types.is_floating(target) else value


# --- values -----------------------------------------------------------------------------------------------------------


def _compare(operator: str, is_floating: bool, left: Values, right: Values) -> Values:
    equal, less, less_equal = _FLOATING if is_floating else (pc.equal, pc.less, pc.less_equal)
    if operator in (">", ">="):
        left, right = right, left
    match operator:
        case "=":
            return equal(left, right)
        case "!=":
            return pc.invert(equal(left, right))
        case "<" | ">":
            return less(left, right)
        case "<=" | ">=":
            return less_equal(left, right)
    return pc.coalesce(equal(left, right), pc.and_(pc.is_null(left), pc.is_null(right)))


def _equal_floats(left: Values, right: Values) -> Values:
    return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _less_floats(left: Values, right: Values) -> Values:
    return pc.or_(pc.less(left, right), pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))


def _less_or_equal_floats(left: Values, right: Values) -> Values:
    return pc.or_(pc.less_equal(left, right), pc.is_nan(right))


_FLOATING = (_equal_floats, _less_floats, _less_or_equal_floats)


def _with_one_zero(values: pa.Array) -> pa.Array:
    return pc.add(values, pa.scalar(0.0, values.type)) if pa.types.is_floating(values.type) else values


def _is_in(values: Values, members: pa.Array, has_null: bool) -> Values:
    if isinstance(values, pa.Scalar):
        return _is_in(pa.array([values.as_py()], values.type), members, has_null)[0]
    is_member = pc.is_in(_with_one_zero(values), value_set=members)
    is_known = pc.and_(values.is_valid(), pc.or_(is_member, not has_null))
    return pc.if_else(is_known, is_member, None)


_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""Which Java replaces by one character, and Python by three."""


def _text(values: Values) -> Values:
    """Bytes as text, with a replacement for what is not UTF-8."""
    try:
        return pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        given = values.to_pylist()
        texts = [None if each is None else _SURROGATE.sub(b"\xff", each).decode(errors="replace") for each in given]
        return pa.array(texts, pa.string())


def _last_header(headers: pa.ListArray, name: str) -> pa.BinaryArray:
    parts: Sequence[pa.Array] = headers.flatten().flatten()
    rows = pc.list_parent_indices(headers).to_numpy()
    at = np.flatnonzero(pc.equal(parts[0], name).to_numpy(zero_copy_only=False))
    found = np.full(len(headers), -1, np.int64)
    found[rows[at]] = at  # the last of several
    return parts[1].take(number_array(found, found >= 0))
