"""Runs a stream and looks on."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Generator

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress

POLL_S = 0.2
TURN_TIMEOUT_S = 600.0


def watch(rows: DataFrame, trigger: str = "0 seconds") -> Generator[tuple[float, list[StreamingQueryProgress]]]:
    """Stream into the noop sink: now and then, for how many seconds that has run, and its last 100 progress reports.
    The stream stops when this is closed.

    Raises:
        TimeoutError: nobody has seen enough in `TURN_TIMEOUT_S`.
    """
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query, began = writer.trigger(processingTime=trigger).start(), time.monotonic()
        try:
            while (passed_s := time.monotonic() - began) < TURN_TIMEOUT_S:
                if (error := query.exception()) is not None:
                    raise error
                yield passed_s, query.recentProgress
                time.sleep(POLL_S)
            raise TimeoutError(f"after {TURN_TIMEOUT_S:.0f} s there are {len(query.recentProgress)} reports")
        finally:
            query.stop()
