"""What is proved of a position by the records around it, in a log and in its copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from pyspark_kafka_meta.tools.same_records import Around, Proof, SeenRecord, Verdict, assume, prove, seen


def record(offset: int, content: int, *headers: bytes) -> SeenRecord:
    return SeenRecord(offset, content, None, 1, content.to_bytes(2, "big"), headers)


def around(records: Iterable[SeenRecord], position: int, count: int, start: int = 0, end: int = 1000) -> Around:
    logged = [each for each in records if start <= each.offset < end]
    before = [each for each in logged if each.offset < position][-count:]
    after = [each for each in logged if each.offset >= position][:count]
    return Around(position, start, end, tuple(before), tuple(after))


def proof(
    log: Sequence[SeenRecord],
    position: int,
    copy: Sequence[SeenRecord],
    place: int | None = None,
    copy_start: int = 0,
    copy_end: int = 1000,
    start: int = 0,
) -> Proof:
    """With the same offset unless a place is given."""
    there = around(copy, position if place is None else place, 4, copy_start, copy_end)
    return prove(around(log, position, 2, start), there, 2, place is None)


LOG = [record(offset, offset) for offset in (0, 1, 2, 5, 6, 7)]
"""Compaction has removed offsets 3 and 4."""
MOVED = [record(offset + 10, offset, b"of the mirror") for offset in (1, 2, 5, 6, 7)]


def test_a_digest_is_of_one_run_and_tells_null_from_empty() -> None:
    row: dict[str, Any] = {"offset": 3, "key": None, "value": b"v", "headers": [{"key": "h", "value": None}]}
    one, other = (seen(row, 5, salt) for salt in (b"1", b"2"))
    assert one.is_copied_as(seen({**row, "offset": 9}, 5, b"1")) and not one.is_copied_as(other)
    assert str(one).startswith("offset 3 (timestamp 5, key null, value 1 bytes, 1 headers, digest ")
    changed: list[dict[str, Any]] = [
        {"key": b""},
        {"key": b"v", "value": None},
        {"value": b"w"},
        {"headers": [{"key": "h", "value": b""}]},
    ]
    for change in changed:
        assert not one.is_copied_as(seen({**row, **change}, 5, b"1"))
    assert not one.is_copied_as(seen(row, 6, b"1"))
    more = [{"key": "mirror", "value": b"dr"}, *row["headers"]]
    assert one.is_copied_as(seen({**row, "headers": more}, 5, b"1"))


@pytest.mark.parametrize("position", [3, 4, 5])
def test_a_position_in_a_gap_is_before_the_next_record(position: int) -> None:
    assert proof(LOG, position, LOG) == Proof(Verdict.PROVED, position, "equal: 2 records before, 2 after")
    assert proof(LOG, position, MOVED, place=15) == Proof(Verdict.PROVED, 15, "equal: 2 records before, 2 after")


@pytest.mark.parametrize(
    ("found", "verdict", "offset", "text"),
    [
        (proof(LOG, 0, LOG), Verdict.PROVED, 0, "equal: 0 records before, 2 after"),
        (proof(LOG, 8, LOG), Verdict.PROVED, 8, "equal: 2 records before, 0 after"),
        (proof(LOG, 8, MOVED, place=18), Verdict.PROVED, 18, "equal: 2 records before, 0 after"),
        (proof(LOG, 0, [record(3, 9), *LOG[3:]]), Verdict.REFUSED, None, "the records differ"),
        (proof(LOG[3:], 5, LOG, start=5), Verdict.UNKNOWN, 5, "the first cluster has no record before it any more"),
        (proof(LOG, 5, LOG[3:], copy_start=5), Verdict.UNKNOWN, 5, "the other cluster has no record before it"),
        (proof(LOG, 6, LOG[:4]), Verdict.UNKNOWN, 6, "the other cluster does not have the record after it yet"),
        (proof(LOG, 6, LOG[:3]), Verdict.REFUSED, None, "the records differ: in the first cluster before it offset 5"),
        (proof(LOG, 8, [*LOG, record(9, 9)]), Verdict.REFUSED, None, "after it offset 9"),
        (proof(LOG, 5, LOG, copy_end=4), Verdict.REFUSED, None, "the other cluster ends at offset 4"),
        (proof(LOG, 5, LOG, copy_start=6), Verdict.REFUSED, None, "the other cluster begins at offset 6"),
        (proof(LOG, 5, LOG, start=6), Verdict.REFUSED, None, "the first cluster begins at offset 6"),
        (proof(LOG, 6, [each._replace(offset=each.offset + 1) for each in LOG]), Verdict.REFUSED, None, "at offset 7"),
        (proof(LOG, 5, [record(offset, offset + 90) for offset in range(9)]), Verdict.REFUSED, None, "differ"),
        (proof(LOG, 0, MOVED, place=12, copy_start=11), Verdict.AMBIGUOUS, None, "the records differ"),
        (proof(LOG[1:], 0, [record(10, 0), *MOVED], place=11), Verdict.REFUSED, None, "records before the first"),
        (proof(LOG, 0, LOG, place=0, copy_start=-5), Verdict.PROVED, 0, "equal"),
        (proof(LOG, 0, [record(9 + each.offset, each.offset) for each in LOG], 9, 9), Verdict.UNKNOWN, 9, "other rec"),
        (proof([], 5, LOG), Verdict.UNKNOWN, 5, "no records any more"),
        (proof([], 0, LOG), Verdict.REFUSED, None, "this log none"),
        (proof([], 0, [], copy_end=0), Verdict.PROVED, 0, "no records yet"),
        (proof([], 0, [], place=0, copy_end=3), Verdict.UNKNOWN, 3, "has had some"),
        (assume(around(LOG, 5, 1)), Verdict.UNKNOWN, 5, "not compared: before it offset 2"),
        (assume(around(LOG, 9, 1, end=8)), Verdict.REFUSED, None, "ends at offset 8"),
    ],
)
def test_what_both_logs_have_decides(found: Proof, verdict: Verdict, offset: int | None, text: str) -> None:
    assert (found.verdict, found.offset) == (verdict, offset), found.text
    assert text in found.text


def test_equal_records_in_a_row_prove_nothing_until_their_row_ends() -> None:
    row = [record(offset, 7) for offset in range(8)]
    assert proof(row, 4, row).verdict is Verdict.AMBIGUOUS
    assert prove(around(row, 4, 8), around(row, 4, 16), 8, True).verdict is Verdict.AMBIGUOUS
    framed = [record(0, 6), *(record(offset, 7) for offset in range(1, 9)), record(9, 8)]
    assert prove(around(framed, 4, 8), around(framed, 4, 16), 8, True).verdict is Verdict.PROVED
    assert prove(around(framed, 4, 8), around(framed, 3, 16), 8, False).offset == 4, "where to look next"


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Contents by record, whose equal ones are in a row, and the offsets of the records in both logs."""
    steps = draw(st.lists(st.sampled_from(draw(st.sampled_from([[1], [0, 1]]))), min_size=1, max_size=30))
    gaps = st.lists(st.integers(1, 3), min_size=len(steps), max_size=len(steps))
    here, there = ([end - 1 for end in accumulate(draw(gaps))] for _ in range(2))
    return [*accumulate(steps)], here, there


