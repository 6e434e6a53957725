"""The invariants of a finished `CommitHistory`; its docstring names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import TypeAlias

from pyspark_kafka_meta.kafka.records.batches import is_abort_marker, read_batch_headers
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, decode
from pyspark_kafka_meta.model import TopicPartition
from tests.unit.fake_cluster import FakeCluster
from tests.unit.histories.commit_history import CommitHistory

Record: TypeAlias = tuple[bytes, bytes]
"""Key and value."""


def violations(history: CommitHistory) -> list[str]:
    found = [*history.violations]
    if not found:  # else batches may be missing
        logs = {
            partition: visible(history.cluster, partition)
            for partition in history.cluster.logs
            if partition.topic == "t"
        }
        found += [*_counts(history, Counter(row for log in logs.values() for row in log)), *_open(history)]
        for partition, log in logs.items():
            found += [] if history.deletes_decisions else _unordered(history, partition, log)
    return found


class CommittedRecords:
    """The records of a log that read_committed readers see, in their order. A read goes on where the last one ended."""

    def __init__(self, cluster: FakeCluster, partition: TopicPartition) -> None:
        self._cluster, self._partition = cluster, partition
        self._read = 0  # batches
        self._records: list[tuple[Record, bool]] = []  # and whether they are committed
        self._undecided: dict[int, list[int]] = {}  # places in `_records`, by producer id

    def read(self, committed: Collection[int] = ()) -> list[Record]:
        """
        Args:
            committed: ids of producers whose last transaction counts as committed, because its markers are on the way.
        """
        log = self._cluster.logs[self._partition]
        for batch in log[self._read :]:
            (header,) = read_batch_headers(batch.data)
            if header.is_control:
                for at in self._undecided.pop(header.producer_id, []):
                    self._records[at] = self._records[at][0], not is_abort_marker(header, batch.data)
            else:
                fetched = FetchedRecords(self._partition, batch.data, [header], 0, 2**62)
                for rows in decode([fetched], ["key", "value"]):
                    for row in rows.to_pylist():
                        self._undecided.setdefault(header.producer_id, []).append(len(self._records))
                        self._records.append(((row["key"], row["value"]), False))
        self._read = len(log)
        ending = {at for producer_id in committed for at in self._undecided.get(producer_id, ())}
        return [record for at, (record, is_committed) in enumerate(self._records) if is_committed or at in ending]


def visible(cluster: FakeCluster, partition: TopicPartition) -> list[int]:
    """The numbers of the rows that read_committed readers see, in their order."""
    return [int(value) for _, value in CommittedRecords(cluster, partition).read()]


def _counts(history: CommitHistory, found: Counter[int]) -> Iterator[str]:
    for number, (rows, is_committed) in enumerate(zip(history.rows, history.committed, strict=True)):
        counts = [found.pop(1000 * number + row, 0) for row in range(rows)]
        if history.deletes_decisions:
            is_wrong = is_committed and 0 in counts
        else:
            is_wrong = set(counts) != {1} and (is_committed or any(counts))
        if is_wrong:
            yield f"rows of batch {number} are visible {counts} times"
    if found:
        yield f"no batch has the rows {sorted(found)}"


def _unordered(history: CommitHistory, partition: TopicPartition, log: list[int]) -> Iterator[str]:
    for key in range(history.keys):
        of_key = [number for number in log if number % 1000 % history.keys == key]
        if of_key != sorted(of_key):
            yield f"key {key} has in {partition} the rows {of_key}"


def _open(history: CommitHistory) -> Iterator[str]:
    coordinators = history.coordinators
    opened = [each for each in coordinators.transactions if coordinators.is_open(each)]
    if opened:
        yield f"transactions are open: {opened}"
    for partition in history.cluster.logs:
        if coordinators.last_stable_offset(partition) != history.cluster.bounds(partition)[1]:
            yield f"readers wait in {partition} at offset {coordinators.last_stable_offset(partition)}"
