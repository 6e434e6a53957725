"""What `kafkameta read` prints: the newest rows of a topic, or all rows from a start on, and with --follow those after.

A stream's planner finds what is new, so that new partitions are read and lost records are reported.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import islice
from math import isfinite
from time import sleep
from typing import Any, TypeAlias

import pyarrow as pa
from rich.table import Table
from rich.text import Text

from pyspark_kafka_meta.arrow_reader import Reading, reading, source_options
from pyspark_kafka_meta.changes.schema import CHANGE_COLUMN
from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.model import OffsetRange
from pyspark_kafka_meta.options import LATEST_OFFSET, OffsetsSpec, SourceOptions
from pyspark_kafka_meta.options import Table as TableName
from pyspark_kafka_meta.options.offsets import LastOffsetsSpec
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, SourceOffset
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner, stream_planner_options
from pyspark_kafka_meta.tools.console import readable
from pyspark_kafka_meta.tools.formatting import TABLE_STYLE, plain

Row: TypeAlias = dict[str, Any]

LAST = 10
"""This many rows are shown unless options say which."""
GROWTH = 10
"""So many times as many offsets are read if too few have rows: transactions and compaction leave offsets without."""
POLL_S = 0.2
ROWS_AT_ONCE = 500
"""At most this many rows are shown together."""
WIDTHS = {"partition": 9, "offset": 12, "timestamp": 18}
"""Of columns of a table. The others share the rest of the terminal."""
HEADER = {"key", "value"}
"""The fields of a header."""
LEFT_OUT = ("topic", "timestampType")
"""Columns of the records that a table has no room for."""


def read_rows(given: Mapping[str, str], last: int | None, follow: bool) -> Generator[Sequence[Row], None, None]:
    """The newest `last` rows in the order of their timestamps, or all from the start in the options on, as they come;
    with `follow` new rows after these, without end.

    Args:
        given: the options of a query.
        last: by default `LAST`, if the options say no start.

    Raises:
        KafkaMetaError: as `read_arrow`.
    """
    table, parsed = source_options(given)
    if follow and table is TableName.LATEST:
        raise OptionError("--follow excludes table latest: set startingOffsets to latestByKey instead")
    options = parsed.for_stream() if follow else parsed.for_batch(table is TableName.LATEST)
    offsets = None
    if table is TableName.RECORDS and parsed.start() is None:
        offsets = last = last or LAST
    with reading(replace(options, client=stream_planner_options(options.client))) as opened:
        planner, ranges, end = _planned(opened, options, follow, offsets)
        rows: Iterable[Row] = _rows(opened, ranges)
        if last is not None:
            rows = newest = heapq.nlargest(last, rows, key=_place)
            while offsets is not None and len(newest) < last and _has_more(opened, options, offsets):
                offsets *= GROWTH
                planner, ranges, end = _planned(opened, options, follow, offsets)
                newest = heapq.nlargest(last, _rows(opened, ranges), key=_place)
            rows = newest[::-1]
        yield from _chunks(rows)
        while follow:
            start, end = end, planner.next_offset(end, None, limited=False)
            if start == end:
                sleep(POLL_S)
            yield from _chunks(_rows(opened, planner.ranges(start, end)))


def _planned(
    opened: Reading, options: SourceOptions, follow: bool, offsets: int | None
) -> tuple[OffsetPlanner, list[OffsetRange], SourceOffset]:
    """What is read first: as many offsets of each partition, or as the options say. Before what follows."""
    if offsets is not None:
        options = replace(options, starting_offsets=LastOffsetsSpec(offsets))
    planner = OffsetPlanner(opened.client, options)
    if not follow:
        return planner, planner.batch_ranges(), BEGINNING
    end = planner.next_offset(BEGINNING, None, limited=False)
    return planner, planner.ranges(BEGINNING, end), end


def _has_more(opened: Reading, options: SourceOptions, offsets: int) -> bool:
    """Whether a partition has as many offsets, those included that the condition of `where` excludes."""
    end = options.ending_offsets or OffsetsSpec(LATEST_OFFSET)
    every = replace(options, starting_offsets=LastOffsetsSpec(offsets), ending_offsets=end, where=None)
    return any(each.size == offsets for each in OffsetPlanner(opened.client, every).batch_ranges())


def _rows(opened: Reading, ranges: Sequence[OffsetRange]) -> Iterator[Row]:
    kind = pa.struct(list(opened.schema))
    for batch in opened.rows(ranges):
        for values in zip(*map(_values, batch.columns), strict=True):
            yield _objects(dict(zip(batch.schema.names, values, strict=True)), kind)


def _values(array: pa.Array) -> list[Any]:
    """As Python has them; of rows with a time in a year that Python does not have, times as numbers since 1970."""
    try:
        return list(array.to_pylist())
    except (OverflowError, ValueError):
        if middle := len(array) // 2:
            return [*_values(array.slice(0, middle)), *_values(array.slice(middle))]
        return list(array.cast(_with_numbers(array.type)).to_pylist())


def _with_numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_with_numbers(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_numbers(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_with_numbers(kind.item_type)))
    return pa.int64() if pa.types.is_timestamp(kind) else pa.int32() if pa.types.is_date32(kind) else kind


def _objects(value: Any, kind: pa.DataType) -> Any:
    """With dicts where Arrow makes pairs of maps, and texts of numbers that JSON does not have."""
    if value is None:
        return None
    if isinstance(value, float) and not isfinite(value):
        return json.dumps(value)
    if pa.types.is_struct(kind):
        return {each.name: _objects(value[each.name], each.type) for each in kind}
    if pa.types.is_list(kind):
        return [_objects(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return {str(readable(key)): _objects(each, kind.item_type) for key, each in value}
    return value


def _place(row: Row) -> tuple[Any, ...]:
    """Sorts rows: by their timestamps, but by their offsets those of changes, which have no timestamp."""
    change = row.get(CHANGE_COLUMN)
    if change is not None:
        return (change["offset"],)
    return (isinstance(row["timestamp"], int), row["timestamp"], row["offset"])  # years that Python has are before


def _chunks(rows: Iterable[Row]) -> Iterator[Sequence[Row]]:
    remaining = iter(rows)
    while chunk := list(islice(remaining, ROWS_AT_ONCE)):
        yield chunk


def rows_table(rows: Sequence[Row], show_header: bool) -> Table:
    """As wide as the terminal, so that several tables line up."""
    names = [name for name in rows[0] if name not in LEFT_OUT]
    table = Table(**TABLE_STYLE, expand=True, show_edge=False, show_header=show_header)
    for name in names:
        table.add_column(plain(name), width=WIDTHS.get(name), ratio=None if name in WIDTHS else 1)
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in names))
    return table


def _cell(value: Any) -> Text:
    if value is None:
        return plain("null", "dim")
    if isinstance(value, datetime):
        with suppress(OverflowError):  # of the first and the last day that Python has
            value = value.astimezone()
        return plain(f"{value:%m-%d %H:%M:%S.%f}"[:-3])
    if isinstance(value, list) and all(isinstance(each, dict) and each.keys() == HEADER for each in value):
        return plain(", ".join(f"{each['key']}={_text(each['value'])}" for each in value))
    return plain(_text(value))


def _text(value: object) -> str:
    """Text as it is, all else as JSON."""
    text = json.dumps(value, default=readable, ensure_ascii=False)
    return str(json.loads(text)) if text.startswith('"') else text
