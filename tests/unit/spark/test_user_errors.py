"""Errors that users can act on have no traceback in Spark; all others keep theirs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator

import pytest

from pyspark_kafka_meta.errors import KafkaMetaError, OptionError
from pyspark_kafka_meta.spark.user_errors import HIDE_TRACEBACK, entry_points


@entry_points
class Reader:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def partitions(self) -> None:
        raise self._error

    def read(self) -> Iterator[int]:
        yield 1
        raise self._error


@pytest.fixture
def in_spark(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], bool]:
    """Runs in what looks like a Python process of Spark's; returns whether Spark would hide the traceback."""
    monkeypatch.setenv(HIDE_TRACEBACK, "")  # so that it is put back

    def main(call: Callable[[], object], infile: object) -> bool:
        with pytest.raises(Exception, match="wrong"):
            call()
        return bool(os.environ[HIDE_TRACEBACK])

    return lambda call: main(call, None)


@pytest.mark.parametrize(("error", "is_hidden"), [(OptionError("wrong"), True), (ValueError("wrong"), False)])
@pytest.mark.parametrize("call", [lambda reader: reader.partitions(), lambda reader: list(reader.read())])
def test_spark_hides_the_traceback_of_our_errors_alone(
    error: Exception,
    is_hidden: bool,
    call: Callable[[Reader], object],
    in_spark: Callable[[Callable[[], object]], bool],
) -> None:
    assert in_spark(lambda: call(Reader(error))) is is_hidden


def test_a_hidden_traceback_is_logged_for_debugging(
    in_spark: Callable[[Callable[[], object]], bool], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pyspark_kafka_meta.spark.user_errors")
    in_spark(Reader(KafkaMetaError("wrong")).partitions)
    assert "in partitions\n    raise self._error" in caplog.text


def test_outside_of_sparks_processes_nothing_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HIDE_TRACEBACK, raising=False)
    with pytest.raises(OptionError, match="wrong"):
        Reader(OptionError("wrong")).partitions()
    assert HIDE_TRACEBACK not in os.environ
