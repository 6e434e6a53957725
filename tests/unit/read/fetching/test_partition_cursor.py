"""The instruction and position of a cursor after each kind of response."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.errors import BrokerError, CorruptBatchError, UnsupportedRecordFormatError
from pyspark_kafka_meta.kafka.client.next_request import LEADER, BackOff, Fail, Refresh
from pyspark_kafka_meta.kafka.protocol.error_codes import CORRUPT_MESSAGE, UNKNOWN_LEADER_EPOCH
from pyspark_kafka_meta.kafka.protocol.fetch import DivergingEpoch, FetchedPartition
from pyspark_kafka_meta.kafka.records.decoder import decode
from pyspark_kafka_meta.model import NO_EPOCH, OffsetRange, RefreshReason
from pyspark_kafka_meta.read.fetching.partition_cursor import (
    MAX_EMPTY_RESPONSES,
    MAX_UNKNOWN_EPOCHS,
    MIN_FETCH_BYTES,
    CorruptBatch,
    Emit,
    EmptyResponses,
    Instruction,
    Lost,
    OutOfRange,
    PartitionCursor,
    ReadFrom,
)
from tests.partitions import T0
from tests.unit.logs import batch, sparse_batch

TOPIC_ID = UUID(int=7)
MAX_BYTES = 1_000_000
EPOCH = 4


def cursor(
    start: int = 0, end: int = 10, epoch: int = EPOCH, read_committed: bool = False, check_crcs: bool = True
) -> PartitionCursor:
    return PartitionCursor(OffsetRange(T0, TOPIC_ID, start, end, epoch), read_committed, MAX_BYTES, check_crcs)


def response(
    records: bytes = b"",
    code: int = 0,
    high_watermark: int = 100,
    stable: int | None = None,
    diverging: DivergingEpoch | None = None,
) -> FetchedPartition:
    """One partition of a Fetch response; the last stable offset is the high watermark unless it is given."""
    last_stable = high_watermark if stable is None else stable
    return FetchedPartition(T0, code, records, high_watermark, last_stable, diverging_epoch=diverging)


def values(instruction: Instruction) -> list[tuple[int, str]]:
    """Offset and value of each row that an `Emit` holds."""
    assert isinstance(instruction, Emit), instruction
    tables = decode([instruction.records], ["offset", "value"])
    return [(row["offset"], row["value"].decode()) for table in tables for row in table.to_pylist()]


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


# --- records ----------------------------------------------------------------------------------------------------------


def test_position_moves_after_the_records_and_into_their_epoch() -> None:
    reader = cursor()
    records = batch(["a", "b"], epoch=5) + batch(["c"], base_offset=2, epoch=6)

    assert values(reader.on_fetched(response(records), response_is_empty=False)) == [(0, "a"), (1, "b"), (2, "c")]
    assert (reader.position, reader.last_fetched_epoch, reader.done) == (3, 6, False)


def test_rows_outside_the_range_are_cut_off() -> None:
    reader = cursor(start=3, end=6)
    records = batch(list("abcd"), base_offset=1) + batch(list("efgh"), base_offset=5)

    assert values(reader.on_fetched(response(records), response_is_empty=False)) == [(3, "c"), (4, "d"), (5, "e")]
    assert (reader.position, reader.done) == (6, True)


def test_a_gap_up_to_the_end_of_the_range_is_the_end_without_rows() -> None:
    reader = cursor(start=3, end=6)

    assert values(reader.on_fetched(response(batch(["z"], base_offset=80)), response_is_empty=False)) == []
    assert reader.done


def test_a_last_batch_that_is_cut_off_is_fetched_again() -> None:
    reader = cursor()
    records = batch(["a"]) + batch(["b"], base_offset=1)[:-1]

    assert values(reader.on_fetched(response(records), response_is_empty=False)) == [(0, "a")]
    assert reader.position == 1


UNREADABLE = {
    "checksum": (flipped(batch(["a"]), 64), "checksum"),
    "length": (flipped(batch(["a"]), 8), "cut off"),
    "first batch cut off": (batch(["a"])[:-1], "cut off"),
    "header cut off": (batch(["a"])[:20], "cut off"),
    "one byte": (b"\0", "cut off"),
}


@pytest.mark.parametrize(("records", "text"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_unreadable_records_are_fetched_once_more_and_the_position_stays(records: bytes, text: str) -> None:
    reader = cursor()

    assert reader.on_fetched(response(records), response_is_empty=False) == BackOff()
    assert reader.last_error == CORRUPT_MESSAGE
    instruction = reader.on_fetched(response(records), response_is_empty=False)
    assert isinstance(instruction, CorruptBatch)
    assert text in str(instruction.error)
    assert (reader.position, reader.last_fetched_epoch) == (0, EPOCH)


def test_what_a_broker_calls_corrupt_is_fetched_once_more_and_has_no_known_end() -> None:
    reader = cursor()

    assert reader.on_error(CORRUPT_MESSAGE) == BackOff()
    instruction = reader.on_error(CORRUPT_MESSAGE)
    assert isinstance(instruction, CorruptBatch)
    assert "CORRUPT_MESSAGE (error 2)" in str(instruction.error)
    assert instruction.lost is None
    assert reader.position == 0


def test_what_is_corrupt_at_a_follower_is_fetched_from_the_leader() -> None:
    reader = cursor()
    reader.request(TOPIC_ID, EPOCH, of_follower=True)

    assert reader.on_fetched(response(flipped(batch(["a"]), 64)), response_is_empty=False) == ReadFrom(LEADER)


def test_every_corrupt_batch_is_fetched_once_more() -> None:
    reader = cursor()

    for offset in (0, 1):
        good = batch(["a"], base_offset=offset)
        assert reader.on_fetched(response(flipped(good, 64)), response_is_empty=False) == BackOff()
        assert values(reader.on_fetched(response(good), response_is_empty=False)) == [(offset, "a")]


def test_records_that_cannot_be_decoded_are_fetched_again_without_an_epoch() -> None:
    reader = cursor()
    records = batch(["a"], epoch=5) + batch(["b"], base_offset=1, epoch=6)
    reader.on_fetched(response(records), response_is_empty=False)

    assert reader.on_undecodable(CorruptBatchError("no records", from_offset=1)) == BackOff()
    request = reader.request(TOPIC_ID, leader_epoch=8)
    assert (request.fetch_offset, request.last_fetched_epoch) == (1, NO_EPOCH)


def test_good_records_before_a_corrupt_batch_come_first_and_the_next_fetch_begins_with_it() -> None:
    reader = cursor()
    records = batch(["a"]) + flipped(batch(["b"], base_offset=1), 64)

    assert values(reader.on_fetched(response(records), response_is_empty=False)) == [(0, "a")]
    assert reader.position == 1


@pytest.mark.parametrize(
    ("records", "end", "until"),
    [
        (flipped(batch(["a", "b"]), 70), 10, 2),
        (flipped(batch(["a", "b"]), 24) + batch(["c"], base_offset=2), 10, 2),  # its last offset is what is damaged
        (flipped(batch(["a", "b"]), 70) + flipped(batch(["c"], base_offset=2), 16), 10, 2),
        (flipped(batch(["a", "b"], base_offset=5), 70) + batch(["c"], base_offset=3), 10, 7),
        (flipped(batch(["a"] * 20), 70), 10, 10),
        (batch(["a"])[:-1], 10, None),
        (b"\0", 10, None),
    ],
    ids=[
        "by its header",
        "by the next batch",
        "next batch damaged too",
        "next batch leads backwards",
        "end of the range",
        "cut off",
        "no header",
    ],
)
def test_where_a_corrupt_batch_ends_is_what_the_bytes_tell(records: bytes, end: int, until: int | None) -> None:
    reader = cursor(end=end)
    reader.on_fetched(response(records), response_is_empty=False)
    instruction = reader.on_fetched(response(records), response_is_empty=False)

    assert isinstance(instruction, CorruptBatch)
    assert (instruction.lost and instruction.lost.until_offset) == until


def test_old_message_format_fails_at_once() -> None:
    records = batch(["a"])[:16] + b"\1" + batch(["a"])[17:]
    instruction = cursor().on_fetched(response(records), response_is_empty=False)

    assert isinstance(instruction, Fail)
    assert isinstance(instruction.error, UnsupportedRecordFormatError)
    assert "t-0 at offset 0" in str(instruction.error)


def test_checksums_are_believed_only_on_request() -> None:
    damaged = flipped(batch(["a"]), 64)

    assert isinstance(cursor(check_crcs=False).on_fetched(response(damaged), response_is_empty=False), Emit)
    assert isinstance(cursor(check_crcs=True).on_fetched(response(damaged), response_is_empty=False), BackOff)


def test_batches_before_the_position_are_no_progress_and_no_rows() -> None:
    reader = cursor(start=5)

    assert reader.on_fetched(response(batch(["old"], base_offset=4)), response_is_empty=False) is None
    assert (reader.position, reader.last_fetched_epoch) == (5, EPOCH)


def test_aborted_transactions_and_isolation_go_along_with_the_records() -> None:
    reader = cursor(read_committed=True)
    fetched = FetchedPartition(T0, 0, batch(["a"]), 100, 100, aborted_transactions=((9, 0),))
    instruction = reader.on_fetched(fetched, response_is_empty=False)

    assert isinstance(instruction, Emit)
    assert instruction.records.read_committed
    assert instruction.records.aborted_transactions == ((9, 0),)


@given(
    gaps=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=12),
    bounds=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    cuts=st.lists(st.integers(1, 400), min_size=1, max_size=8),
)
def test_every_record_of_the_range_comes_once_however_responses_are_cut(
    gaps: list[tuple[int, int]], bounds: tuple[int, int], cuts: list[int]
) -> None:
    log: list[tuple[int, bytes]] = []
    written: list[tuple[int, str]] = []
    offset = 0
    for count, step in gaps:
        rows = {offset + index * step: f"v{offset + index * step}" for index in range(count)}
        log.append((max(rows), sparse_batch(rows)))
        written += rows.items()
        offset = max(rows) + step
    start, end = min(bounds), min(max(bounds), written[-1][0] + 1)
    reader, read, turn = cursor(start, end), [], 0
    while not reader.done:
        left = b"".join(data for last, data in log if last >= reader.position)
        first = next(len(data) for last, data in log if last >= reader.position)
        instruction = reader.on_fetched(response(left[: max(first, cuts[turn % len(cuts)])]), response_is_empty=False)
        read += values(instruction)
        turn += 1
        assert turn <= len(log)

    assert read == [row for row in written if start <= row[0] < end]


# --- error codes ------------------------------------------------------------------------------------------------------

ERRORS = {
    1: OutOfRange(),
    3: Refresh(RefreshReason.UNKNOWN_TOPIC, 3),
    5: Refresh(RefreshReason.NO_LEADER, 5),
    6: Refresh(RefreshReason.NOT_LEADER, 6),
    7: BackOff(),
    9: Refresh(RefreshReason.NOT_LEADER, 9),
    56: Refresh(RefreshReason.NOT_LEADER, 56),
    74: Refresh(RefreshReason.FENCED_EPOCH, 74),
    75: BackOff(),
    78: BackOff(),
    89: BackOff(),
    100: Refresh(RefreshReason.UNKNOWN_TOPIC_ID, 100),
    103: Refresh(RefreshReason.UNKNOWN_TOPIC_ID, 103),
    -1: BackOff(),
}


@pytest.mark.parametrize(("code", "expected"), ERRORS.items())
def test_error_code_becomes_an_instruction_and_the_position_stays(code: int, expected: Instruction) -> None:
    reader = cursor(start=3)

    assert reader.on_fetched(response(batch(["ignored"]), code), response_is_empty=False) == expected
    assert (reader.position, reader.last_error) == (3, code)


@pytest.mark.parametrize(("code", "name"), [(29, "TOPIC_AUTHORIZATION_FAILED"), (4711, "4711")])
def test_error_that_does_not_heal_fails_and_names_partition_and_code(code: int, name: str) -> None:
    instruction = cursor().on_error(code)

    assert isinstance(instruction, Fail)
    assert isinstance(instruction.error, BrokerError)
    assert instruction.error.code == code
    assert "t-0" in str(instruction.error)
    assert name in str(instruction.error)


@pytest.mark.parametrize("fetched", [response(), response(batch(["a"]))])
def test_trouble_is_over_with_the_next_good_response(fetched: FetchedPartition) -> None:
    reader = cursor()
    reader.on_error(6)
    reader.on_fetched(fetched, response_is_empty=False)

    assert reader.last_error == 0


@pytest.mark.parametrize("between", [response(), response(code=7)], ids=["good response", "another error"])
def test_only_unknown_epochs_in_a_row_show_that_the_cache_is_wrong(between: FetchedPartition) -> None:
    reader = cursor()
    unknown = response(code=UNKNOWN_LEADER_EPOCH)
    nearly = [unknown] * (MAX_UNKNOWN_EPOCHS - 1)
    for fetched in (*nearly, between, *nearly):
        assert isinstance(reader.on_fetched(fetched, response_is_empty=False), BackOff | None)

    refresh = Refresh(RefreshReason.UNKNOWN_EPOCH, UNKNOWN_LEADER_EPOCH)
    assert reader.on_fetched(unknown, response_is_empty=False) == refresh


# --- truncated and shortened logs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("end_offset", [5, 6, 90])
def test_diverging_epoch_at_or_after_the_position_is_no_loss(end_offset: int) -> None:
    reader = cursor(start=5)

    assert reader.on_fetched(response(diverging=DivergingEpoch(2, end_offset)), response_is_empty=True) is None
    assert (reader.position, reader.last_fetched_epoch) == (5, 2)


@pytest.mark.parametrize(
    ("end_offset", "goes_on_at", "with_epoch"),
    [
        pytest.param(7, 7, EPOCH, id="after the start of the range"),
        pytest.param(5, 5, EPOCH, id="at the start of the range"),
        pytest.param(3, 5, NO_EPOCH, id="before the range, which is not left"),
    ],
)
def test_diverging_epoch_before_the_position_is_a_loss_and_new_records_are_read_from_there(
    end_offset: int, goes_on_at: int, with_epoch: int
) -> None:
    reader = cursor(start=5)
    reader.on_fetched(response(batch(list("abc"), base_offset=5, epoch=EPOCH)), response_is_empty=False)
    reader.request(None, leader_epoch=9)
    lost = reader.on_fetched(response(diverging=DivergingEpoch(EPOCH, end_offset)), response_is_empty=True)

    assert isinstance(lost, Lost)
    assert (lost.from_offset, lost.until_offset) == (end_offset, 8)
    assert f"truncated to offset {end_offset} (leader epoch {EPOCH}, now 9)" in lost.cause
    assert ("replaced offsets 3 to 4" in lost.cause) == (end_offset == 3)
    reader.skip_lost(lost)
    assert (reader.position, reader.last_fetched_epoch) == (goes_on_at, with_epoch)


@pytest.mark.parametrize("end_offset", [8, 9, 10, 90])
@pytest.mark.parametrize("fetches", [1, 2, 4])
def test_log_without_the_epoch_of_records_read_has_none_of_them_at_any_length(fetches: int, end_offset: int) -> None:
    """Offsets 5 and 6 in epoch 2, 7 and 8 in epoch 4."""
    reader = cursor(start=5, epoch=EPOCH)
    batches = [batch([str(offset)], offset, epoch=2 if offset < 7 else EPOCH) for offset in range(5, 9)]
    for first in range(0, 4, 4 // fetches):
        records = b"".join(batches[first : first + 4 // fetches])
        reader.on_fetched(response(records), response_is_empty=False)
    reader.request(None, leader_epoch=9)
    lost = reader.on_fetched(response(diverging=DivergingEpoch(3, end_offset)), response_is_empty=True)

    assert isinstance(lost, Lost)
    assert (lost.from_offset, lost.until_offset) == (7, 9)
    assert f"truncated to offset 7 (leader epoch {EPOCH}, now 9)" in lost.cause
    reader.skip_lost(lost)
    assert (reader.position, reader.last_fetched_epoch) == (7, 3)
    again = reader.on_fetched(response(diverging=DivergingEpoch(1, end_offset)), response_is_empty=True)
    assert again is None, "no record of epoch 3 was read"


@pytest.mark.parametrize(
    ("earliest", "lost", "position"),
    [pytest.param(7, (5, 7), 7, id="the beginning aged out"), pytest.param(12, (5, 10), 10, id="all of it aged out")],
)
def test_offsets_outside_the_log_are_lost_within_the_range(earliest: int, lost: tuple[int, int], position: int) -> None:
    reader = cursor(start=5)
    reader.on_error(1)
    instruction = reader.on_log_start(earliest)

    assert isinstance(instruction, Lost)
    assert (instruction.from_offset, instruction.until_offset) == lost
    assert reader.position == 5
    reader.skip_lost(instruction)
    assert (reader.position, reader.last_fetched_epoch) == (position, NO_EPOCH)


@pytest.mark.parametrize("earliest", [0, 5])
def test_out_of_range_though_the_log_has_the_offset_is_retried_without_an_epoch(earliest: int) -> None:
    reader = cursor(start=5)
    reader.on_error(1)

    assert reader.on_log_start(earliest) == BackOff()
    assert reader.request(TOPIC_ID, leader_epoch=8).last_fetched_epoch == NO_EPOCH
    assert reader.position == 5


# --- empty responses --------------------------------------------------------------------------------------------------


def positions_after(reader: PartitionCursor, *responses: tuple[FetchedPartition, bool]) -> list[int]:
    seen = []
    for fetched, response_is_empty in responses:
        assert reader.on_fetched(fetched, response_is_empty) is None
        seen.append(reader.position)
    return seen


def after_empty_responses(**fetched: Any) -> tuple[PartitionCursor, Instruction]:
    """A cursor at 5 of 10, and its instruction after enough empty responses."""
    reader = cursor(start=5)
    positions_after(reader, *[(response(**fetched), True)] * (MAX_EMPTY_RESPONSES - 1))
    return reader, reader.on_fetched(response(**fetched), response_is_empty=True)


@pytest.mark.parametrize("local_start", [0, 5])
def test_enough_empty_responses_from_a_local_log_prove_that_compaction_took_the_rest(local_start: int) -> None:
    reader, instruction = after_empty_responses(high_watermark=10)
    assert instruction == EmptyResponses(log_is_short=False)
    assert reader.position == 5

    reader.on_local_start(local_start)
    assert reader.done


@pytest.mark.parametrize("high_watermark", [0, 4, 5])
def test_empty_responses_of_a_log_that_ends_at_the_position_say_that_it_is_short(high_watermark: int) -> None:
    """A leader that was elected a moment ago gives out nothing until its followers have fetched from it."""
    assert after_empty_responses(high_watermark=high_watermark)[1] == EmptyResponses(log_is_short=True)


def test_responses_of_a_short_log_do_not_count_as_those_of_one_that_goes_up_to_the_end() -> None:
    nearly = MAX_EMPTY_RESPONSES - 1
    short, whole = (response(high_watermark=5), True), (response(high_watermark=10), True)

    assert set(positions_after(cursor(start=5), *[short] * nearly, *[whole] * nearly, *[short] * nearly)) == {5}


def test_empty_responses_from_remote_storage_prove_nothing() -> None:
    """Tiered storage responds with no records and no error while it is slow (KIP-405)."""
    reader, instruction = after_empty_responses(high_watermark=10)
    assert instruction == EmptyResponses(log_is_short=False)

    assert reader.on_local_start(8) == BackOff()
    assert reader.position == 5
    assert not reader.done


UNPROVEN = {
    "another partition filled the response, or it was throttled": (response(), False, False),
    "the high watermark is before the end": (response(high_watermark=9), True, False),
    "the last stable offset is before the end": (response(stable=9), True, True),
    "the broker tells no high watermark": (response(high_watermark=-1), True, False),
}


@pytest.mark.parametrize(("fetched", "is_empty", "read_committed"), UNPROVEN.values(), ids=UNPROVEN.keys())
def test_unproven_empty_responses_are_waited(fetched: FetchedPartition, is_empty: bool, read_committed: bool) -> None:
    reader = cursor(read_committed=read_committed)

    assert set(positions_after(reader, *[(fetched, is_empty)] * (3 * MAX_EMPTY_RESPONSES))) == {0}


def test_open_transaction_does_not_matter_to_read_uncommitted() -> None:
    assert after_empty_responses(stable=0)[1] == EmptyResponses(log_is_short=False)


INTERRUPTIONS = {
    "a full response": (response(), False),
    "a high watermark that went back": (response(high_watermark=1), True),
}


@pytest.mark.parametrize("between", INTERRUPTIONS.values(), ids=INTERRUPTIONS.keys())
def test_only_empty_responses_in_a_row_count(between: tuple[FetchedPartition, bool]) -> None:
    nearly = [(response(), True)] * (MAX_EMPTY_RESPONSES - 1)

    assert set(positions_after(cursor(), *nearly, between, *nearly)) == {0}


def test_records_end_a_row_of_empty_responses() -> None:
    reader = cursor()
    nearly = [(response(), True)] * (MAX_EMPTY_RESPONSES - 1)
    positions_after(reader, *nearly)
    reader.on_fetched(response(batch(["a"])), response_is_empty=False)

    assert set(positions_after(reader, *nearly)) == {1}


@pytest.mark.parametrize("high_watermark", [9, 100], ids=["lags behind", "has all"])
@pytest.mark.parametrize(
    "between", [(response(), False), (response(batch(["a"])), True)], ids=["full response", "records"]
)
def test_follower_is_left_after_empty_responses(between: tuple[FetchedPartition, bool], high_watermark: int) -> None:
    reader = cursor()
    reader.request(TOPIC_ID, EPOCH, of_follower=True)
    empty = response(high_watermark=high_watermark)
    nearly = [(empty, True)] * (MAX_EMPTY_RESPONSES - 1)
    for fetched, response_is_empty in (*nearly, between, *nearly):
        assert isinstance(reader.on_fetched(fetched, response_is_empty), Emit | None)

    assert reader.on_fetched(empty, response_is_empty=True) == ReadFrom(LEADER)


@pytest.mark.parametrize("follower_first", [False, True])
def test_empty_responses_of_one_replica_prove_nothing_about_another(follower_first: bool) -> None:
    reader, empty = cursor(), response(high_watermark=100)
    reader.request(TOPIC_ID, EPOCH, of_follower=follower_first)
    positions_after(reader, *[(empty, True)] * (MAX_EMPTY_RESPONSES - 1))
    reader.request(TOPIC_ID, EPOCH, of_follower=not follower_first)

    assert reader.on_fetched(empty, response_is_empty=True) is None


def test_empty_responses_of_a_follower_count_although_the_leader_names_it_again() -> None:
    reader, empty = cursor(), response(high_watermark=100)
    for _ in range(MAX_EMPTY_RESPONSES - 1):
        reader.request(TOPIC_ID, EPOCH, of_follower=True)
        reader.on_fetched(empty, response_is_empty=True)
        reader.request(TOPIC_ID, EPOCH)
        reader.on_fetched(replace(empty, preferred_read_replica=3), response_is_empty=True)
    reader.request(TOPIC_ID, EPOCH, of_follower=True)

    assert reader.on_fetched(empty, response_is_empty=True) == ReadFrom(LEADER)


def test_empty_responses_of_the_leader_count_although_it_names_a_follower_between_them() -> None:
    """A choice of the leader expires soon if kafka.metadata.max.age.ms is short."""
    reader, short = cursor(), response(high_watermark=0)
    for _ in range(MAX_EMPTY_RESPONSES - 1):
        reader.request(TOPIC_ID, EPOCH)
        assert reader.on_fetched(short, response_is_empty=True) is None
        reader.on_fetched(replace(short, preferred_read_replica=3), response_is_empty=True)
        reader.request(TOPIC_ID, EPOCH, of_follower=True)
        reader.on_fetched(short, response_is_empty=True)
    reader.request(TOPIC_ID, EPOCH)

    assert reader.on_fetched(short, response_is_empty=True) == EmptyResponses(log_is_short=True)


def test_follower_that_lags_behind_does_not_say_that_the_log_is_short() -> None:
    reader = cursor()
    short = response(high_watermark=0)
    positions_after(reader, *[(short, True)] * (MAX_EMPTY_RESPONSES - 1))
    reader.request(TOPIC_ID, EPOCH, of_follower=True)

    assert reader.on_fetched(short, response_is_empty=True) is None


# --- requests ---------------------------------------------------------------------------------------------------------


def test_request_names_where_the_cursor_is() -> None:
    reader = cursor()
    reader.on_fetched(response(batch(["a"], epoch=5)), response_is_empty=False)
    request = reader.request(TOPIC_ID, leader_epoch=8)

    assert (request.partition, request.topic_id, request.fetch_offset) == (T0, TOPIC_ID, 1)
    assert (request.leader_epoch, request.last_fetched_epoch) == (8, 5)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param(0, 1, MIN_FETCH_BYTES, id="never less than a little"),
        pytest.param(0, 500, int(500 * 1024 * 1.1), id="a guess at first"),
        pytest.param(0, 10**12, MAX_BYTES, id="never more than allowed"),
    ],
)
def test_first_request_guesses_the_size_of_the_range(start: int, end: int, expected: int) -> None:
    assert cursor(start, end).request(None, 0).max_bytes == expected


def test_limit_below_the_least_size_is_kept() -> None:
    small = PartitionCursor(OffsetRange(T0, None, 0, 10), False, 500, True)

    assert small.request(None, 0).max_bytes == 500


def test_later_requests_measure_the_rest_by_what_came() -> None:
    reader = cursor(end=1000)
    records = batch(["x" * 1000] * 100)
    reader.on_fetched(response(records), response_is_empty=False)

    assert reader.request(None, 0).max_bytes == pytest.approx(len(records) * 9 * 1.1, rel=0.01)


@pytest.mark.parametrize(
    ("stale_generation", "not_before", "ready"),
    [(-1, 0.0, True), (4, 0.0, True), (5, 0.0, False), (6, 0.0, False), (4, 99.9, True), (4, 100.1, False)],
)
def test_cursor_is_ready_with_newer_cache_after_pause(stale_generation: int, not_before: float, ready: bool) -> None:
    reader = cursor()
    reader.wait_for_metadata_after(stale_generation)
    reader.wait_until(not_before)

    assert reader.is_ready(generation=5, now=100.0) is ready
