"""`RowFilter`: keeps the rows of a task of which the condition of `where` is true, and counts the others.

What the condition says about columns that need no decoding is applied to the records as they are fetched; the rest to
typed columns. A row is kept if each part of an AND is true, so the parts may be applied one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import Flags
from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.kafka.records.decoder import Selection
from pyspark_kafka_meta.kafka.records.schema import (
    HEADERS_COLUMN,
    RECORD_COLUMNS,
    records_arrow_schema,
    rows_without_columns,
)
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.typed.reading import QuerySchemas
from pyspark_kafka_meta.where.masks import Mask, bind
from pyspark_kafka_meta.where.syntax import And, Condition, Node, columns_of

PLACE = ("topic", "partition")


class RowFilter:
    """The filter of one task.

    Attributes:
        selection: of fetched records, before they are decoded; None if any may be kept.
        columns: which it needs of converted rows, with those that are returned.
        dropped: records by partition, so far.
    """

    def __init__(self, condition: Condition, schemas: QuerySchemas | None, returned: Sequence[str]) -> None:
        """Raises OptionError: a column is missing, or types are not compared.

        Args:
            schemas: of typed columns; None without these.
            returned: columns of the filtered rows.
        """
        decoded = {} if schemas is None else schemas.types
        raw = records_arrow_schema([*RECORD_COLUMNS, HEADERS_COLUMN])
        schema = pa.schema(list(({field.name: field.type for field in raw} | decoded).items()))
        spelling = {name.lower(): name for name in schema.names}
        parts: dict[bool, list[Node]] = {False: [], True: []}
        needed: dict[bool, set[str]] = {False: set(), True: set()}
        try:
            bind(condition, condition.node, schema)
            for part in condition.conjuncts():
                names = {spelling[name] for name in columns_of(part)}
                needs_decoding = not names.isdisjoint(decoded)
                parts[needs_decoding].append(part)
                needed[needs_decoding] |= names
            before, after = (bind(condition, And(tuple(each), 0), schema) if each else None for each in parts.values())
        except ValueError as error:
            raise OptionError(f"Option 'where': {error}") from None
        raw_columns = [*PLACE, *sorted(needed[False].difference(PLACE))]
        self.columns = list(dict.fromkeys([*returned, *sorted(needed[True]), *(PLACE if parts[True] else ())]))
        self.selection, self._after = (
            None if mask is None else Selection(columns, partial(_are_true, mask), self._count_dropped)
            for mask, columns in ((before, raw_columns), (after, self.columns))
        )
        self.dropped = Counter[TopicPartition]()
        self._returned = list(returned)

    def after_decoding(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The kept rows, with the columns that are returned."""
        for batch in rows if self._after is None else kept(rows, self._after):
            yield batch.select(self._returned) if self._returned else rows_without_columns(batch.num_rows)

    def _count_dropped(self, batch: pa.RecordBatch, are_kept: Flags) -> None:
        """By runs of rows of a partition, which are few."""
        if are_kept.all():
            return
        topics, numbers = batch.column("topic"), batch.column("partition").to_numpy()
        is_other = pc.not_equal(topics.slice(1), topics.slice(0, len(topics) - 1)).to_numpy(zero_copy_only=False)
        starts = np.append(0, np.flatnonzero(is_other | (numbers[1:] != numbers[:-1])) + 1)
        dropped = np.add.reduceat(~are_kept, starts, dtype=np.int64)
        for start, records in zip(starts.tolist(), dropped.tolist(), strict=True):
            if records:
                self.dropped[TopicPartition(topics[start].as_py(), int(numbers[start]))] += records


def kept(batches: Iterable[pa.RecordBatch], selection: Selection) -> Iterator[pa.RecordBatch]:
    """Their rows that are kept, without empty batches."""
    for batch in batches:
        are_kept = selection.are_kept(batch)
        selection.on_selected(batch, are_kept)
        rows = batch.filter(pa.array(are_kept))
        if rows.num_rows:
            yield rows


def _are_true(mask_of: Mask, batch: pa.RecordBatch) -> Flags:
    flags: Flags = mask_of(batch).fill_null(False).to_numpy(zero_copy_only=False)
    return flags
