"""Corrupt record batches are fetched once more, and then fail a task or are skipped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest
from crc32c import crc32c

from pyspark_kafka_meta.errors import BatchTooLargeError, CorruptBatchError
from pyspark_kafka_meta.events.event import EventKind
from pyspark_kafka_meta.kafka.protocol.error_codes import CORRUPT_MESSAGE
from pyspark_kafka_meta.kafka.protocol.fetch import FetchResponse
from pyspark_kafka_meta.kafka.records.compression import Codec
from tests.partitions import T1
from tests.unit.fake_cluster import StoredBatch
from tests.unit.kafka.records import handmade
from tests.unit.read.fetching.responses import ONE_BATCH
from tests.unit.scene import HELD_BACK, Scene, by_partition, rows, written


def test_corrupt_records_fail_the_task_and_the_next_task_starts_clean(scene: Scene) -> None:
    client = scene.warm_client()
    damaged = scene.cluster.logs[T1][0]
    scene.cluster.logs[T1][0] = replace(damaged, data=damaged.data[:-1] + b"?")
    with pytest.raises(CorruptBatchError, match="t-1 at offset 0: record batch with base offset 0: its checksum"):
        rows(scene.reader(client).read(scene.ranges()))

    scene.cluster.logs[T1][0] = damaged
    assert by_partition(rows(scene.reader(client).read(scene.ranges()))) == written()


def damage_checksum(batch: StoredBatch) -> StoredBatch:
    return replace(batch, data=batch.data[:-1] + b"?")


def damage_value(batch: StoredBatch) -> StoredBatch:
    """The last byte of the last record's value; the count of its headers comes after it."""
    return replace(batch, data=batch.data[:-2] + b"?" + batch.data[-1:])


def damage_records(batch: StoredBatch) -> StoredBatch:
    """The first record's length, with a checksum that is right."""
    data = batch.data[:61] + b"\x7f" + batch.data[62:]
    return replace(batch, data=data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:])


def damage_length(batch: StoredBatch) -> StoredBatch:
    return replace(batch, data=batch.data[:8] + bytes(4) + batch.data[12:])


DAMAGES = [damage_checksum, damage_records, damage_length]
Damage = Callable[[StoredBatch], StoredBatch]
SKIP = {"onCorruptBatch": "skip"}


def damaged(scene: Scene, damage: Damage, index: int) -> StoredBatch:
    """Damage one batch of T1, whose four batches have three records each. Returns what it was."""
    log = scene.cluster.logs[T1]
    before, log[index] = log[index], damage(log[index])
    return before


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("options", [{}, ONE_BATCH, HELD_BACK], ids=["all at once", "batch by batch", "committed"])
@pytest.mark.parametrize("index", range(4))
def test_batch_corrupt_once_is_read_again(scene: Scene, damage: Damage, options: dict[str, str], index: int) -> None:
    reader = scene.reader(**options)
    good = damaged(scene, damage, index)

    def heal(response: FetchResponse) -> FetchResponse:
        if any(fetched.partition == T1 and damage(good).data in fetched.records for fetched in response.partitions):
            scene.cluster.logs[T1][index] = good
        return response

    scene.network.change = heal
    assert by_partition(rows(reader.read(scene.ranges()))) == written()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("options", [{}, ONE_BATCH], ids=["all at once", "batch by batch"])
@pytest.mark.parametrize("index", range(4))
def test_corrupt_batch_fails_with_topic_partition_and_offset_after_two_fetches_of_it(
    scene: Scene, damage: Damage, options: dict[str, str], index: int
) -> None:
    damaged(scene, damage, index)
    at = 3 * index
    with pytest.raises(CorruptBatchError, match=f"^t-1 at offset {at}: .* fetched twice.* go on without it") as raised:
        rows(scene.reader(**options).read(scene.ranges()))

    assert (raised.value.topic, raised.value.partition, raised.value.from_offset) == ("t", 1, at)
    asked = [
        requested.fetch_offset
        for _, request in scene.network.fetches
        for requested in request.partitions
        if requested.partition == T1
    ]
    assert 1 <= asked.count(at) <= 2


def test_checksums_are_not_looked_at_where_the_option_says_so(scene: Scene) -> None:
    damaged(scene, damage_value, 3)
    *good, (offset, value) = by_partition(rows(scene.reader(kafka_check_crcs="false").read(scene.ranges())))[T1]

    assert good == written()[T1][:-1]
    assert offset == 11
    assert value != written()[T1][-1][1]


