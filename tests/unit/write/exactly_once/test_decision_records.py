"""The records of a decision, and of the note that it is settled."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.model import RowDigest
from pyspark_kafka_meta.write.exactly_once.decision import (
    MAX_EARLIER,
    NOTE,
    Decision,
    RecordKey,
    confirming_record,
    decision_record,
    parse_decision,
    settled_note,
)
from tests.unit.write.exactly_once.commit_scene import SINK, micro_batch, transactions_of

KEY = RecordKey(SINK, "stream")


def decision(tasks: int = 2, partitions: int = 3) -> Decision:
    return Decision(micro_batch(4), tuple(transactions_of(tasks, partitions)), 1_764_000_000_000, False, ("former",))


def read_again(written: Decision) -> Decision:
    key, value = decision_record(SINK, written)
    assert RecordKey.parse(key) == KEY
    return parse_decision(KEY, value)


def test_decision_is_read_again() -> None:
    assert read_again(decision()) == decision()


def test_rows_of_a_batch_and_of_the_versions_before_are_read_again() -> None:
    written = replace(decision().settled(), rows=RowDigest(1_800, 2**64 - 1), earlier=((2, RowDigest(3, 4)), (3, None)))
    assert read_again(written) == written


def test_decision_of_an_earlier_clone_without_digests_is_read() -> None:
    fields = json.loads(decision_record(SINK, decision())[1])
    del fields["rows"], fields["earlier"]
    assert parse_decision(KEY, json.dumps({**fields, "row_count": 6}).encode()) == decision()


def test_decision_that_knows_as_many_versions_as_it_may_is_small() -> None:
    """Each commit writes it, and each start reads those of the active segment."""
    earlier = tuple((10**6 + version, RowDigest(10**6, 2**64 - 1)) for version in range(MAX_EARLIER))
    _, value = decision_record(SINK, replace(decision(), earlier=earlier))
    assert len(value) < 6_000


def test_confirming_record_is_none_of_a_decision() -> None:
    key, value = confirming_record(SINK)
    assert (RecordKey.parse(key), value) == (None, None)


def test_note_names_its_decision_in_a_key_that_earlier_releases_ignore() -> None:
    key, value = settled_note(SINK, decision())
    assert json.loads(key) == [SINK, "stream", "settled"], "they look for a string, or two strings"
    assert RecordKey.parse(key) == KEY._replace(note=NOTE)
    assert value == settled_note(SINK, decision().settled())[1]
    later = [replace(decision(), time_ms=1), replace(decision(), batch=micro_batch(5))]
    assert all(settled_note(SINK, each)[1] != value for each in later)


@pytest.mark.parametrize("value", [b'{"format": 2, "parts": 3}', b'{"format": 3}'])
def test_other_format_is_refused_with_the_next_step(value: bytes) -> None:
    with pytest.raises(
        ProtocolError, match=r"has format [23], and this release reads 1: use the release that wrote it"
    ):
        parse_decision(KEY, value)


@pytest.mark.parametrize(
    "key", [None, b"", b"a key", b'"ab"', b"7", b'["a"]', b'[["a"], "b"]', b'["a", "b", "c"]', b'["a", "b", 0]']
)
def test_foreign_key_is_none_of_a_decision(key: bytes | None) -> None:
    assert RecordKey.parse(key) is None
