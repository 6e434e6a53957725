"""Memory that is used again, but never under the eyes of somebody who still reads it."""

from __future__ import annotations

import numpy as np

from pyspark_kafka_meta.reused_memory import ReusedMemory


def address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


def test_what_nobody_holds_any_more_is_used_again() -> None:
    memory = ReusedMemory()
    first = address(memory.of(1000))
    assert [address(memory.of(size)) for size in (1000, 10, 1000)] == [first] * 3


def test_what_somebody_holds_is_left_alone() -> None:
    memory = ReusedMemory()
    part = memory.of(1000)[10:20]
    part[:] = b"z" * 10
    memory.of(1000)[:] = b"x" * 1000
    assert bytes(part) == b"z" * 10


def test_it_grows_to_what_is_asked_for() -> None:
    memory = ReusedMemory()
    assert [len(memory.of(size)) for size in (5, 7, 0)] == [5, 7, 0]