@pytest.mark.parametrize("damage", [damage_checksum, damage_records])
@pytest.mark.parametrize("options", [{}, ONE_BATCH], ids=["all at once", "batch by batch"])
@pytest.mark.parametrize("index", range(4))
def test_corrupt_batch_is_skipped_alone_with_an_event_of_its_offsets(
    scene: Scene, damage: Damage, options: dict[str, str], index: int, caplog: pytest.LogCaptureFixture
) -> None:
    damaged(scene, damage, index)
    at = 3 * index
    expected = {**written(), T1: [row for row in written()[T1] if not at <= row[0] < at + 3]}

    assert by_partition(rows(scene.reader(**options, **SKIP).read(scene.ranges()))) == expected
    (event,) = [event for event in scene.events if event.kind is EventKind.DATA_LOSS]
    assert scene.losses() == [(T1, at, at + 3)]
    assert f"base offset {at}" in str(event.details.error)
    assert "onCorruptBatch is skip" in caplog.text


def test_batches_that_are_all_corrupt_are_progress_when_they_are_skipped(scene: Scene) -> None:
    scene.empty()
    scene.fill(batches=30)
    scene.cluster.logs[T1] = [damage_checksum(batch) for batch in scene.cluster.logs[T1]]

    assert rows(scene.reader(**SKIP, kafkaConsumer_pollTimeoutMs="500").read([scene.range(T1)])) == []
    assert scene.losses() == [(T1, at, at + 3) for at in range(0, 90, 3)]


def test_corrupt_batch_whose_end_cannot_be_told_is_not_skipped(scene: Scene) -> None:
    damaged(scene, damage_length, 3)
    with pytest.raises(CorruptBatchError, match=r"t-1 at offset 9: .* start behind it"):
        rows(scene.reader(**SKIP).read(scene.ranges()))


@pytest.mark.parametrize("options", [{}, SKIP], ids=["fail", "skip"])
def test_batch_that_its_broker_calls_corrupt_twice_fails_the_task(scene: Scene, options: dict[str, str]) -> None:
    scene.network.error_codes[T1] = deque([CORRUPT_MESSAGE])
    assert by_partition(rows(scene.reader(**options).read(scene.ranges()))) == written()

    scene.network.error_codes[T1] = deque([CORRUPT_MESSAGE] * 2)
    with pytest.raises(CorruptBatchError, match=r"^t-1 at offset 0: .*CORRUPT_MESSAGE.*twice.* start behind it"):
        rows(scene.reader(**options).read(scene.ranges()))


def test_corrupt_batch_of_a_follower_is_read_from_the_leader(scene: Scene) -> None:
    scene.network.preferred_replicas[T1] = 3
    asked: list[int] = []

    def damage_of_follower(response: FetchResponse) -> FetchResponse:
        if not any(fetched.partition == T1 and fetched.records for fetched in response.partitions):
            return response
        asked.append(response.node_id)
        corrupt = [
            replace(fetched, records=memoryview(bytes(fetched.records[:-1]) + b"?")) for fetched in response.partitions
        ]
        return replace(response, partitions=tuple(corrupt)) if response.node_id == 3 else response

    scene.network.change = damage_of_follower
    read = rows(scene.reader(kafka_client_rack="r", **ONE_BATCH).read([scene.range(T1)]))
    assert by_partition(read) == {T1: written()[T1]}
    assert asked == [3, 2, 2, 2, 2]


@pytest.mark.parametrize("options", [{}, SKIP], ids=["fail", "skip"])
def test_batch_that_decompresses_to_more_than_allowed_fails_at_once(scene: Scene, options: dict[str, str]) -> None:
    bomb = handmade.batch([handmade.Row(offset, value=bytes(1000)) for offset in range(3)], Codec.ZSTD)
    scene.cluster.logs[T1][0] = replace(scene.cluster.logs[T1][0], data=bomb)
    with pytest.raises(BatchTooLargeError, match=r"^t-1 at offset 0: .* 2000 bytes; set .* maxDecompressedBatchBytes"):
        rows(scene.reader(maxDecompressedBatchBytes="2000", **options).read([scene.range(T1)]))
    asked = [requested.fetch_offset for _, request in scene.network.fetches for requested in request.partitions]
    assert asked.count(0) == 1
    assert scene.losses() == []
    assert len(rows(scene.reader(maxDecompressedBatchBytes="4000").read([scene.range(T1)]))) == 12
