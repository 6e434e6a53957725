"""Every response that is spoken is walked to its end, and a count that lies is refused before room is made for it."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.kafka.protocol.frame_codec import FETCH, LIST_OFFSETS, METADATA, PRODUCE, Api
from pyspark_kafka_meta.kafka.protocol.frame_lengths import check_lengths
from tests.unit.kafka.protocol.responses import (
    APIS,
    REQUESTS,
    SPOKEN,
    message,
    payload,
    received,
    spoken,
    versions,
)

HUGE = (2**31 - 1).to_bytes(4, "big")
HUGE_VARINT = b"\xff\xff\xff\xff\x07"
COUNTS = {
    "brokers": (METADATA, 12, 9),
    "topics, old encoding": (LIST_OFFSETS, 4, 8),
    "topics": (LIST_OFFSETS, 7, 9),
    "topics of a fetch": (FETCH, 16, 15),
    "topics of a produce, old encoding": (PRODUCE, 8, 4),
    "record errors, old encoding": (PRODUCE, 8, 45),
    "topics of a produce": (PRODUCE, 13, 5),
}
"""API, version, and where the count is in the frame."""


@pytest.mark.parametrize("api", APIS, ids=spoken)
def test_each_api_has_a_request_of_each_version(api: Api) -> None:
    """Real brokers respond to them in tests/kafka/test_read_requests.py."""
    assert [REQUESTS[api](version).__version__ for version in versions(api)] == versions(api)


@pytest.mark.parametrize(("api", "version"), SPOKEN, ids=spoken)
def test_every_response_is_walked_to_its_end_and_no_shorter_one(api: Api, version: int) -> None:
    response = message(api, version)
    frame, position = memoryview(payload(response)), 5 if response.__header_schema__.__flexible__ else 4

    check_lengths(type(response), frame, position)
    for size in range(position, len(frame)):
        with pytest.raises(ProtocolError, match="beyond its end"):
            check_lengths(type(response), frame[:size], position)


@pytest.mark.parametrize(("api", "version", "at"), COUNTS.values(), ids=COUNTS)
def test_count_that_lies_or_is_null_is_refused(api: Api, version: int, at: int) -> None:
    frame = payload(message(api, version))
    is_old = frame[at : at + 3] == b"\0\0\0"
    rest = frame[at + (4 if is_old else 1) :]

    for count in (HUGE, b"\xff\xff\xff\xff") if is_old else (HUGE_VARINT, b"\0"):
        with pytest.raises(ProtocolError):
            received(api, version, frame[:at] + count + rest)


@pytest.mark.parametrize("size", [0, 1, 12, 14, 100])
def test_tag_whose_size_is_not_that_of_its_content_is_refused(size: int) -> None:
    frame = payload(message(FETCH))
    at = frame.rindex(b"\x01\x00", 0, frame.rindex(b"kafka-4"))  # one tag, number 0: the endpoints
    assert frame[at + 2] == len(frame) - at - 3

    with pytest.raises(ProtocolError):
        received(FETCH, 16, frame[: at + 2] + bytes([size]) + frame[at + 3 :])