@given(histories(), st.data())
def test_a_proved_position_is_the_right_one_whatever_retention_and_compaction_removed(
    history: tuple[list[int], list[int], list[int]], data: st.DataObject
) -> None:
    contents, offsets, copied = history
    numbers = range(len(contents))
    # What compaction removes from one log alone cannot be seen between equal records.
    has_equal = len(set(contents)) < len(contents)
    removed = st.sets(st.sampled_from(numbers), max_size=0 if has_equal else 2)
    first, begun, missing = (data.draw(st.integers(0, len(contents) // 3)) for _ in range(3))
    ended = len(contents) - missing
    here = set(numbers[first:]) - data.draw(removed)
    there = set(numbers[begun:ended]) - data.draw(removed)
    position = data.draw(st.integers(0, offsets[-1] + 1))

    log = [record(offsets[number], contents[number]) for number in sorted(here)]
    copy = [record(copied[number], contents[number]) for number in sorted(there)]
    start, copy_start = ([-1, *where][at] + 1 for at, where in ((first, offsets), (begun, copied)))
    copy_end = max(copy_start, copied[ended - 1] + 1 if ended else 0)
    near = around(log, position, 1, start)
    wanted = [*near.after, *near.before][:1]
    place = next((each.offset + (not near.after) for each in copy if wanted and wanted[0].is_copied_as(each)), copy_end)
    found = Proof(Verdict.AMBIGUOUS, place, "")
    for count in (2, 4, 8):
        if found.verdict is Verdict.AMBIGUOUS:
            place = place if found.offset is None else found.offset
            log_around = around(log, position, count, start, offsets[-1] + 1)
            found = prove(log_around, around(copy, place, 2 * count, copy_start, copy_end), count, False)
    event(found.verdict)
    if found.verdict is Verdict.PROVED:
        assert found.offset is not None
        assert [copied[number] < found.offset for number in sorted(there)] == [
            offsets[number] < position for number in sorted(there)
        ]
