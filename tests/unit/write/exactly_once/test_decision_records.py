"""The records of a decision: what a batch of any size makes of them, and what is read of their remains."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.model import RowDigest
from pyspark_kafka_meta.write.exactly_once.decision import (
    MAX_EARLIER,
    MESSAGE_BYTES,
    NOTE,
    PART_BYTES,
    Decision,
    RecordKey,
    confirming_record,
    decision_records,
    joined,
    settled_note,
)
from tests.unit.write.exactly_once.commit_scene import SINK, micro_batch, transactions_of

KEY = RecordKey(SINK, "stream")
PART_BYTES_LIMIT = "pyspark_kafka_meta.write.exactly_once.decision.PART_BYTES"


def decision(tasks: int = 2, partitions: int = 3) -> Decision:
    return Decision(micro_batch(4), tuple(transactions_of(tasks, partitions)), 1_764_000_000_000, False, ("former",))


def records(of: Decision) -> dict[RecordKey, bytes]:
    """Values by key."""
    found = {}
    for key, value in decision_records(SINK, of):
        parsed = RecordKey.parse(key)
        assert parsed is not None
        found[parsed] = value
    return found


def test_small_decision_is_one_record_that_every_release_reads() -> None:
    written = records(decision())
    assert list(written) == [KEY]
    assert json.loads(written[KEY])["format"] == 1
    assert joined(KEY, written) == decision()


def test_rows_of_a_batch_and_of_the_versions_before_are_read_again() -> None:
    written = replace(decision().settled(), rows=RowDigest(1_800, 2**64 - 1), earlier=((2, RowDigest(3, 4)), (3, None)))
    assert joined(KEY, records(written)) == written


def test_decision_of_an_earlier_clone_without_digests_is_read() -> None:
    written = records(decision())
    fields = json.loads(written[KEY])
    del fields["rows"], fields["earlier"]
    assert joined(KEY, {KEY: json.dumps({**fields, "row_count": 6}).encode()}) == decision()


def test_decision_that_knows_as_many_versions_as_it_may_is_small() -> None:
    """Each commit writes it, and each start reads those of the active segment."""
    earlier = tuple((10**6 + version, RowDigest(10**6, 2**64 - 1)) for version in range(MAX_EARLIER))
    (value,) = records(replace(decision(), earlier=earlier)).values()
    assert len(value) < 6_000


def test_confirming_record_is_none_of_a_decision() -> None:
    key, value = confirming_record(SINK)
    assert (RecordKey.parse(key), value) == (None, None)


def test_note_names_its_decision_in_a_key_that_earlier_releases_ignore() -> None:
    key, value = settled_note(SINK, decision())
    assert json.loads(key) == [SINK, "stream", "settled"], "they look for a string, or two strings and a number"
    assert RecordKey.parse(key) == KEY._replace(part=NOTE)
    assert value == settled_note(SINK, decision().settled())[1]
    later = [replace(decision(), time_ms=1), replace(decision(), batch=micro_batch(5))]
    assert all(settled_note(SINK, each)[1] != value for each in later)


def test_large_decision_is_cut_into_records_that_a_topic_takes_by_default() -> None:
    large = decision(tasks=100, partitions=400)
    written = records(large)
    assert list(written) == [KEY, *(KEY._replace(part=number) for number in range(2))]
    assert all(len(value) <= PART_BYTES < MESSAGE_BYTES - 40_000 for value in written.values())
    assert joined(KEY, written) == large


def test_release_before_parts_refuses_a_large_decision_rather_than_misread_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It splits the key into two, and wants format 1."""
    monkeypatch.setattr(PART_BYTES_LIMIT, 100)
    written = decision_records(SINK, decision())
    lengths = [(len(json.loads(key)), value) for key, value in written]
    ((_, counted),) = [(length, value) for length, value in lengths if length == 2]
    assert json.loads(counted)["format"] == 2


@pytest.mark.parametrize("missing", [0, 1, -1])
def test_decision_that_lacks_a_part_is_none(missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PART_BYTES_LIMIT, 100)
    written = records(decision())
    del written[[key for key in written if key.part is not None][missing]]
    assert joined(KEY, written) is None


def test_parts_of_a_longer_decision_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PART_BYTES_LIMIT, 100)
    shorter = records(decision(tasks=1))
    assert len(shorter) < len(records(decision()))
    assert joined(KEY, records(decision()) | shorter) == decision(tasks=1)


def test_number_of_parts_is_not_trusted() -> None:
    assert joined(KEY, {KEY: b'{"format": 2, "parts": 1000000000000}'}) is None


def test_newer_format_is_refused_with_the_next_step() -> None:
    with pytest.raises(ProtocolError, match="has format 3, and this release reads 1 and 2: use the release that"):
        joined(KEY, {KEY: b'{"format": 3}'})


@pytest.mark.parametrize("key", [None, b"", b"a key", b'"ab"', b"7", b'["a"]', b'[["a"], "b"]', b'["a", "b", "c"]'])
def test_foreign_key_is_none_of_a_decision(key: bytes | None) -> None:
    assert RecordKey.parse(key) is None
