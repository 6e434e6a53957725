"""The checkpoint's offsets: what Spark stores, compares as text and hands back after a restart."""

from __future__ import annotations

import copy
import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.errors import CheckpointError, OptionError
from pyspark_kafka_meta.model import OffsetRange, Position, SchemaPin, TopicEpoch, TopicPartition
from pyspark_kafka_meta.read.planning import checkpoint_offsets
from pyspark_kafka_meta.read.planning.checkpoint_offsets import (
    RecentOffsets,
    SourceOffset,
    advance,
    check_same_partitions,
    ranges,
)
from tests.checkpoints import restored, text
from tests.partitions import T0, T1, T2, U0

OLD_ID, NEW_ID = UUID(int=1), UUID(int=2)
INT64_MAX = 2**63 - 1


def offset(
    positions: dict[TopicPartition, tuple[int, int]], topic_id: UUID | None = OLD_ID, initial: bool = False
) -> SourceOffset:
    """Of (offset, epoch) pairs."""
    by_partition = {partition: Position(*position) for partition, position in positions.items()}
    return SourceOffset(
        by_partition, dict.fromkeys({partition.topic for partition in positions}, topic_id), initial=initial
    )


# --- the JSON ---------------------------------------------------------------------------------------------------------


def test_the_json_is_canonical_with_partitions_in_numeric_order() -> None:
    ten, two = TopicPartition("b", 10), TopicPartition("b", 2)
    value = SourceOffset(
        {ten: Position(5, 1), two: Position(6), TopicPartition("a", 0): Position(7, 0)}, {"b": OLD_ID, "a": None}
    )

    assert text(value) == (
        '{"topics": {"a": {"id": null, "partitions": {"0": [7, 0]}}, '
        '"b": {"id": "00000000-0000-0000-0000-000000000001", "partitions": '
        '{"2": 6, "10": [5, 1]}}}, "version": 1}'
    )


def test_schemas_of_typed_columns_are_written_and_read() -> None:
    pins = {"value": SchemaPin("c", "f", "version 3 of t-value (id 7)"), "key": SchemaPin("d", "g", "option keySchema")}
    typed = SourceOffset({}, {}, schemas=pins)

    assert text(typed) == (
        '{"schemas": {"key": {"columns": "d", "fingerprint": "g", "source": "option keySchema"}, "value": {"columns": '
        '"c", "fingerprint": "f", "source": "version 3 of t-value (id 7)"}}, "topics": {}, "version": 1}'
    )
    assert restored(typed) == typed


@pytest.mark.parametrize("pin", [{}, {"columns": "c", "fingerprint": "f", "source": 1}, "f"])
def test_a_schema_that_is_written_otherwise_is_refused(pin: object) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        SourceOffset.parse({"schemas": {"value": pin}, "topics": {}, "version": 1})


@pytest.mark.parametrize(
    ("position", "written"),
    [
        (Position(42), "42"),
        (Position(42, 0), "[42, 0]"),
        (Position(42, 3, 37), "[42, 3, 37]"),
        (Position(42, 3, 37, 5), "[42, 3, 37, 5]"),
        (Position(42, -1, -1, 5), "[42, -1, -1, 5]"),
    ],
)
def test_a_position_is_written_as_far_as_it_is_known(position: Position, written: str) -> None:
    known = SourceOffset({T0: position}, {"t": None}, start={T0: position})

    assert json.dumps(known.as_dict()["topics"]["t"]["partitions"]["0"]) == written
    assert restored(known) == known


def test_a_position_with_names_as_earlier_clones_wrote_it_is_read() -> None:
    named = {"offset": 42, "epoch": 3, "epoch_start": 37}
    value = {"topics": {"t": {"id": None, "partitions": {"0": named, "1": {"offset": 5, "epoch": -1}}}}, "version": 1}
    assert SourceOffset.parse(value).positions == {T0: Position(42, 3, 37), TopicPartition("t", 1): Position(5)}


