"""The invariants of a finished `CommitHistory`; its docstring names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pyspark_kafka_meta.kafka.records.aborted_transactions import is_abort_marker
from pyspark_kafka_meta.kafka.records.batches import read_batch_headers
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, decode
from pyspark_kafka_meta.model import TopicPartition
from tests.unit.fake_cluster import FakeCluster
from tests.unit.histories.commit_history import CommitHistory


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


def visible(cluster: FakeCluster, partition: TopicPartition) -> list[int]:
    """The numbers of the rows that read_committed readers see, in their order."""
    rows: list[tuple[int, bool]] = []  # and whether they are committed
    undecided: dict[int, list[int]] = {}  # places in `rows`, by producer id
    for batch in cluster.logs[partition]:
        (header,) = read_batch_headers(batch.data)
        if header.is_control:
            for at in undecided.pop(header.producer_id, []):
                rows[at] = rows[at][0], not is_abort_marker(header, batch.data)
        else:
            fetched = FetchedRecords(partition, batch.data, [header], 0, 2**62)
            for row in decode([fetched], ["value"]):
                for value in row["value"].to_pylist():
                    undecided.setdefault(header.producer_id, []).append(len(rows))
                    rows.append((int(value), False))
    return [number for number, is_committed in rows if is_committed]


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
