"""Error codes that the protocol library does not know: brokers may be newer, or of another vendor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.kafka.protocol.frame_codec import (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    Api,
    decode,
)
from tests.unit.kafka.protocol.responses import (
    CORRELATION_ID,
    T_ID,
    TRANSACTION_REQUESTS,
    epochs_message,
    fetch_message,
    metadata_message,
    offsets_message,
    payload,
    produce_message,
    transaction_message,
    versions,
)

KNOWN, UNKNOWN = ErrorCode.share_session_limit_reached, 4711


MESSAGES: dict[Api, Callable[[int], Any]] = {
    FETCH: lambda version: fetch_message((T_ID if version >= 13 else "t", 1), version=version),
    PRODUCE: lambda version: produce_message((T_ID if version >= 13 else "t", 1), version=version),
    METADATA: metadata_message,
    LIST_OFFSETS: lambda version: offsets_message(("t", 1), version=version),
    OFFSET_FOR_LEADER_EPOCH: lambda version: epochs_message(("t", 1), version=version),
    **{api: partial(transaction_message, api) for api in TRANSACTION_REQUESTS},
}


def with_codes(message: Any, code: ErrorCode) -> Any:
    """The message with this code in place of each code."""
    if isinstance(message, tuple):
        return tuple(with_codes(entry, code) for entry in message)
    if isinstance(message, ErrorCode):
        return code
    if not hasattr(message, "__version__"):
        return message
    return replace(message, **{field.name: with_codes(getattr(message, field.name), code) for field in fields(message)})


def codes(message: Any) -> Iterator[int]:
    if isinstance(message, tuple):
        for entry in message:
            yield from codes(entry)
    elif is_dataclass(message):
        for field in fields(message):
            value = getattr(message, field.name)
            if "error_code" in field.name:
                yield value
            else:
                yield from codes(value)


@pytest.mark.parametrize(
    ("api", "version"),
    [(api, version) for api in MESSAGES for version in versions(api)],
    ids=lambda value: value.title if isinstance(value, Api) else f"v{value}",
)
def test_an_unknown_error_code_is_read_as_its_number(api: Api, version: int) -> None:
    frame = payload(with_codes(MESSAGES[api](version), KNOWN))
    sent = frame.replace(KNOWN.to_bytes(2, "big"), UNKNOWN.to_bytes(2, "big"))

    message, _ = decode(api, version, CORRELATION_ID, memoryview(sent))

    read = list(codes(message))
    assert read
    assert set(read) == {UNKNOWN}


def test_an_unknown_error_code_leaves_the_other_partitions_readable() -> None:
    message = fetch_message((T_ID, 0), (T_ID, 1), error_code=ErrorCode.none)
    first, second = message.responses
    refused = replace(second, partitions=tuple(replace(entry, error_code=KNOWN) for entry in second.partitions))
    frame = payload(replace(message, responses=(first, refused)))
    sent = frame.replace(KNOWN.to_bytes(2, "big"), UNKNOWN.to_bytes(2, "big"))

    read, _ = decode(FETCH, 16, CORRELATION_ID, memoryview(sent))

    assert [topic.partitions[0].error_code for topic in read.responses] == [0, UNKNOWN]