def test_range_has_the_epoch_of_the_leader_that_reported_its_end() -> None:
    """Not that of the records there: an earlier leader of this epoch may have a shorter log."""
    start = SourceOffset({T0: Position(40, 3)}, {"t": OLD_ID})
    end = SourceOffset({T0: Position(42, 3, 37, 5)}, {"t": OLD_ID})

    assert ranges(start, restored(end)) == [OffsetRange(T0, OLD_ID, 40, 42, start_epoch=3, leader_epoch=5)]
    assert end.topic_epochs() == {T0: TopicEpoch(OLD_ID, 5)}


def test_recent_offset_is_neither_parsed_nor_made_again() -> None:
    recent, end = RecentOffsets(), offset({T0: (5, 1)})
    value = recent.as_dict(end)

    assert value == end.as_dict()
    assert recent.as_dict(offset({T0: (5, 1)})) is value, "an equal offset has the same object"
    assert recent.parse(json.loads(json.dumps(value))) is end


def test_other_offset_than_the_recent_ones_is_parsed() -> None:
    recent = RecentOffsets()
    recent.as_dict(offset({T0: (5, 1)}))
    other = offset({T0: (6, 1)})

    assert recent.parse(other.as_dict()) == other
    with pytest.raises(CheckpointError):
        recent.parse({"version": 2})


def test_offsets_of_two_micro_batches_are_recent() -> None:
    recent, offsets = RecentOffsets(), [offset({T0: (number, 1)}) for number in range(9)]
    values = [recent.as_dict(each) for each in offsets]

    assert [recent.parse(value) is each for value, each in zip(values, offsets, strict=True)] == [False] * 5 + [
        True
    ] * 4


def test_only_the_initial_offset_says_so() -> None:
    initial = offset({T0: (4, 0)}, initial=True)

    assert list(initial.as_dict()) == ["initial", "topics", "version"]
    assert list(advance(initial, offset({T0: (9, 0)}), {}).as_dict()) == ["start", "topics", "version"]


positions = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "a-1", "Z_.9"]), st.integers(0, 2**31 - 1)),
    st.integers(0, INT64_MAX).flatmap(
        lambda offset: st.builds(
            Position,
            st.just(offset),
            st.integers(-1, 2**31 - 1),
            epoch_start=st.integers(-1, offset - 1),
            reported_epoch=st.integers(-1, 2**31 - 1),
        )
    ),
)


@given(positions, positions, st.none() | st.uuids(), st.booleans())
def test_what_is_written_is_read_back_and_is_the_same_text_again(
    by_partition: dict[TopicPartition, Position],
    start: dict[TopicPartition, Position],
    topic_id: UUID | None,
    initial: bool,
) -> None:
    value = SourceOffset(
        by_partition, dict.fromkeys({partition.topic for partition in by_partition}, topic_id), start, initial
    )

    assert restored(value) == value
    assert text(restored(value)) == text(value)


GOOD: dict[str, Any] = {
    "start": {"t": {"0": 1}},
    "topics": {"t": {"id": str(OLD_ID), "partitions": {"0": [42, 3]}}},
    "version": 1,
}


def changed(path: tuple[str, ...], value: object) -> dict[str, Any]:
    """`GOOD` with the value at `path` replaced; ... takes it away."""
    result = copy.deepcopy(GOOD)
    place = result
    for name in path[:-1]:
        place = place[name]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return result


