"""`kafkameta lag`: how far a streaming query is behind, by its checkpoint and the cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime

from rich.console import Console, Group
from rich.table import Table

from pyspark_kafka_meta.tables.query_lag import LagSummary
from pyspark_kafka_meta.tools.cli import repeat
from pyspark_kafka_meta.tools.shared.console import print_json
from pyspark_kafka_meta.tools.shared.formatting import TABLE_STYLE, batch_text, plain
from pyspark_kafka_meta.tools.shared.query_checkpoint import CheckpointLag


def show(lag: CheckpointLag, console: Console | None) -> None:
    """A table; without a console a JSON line for each partition."""
    if console is not None:
        console.print(_tables(lag))
        return
    query = {"query_id": lag.progress.query_id, "batch_id": lag.progress.batch_id}
    for row in lag.rows:
        print_json({**query, **asdict(row)})


def watch(look: Callable[[], CheckpointLag], console: Console | None, every_s: float, times: int | None) -> bool:
    """Look as `repeat.watch`."""
    return repeat.watch(look, lambda lag: show(lag, None), _tables, console, every_s, times)


def _tables(lag: CheckpointLag) -> Group:
    progress, rows = lag.progress, lag.rows
    finished = batch_text(progress.batch_id)
    table = Table("partition", "next offset", "end offset", "records behind", "seconds behind", **TABLE_STYLE)
    for row in rows:
        partition = f"{row.topic}-{row.partition}"
        table.add_row(
            *map(plain, (partition, row.next_offset, row.end_offset, row.records_behind, _seconds(row.seconds_behind)))
        )
    summary = LagSummary.of(rows)
    parts = [f"{summary.records} records behind"]
    bound = "at least" if summary.unknown_ages or summary.unknown else "at most"
    parts += [] if summary.oldest_s is None else [f"{bound} {_seconds(summary.oldest_s)} s"]
    parts += [f"{summary.unknown} partitions without an end"] if summary.unknown else []
    heading = f"Query {progress.query_id}, {finished}, at {datetime.now():%H:%M:%S}: {', '.join(parts)}"
    return Group(plain(heading, "bold"), table)


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"
