"""The page's thread that looks."""

from __future__ import annotations

import threading
import time

import pytest

from pyspark_kafka_meta.cli.demo.state import State
from pyspark_kafka_meta.cli.page import looking
from pyspark_kafka_meta.cli.page.looking import Looker
from pyspark_kafka_meta.errors import ConnectError


def test_a_look_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "END_S", 0.01)
    looks, answered = threading.Event(), threading.Event()

    def look() -> State:
        looks.set()
        answered.wait(10)
        raise ConnectError("no broker answered")

    with Looker(look, by_place=False):
        assert looks.wait(10)
        began = time.monotonic()

    assert time.monotonic() - began < 5
    answered.set()