PARTITIONS = ("topics", "t", "partitions")
MALFORMED = [
    changed(("topics",), ...),
    changed(("topics",), []),
    changed(("start",), None),
    changed(("surprise",), 1),
    changed(("initial",), False),
    changed(("initial",), 1),
    changed(("topics", "t"), {"partitions": {}}),
    changed(("topics", "t", "id"), "not-a-uuid"),
    changed(("topics", "t", "id"), 5),
    changed(("topics", ".."), GOOD["topics"]["t"]),
    changed(("topics", "a b"), GOOD["topics"]["t"]),
    changed(("topics", "x" * 250), GOOD["topics"]["t"]),
    changed(PARTITIONS, {}),
    changed(PARTITIONS, [42]),
    changed((*PARTITIONS, "00"), [42, 3]),
    changed((*PARTITIONS, "-1"), [42, 3]),
    changed((*PARTITIONS, "2147483648"), [42, 3]),
    *(
        changed((*PARTITIONS, "0"), position)
        for position in (
            {"epoch": 3},
            [],
            [42, 3, 37, 5, 0],
            -1,
            -2,
            42.0,
            True,
            "42",
            None,
            INT64_MAX + 1,
            [42, -2],
            [42, None],
            [42, 3, 42],
            [42, 3, "37"],
            [0, 3, 0],
            [42, 3, 37, -2],
        )
    ),
    changed(("start", "t", "0"), -1),
    changed(("start", "t", "0"), -3),
    changed(("start", "t", "0"), [-2, 3, 0]),
]


@pytest.mark.parametrize("value", MALFORMED, ids=str)
def test_a_malformed_offset_is_a_checkpoint_error(value: dict[str, Any]) -> None:
    assert SourceOffset.parse(GOOD).positions == {T0: Position(42, 3)}

    with pytest.raises(CheckpointError, match="cannot be read"):
        SourceOffset.parse(value)


def test_offset_of_more_partitions_than_any_cluster_has_is_a_checkpoint_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_offsets, "MAX_PARTITIONS", 2)
    most = offset({T0: (1, 0), T1: (1, 0)})

    assert restored(most) == most
    with pytest.raises(CheckpointError, match=r"cannot be read \(3 partitions\)"):
        restored(offset({T0: (1, 0), T1: (1, 0), T2: (1, 0)}))


@pytest.mark.parametrize(
    "value", [{"t": {"0": 5}}, changed(("version",), 2), changed(("version",), None), [], None, "1", 1], ids=str
)
def test_an_offset_of_another_version_or_source_says_how_to_go_on(value: object) -> None:
    with pytest.raises(CheckpointError, match="this release reads version 1: go on with the release or source that"):
        SourceOffset.parse(value)


# --- from one batch to the next ---------------------------------------------------------------------------------------


def test_nothing_moved_is_the_same_text_though_epoch_and_id_changed() -> None:
    start = restored(offset({T0: (5, 1), T1: (7, 1)}))

    assert text(advance(start, offset({T1: (7, 9), T0: (5, 9)}, NEW_ID), {})) == text(start)


def test_a_partition_that_stands_keeps_its_epoch_while_another_moves() -> None:
    start = offset({T0: (5, 1), T1: (7, 1)})

    assert advance(start, offset({T0: (5, 9), T1: (8, 9)}), {}) == offset({T0: (5, 1), T1: (8, 9)})


def test_a_topic_id_changes_only_with_an_offset_of_that_topic() -> None:
    start = offset({T0: (5, 1), U0: (5, 1)})

    assert advance(start, offset({T0: (6, 1), U0: (5, 1)}, NEW_ID), {}).topic_ids == {"t": NEW_ID, "u": OLD_ID}


def test_batch_0_is_logged_even_if_it_is_empty_and_says_where_it_began() -> None:
    initial = offset({T0: (5, 1)}, initial=True)

    end = advance(initial, offset({T0: (5, 2)}), {})

    assert text(end) != text(initial)
    assert end.start == {T0: Position(5, 1)}
    assert not end.initial


def test_after_an_empty_batch_0_nothing_new_is_the_same_text() -> None:
    end = restored(advance(offset({T0: (5, 1)}, initial=True), offset({T0: (5, 1)}), {}))

    assert text(advance(end, offset({T0: (5, 3)}), {})) == text(end)
    assert ranges(end, end) == []


def test_the_records_of_batch_0_are_not_read_again_while_nothing_new_comes() -> None:
    end = restored(advance(offset({T0: (5, 1)}, initial=True), offset({T0: (8, 1)}), {}))

    assert ranges(end, advance(end, offset({T0: (8, 1)}), {})) == []


