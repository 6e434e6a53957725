"""Writing tasks through random faults, and the invariants; `writing_history` has the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.client.leader_requests import LeaderRequests, SentRequest
from pyspark_kafka_meta.kafka.client.next_request import RetryPause
from pyspark_kafka_meta.kafka.records.batches import read_batch_headers
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, decode
from pyspark_kafka_meta.model import TopicPartition
from tests.budget import cases
from tests.unit.histories.blocks import blocks
from tests.unit.histories.reading_checks import METADATA_REQUESTS, WINDOW_S, most_within
from tests.unit.histories.writing_history import WritingHistory


@pytest.mark.budget
@pytest.mark.parametrize("seeds", blocks(cases(40, 100, 5_000)))
def test_each_row_is_written_through_faults(seeds: Iterable[int]) -> None:
    """A failure has the seed and the end of its history: `WritingHistory(seed).run()` repeats it."""
    for seed in seeds:
        history = WritingHistory(seed).run()
        found = violations(history)
        assert not found, f"WritingHistory({seed}): {found}\n{history}"


def test_histories_find_a_wait_for_metadata_that_nobody_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader has another request for each failed Fetch: histories of readers do not find it."""

    def wait(_: object, waiting: RetryPause, sent: SentRequest[object], __: KafkaMetaError) -> None:
        waiting.wait_for_metadata_after(sent.generation)

    monkeypatch.setattr(LeaderRequests, "refresh_after_failure", wait)
    assert any(violations(WritingHistory(seed).run()) for seed in range(20))


def violations(history: WritingHistory) -> list[str]:
    logs = {partition: values(history, partition) for partition in history.cluster.logs}
    found = [*history.violations, *_requests(history)]
    if not found:  # else rows may be missing
        found = [*_lost(history, logs), *_misplaced(history, logs)]
        for partition, log in logs.items():
            found += _unordered(partition, log, history.is_idempotent)
    return found


Logs = dict[TopicPartition, list[bytes]]


def values(history: WritingHistory, partition: TopicPartition) -> list[bytes]:
    data = b"".join(batch.data for batch in history.cluster.logs[partition])
    part = FetchedRecords(partition, data, read_batch_headers(data), 0, 2**62)
    return [value for batch in decode([part], ["value"]) for value in batch["value"].to_pylist()]


def _lost(history: WritingHistory, logs: Logs) -> Iterator[str]:
    stored = Counter(value for log in logs.values() for value in log)
    written = {row.value for row in history.rows}
    if lost := written - stored.keys():
        yield f"{len(lost)} rows are lost: {sorted(lost)[:5]}"
    if strange := stored.keys() - written:
        yield f"no task wrote {sorted(strange)[:5]}"
    repeated = [value for value, count in stored.items() if count > 1]
    if history.is_idempotent and repeated:
        yield f"{len(repeated)} rows are repeated: {sorted(repeated)[:5]}"


def _misplaced(history: WritingHistory, logs: Logs) -> Iterator[str]:
    places = {value: partition.partition for partition, log in logs.items() for value in log}
    of_keys: dict[bytes, set[int | None]] = {}
    for row in history.rows:
        place = places.get(row.value)
        if row.partition not in (None, place):
            yield f"row {row.value!r} is for partition {row.partition}, and in {place}"
        if row.key is not None:
            of_keys.setdefault(row.key, set()).add(place)
    for key, partitions in of_keys.items():
        if len(partitions) > 1:
            yield f"rows with the key {key!r} are in {partitions}"


def _unordered(partition: TopicPartition, log: list[bytes], is_idempotent: bool) -> Iterator[str]:
    firsts = log if is_idempotent else list(dict.fromkeys(log))
    if firsts != sorted(firsts):
        at = next(index for index, (value, following) in enumerate(pairwise(firsts)) if value > following)
        yield f"{partition} has rows in the order {firsts[max(at - 2, 0) : at + 4]}"


def _requests(history: WritingHistory) -> Iterator[str]:
    most = most_within(WINDOW_S, history.network.metadata_sent)
    if most > METADATA_REQUESTS:
        yield f"the client sent {most} Metadata requests in {WINDOW_S} s"
