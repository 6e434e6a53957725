"""The latest record of each key: as a dict has it, while compaction, elections and transactions go on."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_new_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from pyspark_kafka_meta.errors import DataLossError, MissingKeyError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.read.fetching import latest_by_key
from pyspark_kafka_meta.read.fetching.latest_by_key import LatestOffsets, LatestReader, MayEndLater
from tests.partitions import T0
from tests.unit.logs import WRITTEN
from tests.unit.scene import Scene

Records = Sequence[tuple[str, str | None]]
Latest = dict[bytes, tuple[int, bytes]]
POLICIES = {"compacted": "compact", "not compacted": "delete", "unknown": None}


# --- the fold ---------------------------------------------------------------------------------------------------------


def folded(batches: Sequence[Sequence[tuple[bytes, int, bool]]]) -> LatestOffsets:
    latest = LatestOffsets()
    for rows in batches:
        keys, offsets, are_null = zip(*rows, strict=True) if rows else ((), (), ())
        latest.add(pa.array(keys, pa.binary()), np.array(offsets, np.int64), np.array(are_null, np.bool_))
    return latest


keys = st.one_of(st.sampled_from([b"", b"a", b"b", b"\0", bytes(300)]), st.binary(max_size=3))
histories = st.lists(st.lists(st.tuples(keys, st.integers(0, 3), st.booleans()), max_size=20), max_size=8)


@given(histories, st.integers(1, 30))
def test_offsets_are_those_of_a_dict(steps: list[list[tuple[bytes, int, bool]]], min_pending: int) -> None:
    offset, batches, expected = 0, [], {}
    for rows in steps:
        batch = []
        for key, gap, is_null in rows:
            offset += gap + 1
            batch.append((key, offset, is_null))
            expected[key] = (offset, is_null)
        batches.append(batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latest_by_key, "MIN_PENDING", min_pending)
        latest = folded(batches)

    live = {offset: key for key, (offset, is_null) in expected.items() if not is_null}
    assert latest.live().tolist() == sorted(live)
    some = np.array(sorted(live)[::2], np.int64)
    assert sorted(latest.keys_at(some).to_pylist()) == sorted(live[offset] for offset in some.tolist())


def test_keys_of_a_sliced_array_are_its_own() -> None:
    latest = LatestOffsets()
    keys = pa.array([b"before", b"a", b"b", b"a", b"after"], pa.binary()).slice(1, 3)
    latest.add(keys, np.arange(3), np.zeros(3, np.bool_))

    assert latest.live().tolist() == [1, 2]


def test_records_of_few_keys_keep_no_memory() -> None:
    """Their other shards have no rows, or few."""
    latest, keys = LatestOffsets(), pa.array([b"k" * 100] * 9_999 + [b"other"], pa.binary())
    before = pa.total_allocated_bytes()
    for start in range(0, 1_000_000, len(keys)):
        latest.add(keys, np.arange(start, start + len(keys)), np.zeros(len(keys), np.bool_))
    assert pa.total_allocated_bytes() - before < 50_000_000, "all records have 108 MB"


def test_numbered_keys_are_spread_over_all_shards() -> None:
    """Or a table that is rebuilt would be as large as all of them."""
    keys = pa.array([f'{{"id": {number}}}'.encode() for number in range(10_000)])
    counts = np.bincount(latest_by_key._shards(keys), minlength=latest_by_key.SHARDS)

    assert counts.max() < 2 * counts.mean()


# --- reading ----------------------------------------------------------------------------------------------------------


def keyed(key: str | None, value: str | None) -> bytes:
    buffer = io.BytesIO()
    record = Record(
        attributes=i8(0),
        timestamp=TZAwareMicros.parse(WRITTEN),
        offset=i64(0),
        key=None if key is None else key.encode(),
        value=None if value is None else value.encode(),
        headers=(),
    )
    write_new_batch(
        buffer,
        NewRecordBatch(
            producer_id=i64(-1),
            producer_epoch=i16(-1),
            partition_leader_epoch=i32(0),
            base_sequence=i32(-1),
            records=(record,),
            attributes=i16(0),
        ),
    )
    return buffer.getvalue()


class LatestScene(Scene):
    """Topic t with one partition, whose record batches have one record each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, partitions=1)
        self.set_policy("compact")

    def set_policy(self, policy: str | None) -> None:
        self.monkeypatch.setattr(KafkaClient, "cleanup_policy", lambda client, topic: policy)

    def put(self, *records: tuple[str | None, str | None]) -> None:
        for key, value in records:
            self.cluster.append(T0, keyed(key, value))

    def compact(self, *offsets: int) -> None:
        """Remove these records."""
        log = self.cluster.logs[T0]
        self.cluster.logs[T0] = [batch for batch in log if batch.base_offset not in offsets]

    def between_the_passes(self, *happen: Callable[[], Any]) -> None:
        """After each first pass, one thing happens."""
        real, left = LatestOffsets.live, iter(happen)

        def live(latest: LatestOffsets) -> Any:
            found = real(latest)
            next(left, lambda: None)()
            return found

        self.monkeypatch.setattr(LatestOffsets, "live", live)

    def latest(
        self,
        may_end_later: MayEndLater = MayEndLater.ANY_KEY,
        columns: Sequence[str] = ("key", "value"),
        until: int | None = None,
        **options: str,
    ) -> list[Mapping[str, Any]]:
        planned = self.range(T0, 0, until)
        epoch = self.cluster.partition(T0).leader_epoch
        planned = replace(planned, leader_epoch=epoch)
        reader = LatestReader(self.client(**options), self.options(**options), columns, may_end_later)
        return [row for batch in reader.read(planned) for row in batch.to_pylist()]

    def values(self, may_end_later: MayEndLater = MayEndLater.ANY_KEY, until: int | None = None) -> dict[str, str]:
        rows = self.latest(may_end_later, until=until)
        found = {row["key"].decode(): row["value"].decode() for row in rows}
        assert len(found) == len(rows), "a key has one row"
        return found


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> LatestScene:
    scene = LatestScene(monkeypatch)
    scene.put(("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("c", None), ("b", "2"), ("d", None), ("d", "1"))
    return scene


NOW = {"a": "2", "b": "2", "d": "1"}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("may_end_later", MayEndLater)
def test_each_key_has_its_latest_live_value(scene: LatestScene, may_end_later: MayEndLater, policy: str) -> None:
    scene.set_policy(POLICIES[policy])
    assert scene.values(may_end_later) == NOW


def test_rows_have_the_requested_columns_in_the_order_of_offsets(scene: LatestScene) -> None:
    assert scene.latest(columns=["offset", "topic"]) == [{"offset": at, "topic": "t"} for at in (2, 5, 7)]
    assert scene.latest(columns=["value"]) == [{"value": value} for value in (b"2", b"2", b"1")]


def test_rows_without_columns_are_counted(scene: LatestScene) -> None:
    assert len(scene.latest(columns=[])) == 3


def test_end_of_the_range_is_exact_if_nothing_is_removed(scene: LatestScene) -> None:
    assert scene.values(MayEndLater.REMOVED_KEY, until=3) == {"a": "2", "b": "1"}
    assert scene.values(MayEndLater.NO_KEY, until=3) == {"a": "2", "b": "1"}
    scene.set_policy("delete")
    assert scene.values(MayEndLater.ANY_KEY, until=3) == {"a": "2", "b": "1"}


def test_log_without_a_live_key_has_no_rows(scene: LatestScene) -> None:
    scene.put(("a", None), ("b", None), ("d", None))
    assert scene.latest() == []


def test_record_without_a_key_is_refused(scene: LatestScene) -> None:
    scene.put((None, "lost"))
    with pytest.raises(MissingKeyError, match="t-0 at offset 8 has no key, as Debezium's record of a TRUNCATE"):
        scene.latest()


# --- compaction -------------------------------------------------------------------------------------------------------


def test_record_that_was_removed_before_it_was_read_has_its_newer_value(scene: LatestScene) -> None:
    """The end was planned at 8. Then b was written again, and compaction removed what was before."""
    scene.put(("b", "3"), ("e", "1"))
    scene.compact(1, 5)

    assert scene.values(until=8) == {**NOW, "b": "3", "e": "1"}


@pytest.mark.parametrize("may_end_later", [MayEndLater.ANY_KEY, MayEndLater.REMOVED_KEY])
def test_record_removed_between_passes_has_its_newer_value(scene: LatestScene, may_end_later: MayEndLater) -> None:
    scene.between_the_passes(lambda: (scene.put(("b", "3"), ("e", "1")), scene.compact(1, 5)))

    assert scene.values(may_end_later) == {**NOW, "b": "3"}, "e is later than the end"


def test_record_that_is_removed_again_and_again_is_found_at_last(scene: LatestScene) -> None:
    scene.between_the_passes(
        lambda: (scene.put(("b", "3")), scene.compact(1, 5)), lambda: (scene.put(("b", "4")), scene.compact(8))
    )
    assert scene.values() == {**NOW, "b": "4"}


def test_key_that_was_deleted_and_removed_between_the_passes_has_no_row(scene: LatestScene) -> None:
    scene.between_the_passes(lambda: (scene.put(("b", None), ("e", "1")), scene.compact(1, 5)))
    assert scene.values() == {"a": "2", "d": "1"}


def test_key_that_aged_out_between_the_passes_has_no_row(scene: LatestScene) -> None:
    scene.between_the_passes(lambda: scene.compact(2))
    assert scene.values() == {"b": "2", "d": "1"}


def test_stream_leaves_a_removed_record_to_its_next_micro_batch(scene: LatestScene) -> None:
    scene.between_the_passes(lambda: (scene.put(("b", "3")), scene.compact(1, 5)))
    assert scene.values(MayEndLater.NO_KEY) == {"a": "2", "d": "1"}


# --- elections --------------------------------------------------------------------------------------------------------


def test_leader_that_moved_between_the_passes_changes_nothing(scene: LatestScene) -> None:
    scene.between_the_passes(lambda: scene.cluster.move_leader(T0, 2))
    assert scene.values() == NOW


@pytest.mark.parametrize("may_end_later", MayEndLater)
def test_log_that_was_truncated_between_the_passes_fails(scene: LatestScene, may_end_later: MayEndLater) -> None:
    """Although it has a record of the same key at each offset."""

    def truncate() -> None:
        del scene.cluster.logs[T0][5:]
        scene.cluster.move_leader(T0, 2)
        scene.put(("b", "other"), ("d", "other"), ("d", "other"))

    scene.between_the_passes(truncate)

    with pytest.raises(DataLossError, match="the log of t-0 was truncated to offset 5 while the latest values"):
        scene.latest(may_end_later)