def test_batch_1_no_longer_carries_the_start_of_batch_0() -> None:
    end = advance(offset({T0: (5, 1)}, initial=True), offset({T0: (8, 1)}), {})

    assert advance(end, offset({T0: (9, 1)}), {}) == offset({T0: (9, 1)})


def test_a_restart_of_batch_0_begins_where_it_was_planned_from() -> None:
    planned = restored(advance(offset({T0: (100, 1)}, initial=True), offset({T0: (160, 1)}), {}))
    asked_anew = restored(offset({T0: (200, 4)}, initial=True))

    assert ranges(asked_anew, planned) == [OffsetRange(T0, OLD_ID, 100, 160, start_epoch=1, leader_epoch=1)]


def test_a_new_partition_begins_where_it_was_found_to_begin_now_and_after_a_restart() -> None:
    start = offset({T0: (5, 1)})

    end = restored(advance(start, offset({T0: (5, 1), T1: (9, 0)}), {T1: Position(2)}))

    assert end.start == {T1: Position(2)}
    assert ranges(start, end) == [OffsetRange(T1, OLD_ID, 2, 9, leader_epoch=0)]


def test_a_topic_recreated_is_read_from_its_start_even_if_it_ends_where_the_old_one_did() -> None:
    start = offset({T0: (5, 4)})

    end = advance(start, offset({T0: (5, 0)}, NEW_ID), {T0: Position(0)})

    assert ranges(start, end) == [OffsetRange(T0, NEW_ID, 0, 5, leader_epoch=0)]
    assert (end.positions, end.topic_ids) == ({T0: Position(5, 0)}, {"t": NEW_ID})


def test_a_topic_recreated_before_batch_0_is_read_from_its_start() -> None:
    initial = offset({T0: (5, 4)}, initial=True)

    end = advance(initial, offset({T0: (9, 0)}, NEW_ID), {T0: Position(2)})

    assert ranges(initial, end) == [OffsetRange(T0, NEW_ID, 2, 9, leader_epoch=0)]


@pytest.mark.parametrize("initial", [False, True])
def test_a_partition_that_is_gone_leaves_the_offset(initial: bool) -> None:
    end = advance(offset({T0: (5, 1), U0: (5, 1)}, initial=initial), offset({T0: (5, 1)}), {})

    assert "u" not in text(end)
    assert end.positions == {T0: Position(5, 1)}


def test_ranges_are_sorted_carry_the_epoch_before_them_and_are_never_empty() -> None:
    start = offset({T1: (5, 3), T0: (1, 2), T2: (9, 2)})
    end = offset({T2: (9, 4), T1: (7, 4), T0: (3, 4)}, NEW_ID)

    assert ranges(start, end) == [OffsetRange(T0, NEW_ID, 1, 3, 2, 4), OffsetRange(T1, NEW_ID, 5, 7, 3, 4)]


def test_nothing_is_read_of_a_log_that_became_shorter() -> None:
    assert ranges(offset({T0: (9, 1)}), offset({T0: (5, 2)})) == []


def test_a_partition_that_begins_nowhere_is_a_checkpoint_error() -> None:
    with pytest.raises(CheckpointError, match="does not say where to begin with t-1"):
        ranges(offset({T0: (1, 1)}), offset({T0: (1, 1), T1: (5, 1)}))


# --- offsets options against the partitions there are -----------------------------------------------------------------


def test_an_offsets_option_must_name_exactly_the_partitions_that_are_read() -> None:
    check_same_partitions("startingOffsets", [T1, T0], [T0, T1])

    with pytest.raises(OptionError) as caught:
        check_same_partitions("startingOffsets", [T0, U0], [T0, T1, T2])

    assert str(caught.value) == (
        "startingOffsets must name exactly the partitions that are read, with -1 for latest and -2 for earliest. "
        "Missing: t-1, t-2. Not read: u-0."
    )


def test_an_error_names_ten_partitions_and_counts_the_others() -> None:
    with pytest.raises(OptionError, match=r"Missing: t-0, t-1, .*, t-9 and 90 more\. Not read: none\."):
        check_same_partitions("endingOffsets", [], [TopicPartition("t", number) for number in range(100)])
