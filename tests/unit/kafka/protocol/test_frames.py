"""Frames: every response that is spoken is walked to its end, and damaged ones are refused before room is made for what
they claim. Error codes that the protocol library does not know are read as their number."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.kafka.protocol import frame_codec
from pyspark_kafka_meta.kafka.protocol.apis import FETCH, LIST_OFFSETS, METADATA, PRODUCE, Api
from pyspark_kafka_meta.kafka.protocol.frame_codec import check_lengths, decode
from tests.unit.kafka.protocol.responses import (
    APIS,
    CORRELATION_ID,
    REQUESTS,
    SENT,
    SPOKEN,
    T_ID,
    fetched,
    listed,
    message,
    payload,
    received,
    spoken,
    versions,
)

FRAMES = {api: payload(message(api)) for api in SENT}
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
    """Real brokers respond to them in tests/kafka/test_produce_requests.py."""
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


@pytest.mark.parametrize("api", FRAMES)
def test_response_to_another_request_is_not_read(api: Api) -> None:
    with pytest.raises(ProtocolError, match=rf"answered request 77 instead of 78 \({api.title}\)"):
        decode(api, api.max_version, CORRELATION_ID + 1, memoryview(FRAMES[api]))


def test_missing_memory_is_no_fault_of_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(frame_codec, "check_lengths", no_memory)
    with pytest.raises(MemoryError):
        received(FETCH, FETCH.max_version, FRAMES[FETCH])


@pytest.mark.parametrize("api", FRAMES)
def test_response_that_ends_too_early_or_too_late_is_not_read(api: Api) -> None:
    whole = FRAMES[api]
    for frame in (*(whole[:size] for size in range(len(whole))), whole + b"\1", whole * 2):
        with pytest.raises(ProtocolError):
            received(api, api.max_version, frame)


@given(
    api=st.sampled_from(list(FRAMES)),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6),
)
@example(LIST_OFFSETS, [(4, 0)])  # which makes an array null that may not be
@settings(max_examples=300, deadline=None)
def test_mutated_response_is_read_or_refused_and_nothing_else(api: Api, changes: list[tuple[int, int]]) -> None:
    frame = bytearray(FRAMES[api])
    for position, value in changes:
        frame[position % len(frame)] = value
    try:
        SENT[api].decode(received(api, api.max_version, bytes(frame)), 3)
    except ProtocolError as error:
        assert str(error).startswith("a broker")


PARTITIONS = [("t", partition) for partition in range(3000)]
LARGE = {
    "partitions of a Fetch": message(FETCH, 12, **fetched(*PARTITIONS)),
    "partitions of a ListOffsets": message(LIST_OFFSETS, 7, **listed(*PARTITIONS)),
    "name of 40,000 characters": message(FETCH, 12, **fetched(("x" * 40_000, 0))),
}


@pytest.mark.parametrize("response", LARGE.values(), ids=LARGE)
def test_response_takes_at_most_twenty_times_its_bytes(response: Any) -> None:
    api = FETCH if response.__version__ == 12 else LIST_OFFSETS
    frame = payload(response)
    received(api, response.__version__, frame)  # builds the parsers
    tracemalloc.start()
    try:
        received(api, response.__version__, frame)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes <= 20 * len(frame)


# --- error codes of newer brokers, or of another vendor ---------------------------------------------------------------

KNOWN, UNKNOWN = ErrorCode.share_session_limit_reached, 4711
OTHER_CODES = ("partition_error_code", "topic_config_error_code")


def with_unknown_codes(response: Any) -> bytes:
    """The frame with another code in place of each `KNOWN`, which the library writes."""
    return payload(response).replace(KNOWN.to_bytes(2, "big"), UNKNOWN.to_bytes(2, "big"))


def codes(part: Any) -> Iterator[int]:
    if isinstance(part, tuple):
        for entry in part:
            yield from codes(entry)
    elif is_dataclass(part):
        for field in fields(part):
            value = getattr(part, field.name)
            yield from [value] if "error_code" in field.name else codes(value)


@pytest.mark.parametrize(("api", "version"), SPOKEN, ids=spoken)
def test_an_unknown_error_code_is_read_as_its_number(api: Api, version: int) -> None:
    response = message(api, version, error_code=KNOWN, **dict.fromkeys(OTHER_CODES, KNOWN))

    read = list(codes(received(api, version, with_unknown_codes(response)).message))
    assert read
    assert set(read) == {UNKNOWN}


def test_an_unknown_error_code_leaves_the_other_partitions_readable() -> None:
    topics = fetched((T_ID, 0), (T_ID, 1))["responses"]
    for topic, code in zip(topics, (ErrorCode.none, KNOWN), strict=True):
        topic["partitions"][0]["error_code"] = code

    read = received(FETCH, 16, with_unknown_codes(message(FETCH, responses=topics))).message
    assert [topic.partitions[0].error_code for topic in read.responses] == [0, UNKNOWN]
