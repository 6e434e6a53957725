"""The memory of decoding a response is proportional to its bytes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from pyspark_kafka_meta.kafka.protocol.frame_codec import FETCH, LIST_OFFSETS, Api, decode
from tests.unit.kafka.protocol.responses import CORRELATION_ID, fetched, listed, message, payload

PARTITIONS = [("t", partition) for partition in range(3000)]
RESPONSES = {
    "partitions of a Fetch": (FETCH, 12, message(FETCH, 12, **fetched(*PARTITIONS))),
    "partitions of a ListOffsets": (LIST_OFFSETS, 7, message(LIST_OFFSETS, 7, **listed(*PARTITIONS))),
    "name of 40,000 characters": (FETCH, 12, message(FETCH, 12, **fetched(("x" * 40_000, 0)))),
}


@pytest.mark.parametrize(("api", "version", "response"), RESPONSES.values(), ids=RESPONSES)
def test_response_takes_at_most_twenty_times_its_bytes(api: Api, version: int, response: Any) -> None:
    frame = memoryview(payload(response))
    decode(api, version, CORRELATION_ID, frame)  # builds the parsers
    tracemalloc.start()
    try:
        decode(api, version, CORRELATION_ID, frame)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes <= 20 * len(frame)
