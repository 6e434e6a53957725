"""Error codes that the protocol library does not know: brokers may be newer, or of another vendor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.kafka.protocol.frame_codec import FETCH, Api, decode
from tests.unit.kafka.protocol.responses import CORRELATION_ID, SPOKEN, T_ID, fetched, message, payload, spoken

KNOWN, UNKNOWN = ErrorCode.share_session_limit_reached, 4711


def with_codes(part: Any, code: ErrorCode) -> Any:
    """The message with this code in place of each code."""
    if isinstance(part, tuple):
        return tuple(with_codes(entry, code) for entry in part)
    if isinstance(part, ErrorCode):
        return code
    if not hasattr(part, "__version__"):
        return part
    return replace(part, **{field.name: with_codes(getattr(part, field.name), code) for field in fields(part)})


def codes(part: Any) -> Iterator[int]:
    if isinstance(part, tuple):
        for entry in part:
            yield from codes(entry)
    elif is_dataclass(part):
        for field in fields(part):
            value = getattr(part, field.name)
            if "error_code" in field.name:
                yield value
            else:
                yield from codes(value)


@pytest.mark.parametrize(("api", "version"), SPOKEN, ids=spoken)
def test_an_unknown_error_code_is_read_as_its_number(api: Api, version: int) -> None:
    frame = payload(with_codes(message(api, version), KNOWN))
    sent = frame.replace(KNOWN.to_bytes(2, "big"), UNKNOWN.to_bytes(2, "big"))

    response, _ = decode(api, version, CORRELATION_ID, memoryview(sent))

    read = list(codes(response))
    assert read
    assert set(read) == {UNKNOWN}


def test_an_unknown_error_code_leaves_the_other_partitions_readable() -> None:
    response = message(FETCH, **fetched((T_ID, 0), (T_ID, 1)), error_code=ErrorCode.none)
    first, second = response.responses
    refused = replace(second, partitions=tuple(replace(entry, error_code=KNOWN) for entry in second.partitions))
    frame = payload(replace(response, responses=(first, refused)))
    sent = frame.replace(KNOWN.to_bytes(2, "big"), UNKNOWN.to_bytes(2, "big"))

    read, _ = decode(FETCH, 16, CORRELATION_ID, memoryview(sent))

    assert [topic.partitions[0].error_code for topic in read.responses] == [0, UNKNOWN]
