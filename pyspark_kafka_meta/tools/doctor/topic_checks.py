"""Check the topics: existence, permissions, leaders, in-sync replicas, and a small Fetch from each leader."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from uuid import UUID

from pyspark_kafka_meta.errors import CorruptBatchError, KafkaMetaError, UnsupportedRecordFormatError
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_wire import KafkaWire
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    broker_error,
    describe,
)
from pyspark_kafka_meta.kafka.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure, Wire
from pyspark_kafka_meta.kafka.records.batches import read_batch_headers
from pyspark_kafka_meta.model import NO_EPOCH, NO_LEADER, Broker, TopicPartition, shortened
from pyspark_kafka_meta.options import ClientOptions, FetchOptions
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.tables.rows import PartitionRow
from pyspark_kafka_meta.tools.doctor.findings import Finding, Verdict, fail, failure, ok, warn

FETCH_BYTES = 1
"""A broker then sends the first record batch alone, whole (KIP-74)."""

MAX_NAMED = 20


def topic_findings(
    topics: Collection[str],
    brokers: Sequence[Broker],
    options: ClientOptions,
    fetch: FetchOptions,
    must_read: bool = True,
) -> Iterator[Finding]:
    """Findings on these topics.

    Args:
        options: with bootstrap addresses that respond.
        must_read: whether a missing right to read is a failure: a program may only write.
    """
    try:
        rows = partition_rows(options, topics, fetch.read_committed)
    except KafkaMetaError as error:
        yield failure("topics", error)
        return
    for _, members in groupby(rows, lambda row: row.topic):
        yield from judge_topic(list(members), "Read" if must_read else "Write")
    live = {broker.node_id: broker for broker in brokers}
    with closing(KafkaWire(ConnectionSettings.of(options))) as wire:
        for row in partition_of_each_leader(rows):
            if row.leader_id in live:
                deadline = options.api_deadline(time.monotonic())
                yield _fetch_finding(wire, live[row.leader_id], _request(row, fetch), deadline, must_read)


def judge_topic(rows: Sequence[PartitionRow], operation: str = "Read") -> Iterator[Finding]:
    """Findings on a topic and on at most `MAX_NAMED` of its partitions, the worst first.

    Args:
        operation: the right to propose if this user has none on the topic.
    """
    topic = shortened(rows[0].topic)
    if rows[0].partition is None:
        yield fail(f"topic {topic}", str(rows[0].error), topic_fix(topic, rows[0].error, operation))
        return
    problems = [found for row in rows if (found := judge_partition(row)) is not None]
    yield from sorted(problems, key=lambda finding: finding.verdict is not Verdict.FAIL)[:MAX_NAMED]
    records = sum(row.end_offset - row.start_offset for row in rows if row.end_offset and row.start_offset is not None)
    good = len(rows) - len(problems) if problems else "all"
    if rows[0].topic_id is None:
        fix = "do not recreate the topic while a query reads it, or upgrade the brokers to Apache Kafka 2.8 or later"
        what = "the brokers report no topic id: a recreated topic is noticed only by leader epochs or a shorter log"
        yield warn(f"topic {topic}", what, fix)
    yield ok(f"topic {topic}", f"partitions: {len(rows)}, led and in sync: {good}; records: about {records}")


def judge_partition(row: PartitionRow) -> Finding | None:
    """None for a healthy partition."""
    check = f"partition {row.topic}-{row.partition}"
    out = sorted(set(row.replicas) - set(row.isr))
    if row.leader_id == NO_LEADER:
        in_sync, replicas = (", ".join(map(str, ids)) for ids in (row.isr, row.offline_replicas or row.replicas))
        what = f"it has no leader; in-sync replicas: {in_sync or 'none'}"
        return fail(check, what, f"start the brokers with its replicas: {replicas}")
    if row.error is not None:
        return fail(check, row.error, topic_fix(row.topic, row.error))
    if out:
        what = f"{len(row.isr)} of {len(row.replicas)} replicas are in sync"
        named = ", ".join(map(str, out))
        return warn(check, what, f"look at broker {named}: down, slow or cut off; another failure may stop reads")
    return None


def partition_of_each_leader(rows: Sequence[PartitionRow]) -> list[PartitionRow]:
    """A partition for each pair of topic and leader, with records if there is any."""
    chosen: dict[tuple[str, int | None], PartitionRow] = {}
    for row in sorted(rows, key=lambda row: row.end_offset == row.start_offset):
        if None not in (row.start_offset, row.end_offset):
            chosen.setdefault((row.topic, row.leader_id), row)
    return list(chosen.values())


def judge_fetched(check: str, fetched: FetchedPartition, latency_ms: float, must_read: bool = True) -> Finding:
    """The finding on the response to a small Fetch."""
    topic = fetched.partition.topic
    if fetched.error_code:
        refused = broker_error(f"{fetched.partition} cannot be read", fetched.error_code, topic, "READ")
        fix = topic_fix(topic, describe(fetched.error_code))
        if fetched.error_code == TOPIC_AUTHORIZATION_FAILED and not must_read:
            return warn(check, str(refused), f"nothing, if this user only writes; else {fix}")
        return fail(check, str(refused), fix)
    try:
        batches = read_batch_headers(fetched.records)
    except CorruptBatchError as error:
        fix = "restore this replica, skip the batch with onCorruptBatch, or start behind it with startingOffsets"
        return fail(check, f"{fetched.partition}: {error}", fix)
    except UnsupportedRecordFormatError as error:
        fix = "start behind these records with startingOffsets, or copy the topic: see docs/troubleshooting.md"
        return fail(check, f"{fetched.partition}: {error}", fix)
    what = f"returned a record batch ({batches[0].codec.name.lower()})" if batches else "is empty, responded"
    return ok(check, f"{fetched.partition} {what} in {latency_ms:.1f} ms")


def _fetch_finding(wire: Wire, leader: Broker, request: FetchRequest, deadline: float, must_read: bool) -> Finding:
    topic = request.partitions[0].partition.topic
    check = f"fetch {topic} from broker {leader.node_id}"
    wire.fetch.send(leader, request, deadline)
    match wire.fetch.receive([leader.node_id], deadline):
        case FetchResponse(partitions=(fetched,), latency_ms=latency_ms):
            return judge_fetched(check, fetched, latency_ms, must_read)
        case FetchResponse(error_code=code):
            return fail(check, f"the Fetch was refused: {describe(code)}", topic_fix(topic, describe(code)))
        case RequestFailure(error=reason):
            return failure(check, reason)
        case None:
            return fail(
                check, "no response in time", "look at this broker's load, or give it more time with --timeout-ms"
            )


def _request(row: PartitionRow, fetch: FetchOptions) -> FetchRequest:
    assert row.partition is not None and row.start_offset is not None and row.leader_epoch is not None
    partition = FetchPartition(
        TopicPartition(row.topic, row.partition),
        None if row.topic_id is None else UUID(row.topic_id),
        row.start_offset,
        row.leader_epoch,
        NO_EPOCH,
        FETCH_BYTES,
    )
    return FetchRequest((partition,), 0, 1, fetch.fetch_max_bytes, fetch.read_committed)


_TOPIC_FIXES: Mapping[str, str] = {
    describe(TOPIC_AUTHORIZATION_FAILED): "allow it: kafka-acls --add --allow-principal User:... "
    "--operation {operation} --topic {topic} ({operation} includes Describe); "
    "or correct the name: a missing topic looks the same",
    describe(UNKNOWN_TOPIC_OR_PARTITION): "correct the name, or create it: kafka-topics --create --topic {topic}",
}


def topic_fix(topic: str, error: str | None, operation: str = "Read") -> str:
    """What to do about an error of a topic; `operation` is the right to propose against a missing right."""
    fix = _TOPIC_FIXES.get(error or "", "see the log of its leader, and `kafka-topics --describe --topic {topic}`")
    return fix.format(topic=topic, operation=operation)
