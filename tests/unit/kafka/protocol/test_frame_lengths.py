"""Every response that is spoken is walked to its end, and a count that lies is refused before room is made for it."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.kafka.protocol.frame_codec import FETCH, LIST_OFFSETS, METADATA, PRODUCE, Api, decode
from pyspark_kafka_meta.kafka.protocol.frame_lengths import check_lengths
from tests.unit.kafka.protocol.responses import (
    APIS,
    CORRELATION_ID,
    REQUESTS,
    SPOKEN,
    T_ID,
    fetch_message,
    message,
    metadata_message,
    offsets_message,
    payload,
    produce_message,
    spoken,
    versions,
)

HUGE = (2**31 - 1).to_bytes(4, "big")
HUGE_VARINT = b"\xff\xff\xff\xff\x07"


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


@pytest.mark.parametrize(
    ("api", "sent", "at", "count"),
    [
        (METADATA, metadata_message(12), 9, HUGE_VARINT),
        (LIST_OFFSETS, offsets_message(("t", 0), version=4), 8, HUGE),
        (LIST_OFFSETS, offsets_message(("t", 0), version=7), 9, HUGE_VARINT),
        (FETCH, fetch_message((T_ID, 0)), 15, HUGE_VARINT),
        (PRODUCE, produce_message(("t", 0), version=8), 4, HUGE),
        (PRODUCE, produce_message(("t", 0), version=8), 45, HUGE),
        (PRODUCE, produce_message((T_ID, 0)), 5, HUGE_VARINT),
    ],
    ids=[
        *("brokers", "topics, old encoding", "topics", "topics of a fetch"),
        *("topics of a produce, old encoding", "record errors, old encoding", "topics of a produce"),
    ],
)
def test_count_that_lies_is_refused(api: Api, sent: Any, at: int, count: bytes) -> None:
    frame = payload(sent)
    frame = frame[:at] + count + frame[at + (4 if count is HUGE else 1) :]

    with pytest.raises(ProtocolError, match="beyond its end"):
        decode(api, sent.__version__, CORRELATION_ID, memoryview(frame))


@pytest.mark.parametrize(
    ("api", "sent", "at", "null"),
    [
        (METADATA, metadata_message(12), 9, b"\0"),
        (LIST_OFFSETS, offsets_message(("t", 0), version=4), 8, b"\xff\xff\xff\xff"),
        (LIST_OFFSETS, offsets_message(("t", 0), version=7), 9, b"\0"),
        (FETCH, fetch_message((T_ID, 0)), 15, b"\0"),
        (PRODUCE, produce_message(("t", 0), version=8), 4, b"\xff\xff\xff\xff"),
        (PRODUCE, produce_message((T_ID, 0)), 5, b"\0"),
    ],
    ids=[
        *("brokers", "topics, old encoding", "topics", "topics of a fetch"),
        *("topics of a produce, old encoding", "topics of a produce"),
    ],
)
def test_null_in_place_of_a_list_is_refused(api: Api, sent: Any, at: int, null: bytes) -> None:
    frame = payload(sent)

    with pytest.raises(ProtocolError):
        decode(api, sent.__version__, CORRELATION_ID, memoryview(frame[:at] + null + frame[at + len(null) :]))


@pytest.mark.parametrize("size", [0, 1, 12, 14, 100])
def test_tag_whose_size_is_not_that_of_its_content_is_refused(size: int) -> None:
    frame = payload(fetch_message((T_ID, 0)))
    at = frame.rindex(b"\x01\x00", 0, frame.rindex(b"kafka-4"))  # one tag, number 0: the endpoints
    assert frame[at + 2] == len(frame) - at - 3

    with pytest.raises(ProtocolError):
        decode(FETCH, 16, CORRELATION_ID, memoryview(frame[: at + 2] + bytes([size]) + frame[at + 3 :]))
