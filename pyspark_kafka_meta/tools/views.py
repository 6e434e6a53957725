"""Tables that the command line prints and the page draws: their columns, words, and which rows are shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table

from pyspark_kafka_meta.kafka.protocol.transactions import OPEN_STATES
from pyspark_kafka_meta.model import TopicPartition, name_partitions
from pyspark_kafka_meta.tables.rows import TransactionRow
from pyspark_kafka_meta.tools.checkpoints import CheckpointLag
from pyspark_kafka_meta.tools.formatting import TABLE_STYLE, UNKNOWN, plain


class Column(NamedTuple):
    title: str
    is_number: bool = False


class View(NamedTuple):
    """
    Attributes:
        left_out: number of rows that are not shown.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    left_out: int

    def table(self) -> Table:
        """For a terminal."""
        table = Table(**TABLE_STYLE)
        for column in self.columns:
            table.add_column(column.title.lower(), justify="right" if column.is_number else "left")
        for row in self.rows:
            table.add_row(*map(plain, row))
        return table


_LAG_COLUMNS = (
    Column("Partition"),
    *(Column(title, True) for title in ("Next offset", "End offset", "Records behind", "Seconds behind")),
)
_TRANSACTION_COLUMNS = (
    Column("Transactional id"),
    Column("Sink"),
    Column("State"),
    Column("Open for", True),
    Column("Timeout", True),
    Column("Partitions"),
    Column("Decided"),
)


def lag_view(lag: CheckpointLag, limit: int | None = None) -> View:
    """How far a query is behind, by partition; with a limit the partitions that are furthest behind or unknown."""
    batch_id, rows = lag.progress.batch_id, lag.rows
    if limit is not None:
        furthest = sorted(rows, key=lambda row: -math.inf if row.records_behind is None else -row.records_behind)
        rows = sorted(furthest[:limit], key=lambda row: (row.topic, row.partition))
    cells = [
        (
            f"{row.topic}-{row.partition}",
            *(
                UNKNOWN if number is None else f"{number:,}"
                for number in (row.next_offset, row.end_offset, row.records_behind)
            ),
            UNKNOWN if row.seconds_behind is None else f"{row.seconds_behind:,.1f}",
        )
        for row in rows
    ]
    finished = "no micro-batch finished yet" if batch_id is None else f"after micro-batch {batch_id}"
    return View(f"Query {lag.progress.query_id}, {finished}", _LAG_COLUMNS, cells, len(lag.rows) - len(rows))


def transactions_view(rows: Sequence[TransactionRow], limit: int | None = None) -> View:
    """Open and decided transactions."""
    cells = [
        (
            row.transactional_id,
            row.sink or "-",
            row.state or UNKNOWN,
            (_seconds(row.open_ms) or UNKNOWN) if row.state in OPEN_STATES else "not open",
            _seconds(row.timeout_ms) or "-",
            name_partitions([TopicPartition(each.topic, each.partition) for each in row.partitions]),
            _decided(row),
        )
        for row in rows[:limit]
    ]
    title = "1 transaction" if len(rows) == 1 else f"{len(rows) or 'no'} transactions"
    return View(title, _TRANSACTION_COLUMNS, cells, len(rows) - len(cells))


def _seconds(value_ms: int | None) -> str | None:
    return None if value_ms is None else f"{value_ms / 1000:.1f} s"


def _decided(row: TransactionRow) -> str:
    """The decided batch that a transaction belongs to."""
    if not row.is_decided:
        return "no"
    return f"version {row.batch_id}" if row.query_id is None else f"micro-batch {row.batch_id} of query {row.query_id}"
