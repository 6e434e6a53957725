"""Memory is reused, but not while it is still referenced."""

from __future__ import annotations

import numpy as np

from pyspark_kafka_meta.kafka.records.reusable_buffer import ReusableBuffer


def address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


def test_unreferenced_memory_is_reused() -> None:
    memory = ReusableBuffer()
    first = address(memory.of(1000))
    assert [address(memory.of(size)) for size in (1000, 10, 1000)] == [first] * 3


def test_referenced_memory_is_not_reused() -> None:
    memory = ReusableBuffer()
    part = memory.of(1000)[10:20]
    part[:] = b"z" * 10
    memory.of(1000)[:] = b"x" * 1000
    assert bytes(part) == b"z" * 10


def test_memory_grows_to_the_requested_size() -> None:
    memory = ReusableBuffer()
    assert [len(memory.of(size)) for size in (5, 7, 0)] == [5, 7, 0]
