"""Runs a stream and yields its progress."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Generator, Mapping

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress

POLL_S = 0.2
TURN_TIMEOUT_S = 600.0


Looks = Generator[tuple[float, list[StreamingQueryProgress]]]


def watch(
    rows: DataFrame, trigger: str = "0 seconds", sink: str = "noop", options: Mapping[str, str] | None = None
) -> Looks:
    """Stream into a sink. Yields the seconds since the start and the last 100 progress reports, every `POLL_S`. Closing
    the generator stops the stream.

    Raises:
        TimeoutError: the generator was not closed within `TURN_TIMEOUT_S`.
    """
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = rows.writeStream.format(sink).options(**options or {}).option("checkpointLocation", checkpoint)
        query, start = writer.trigger(processingTime=trigger).start(), time.monotonic()
        try:
            while (passed_s := time.monotonic() - start) < TURN_TIMEOUT_S:
                if (error := query.exception()) is not None:
                    raise error
                yield passed_s, query.recentProgress
                time.sleep(POLL_S)
            raise TimeoutError(
                f"after {TURN_TIMEOUT_S:.0f} s the stream has {len(query.recentProgress)} progress reports"
            )
        finally:
            query.stop()
