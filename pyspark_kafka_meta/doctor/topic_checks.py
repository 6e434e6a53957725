"""The topics: whether they exist and are allowed, leaders, in-sync replicas, and whether a small Fetch succeeds."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from uuid import UUID

from pyspark_kafka_meta.doctor.findings import Finding, Verdict, fail, failure, ok, warn
from pyspark_kafka_meta.errors import CorruptBatchError, KafkaMetaError, UnsupportedRecordFormatError
from pyspark_kafka_meta.kafka_errors import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    broker_error,
    describe,
)
from pyspark_kafka_meta.model import NO_EPOCH, NO_LEADER, Broker, TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.records.record_batches import read_batch_headers
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.tables.table_rows import PartitionRow
from pyspark_kafka_meta.wire.connection import ConnectionSettings
from pyspark_kafka_meta.wire.kafka_wire import KafkaWire
from pyspark_kafka_meta.wire.messages import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    RequestFailure,
    Wire,
)

FETCH_BYTES = 1
"""A broker sends the first record batch whole all the same (KIP-74), and no other."""

MAX_NAMED = 20


def topic_findings(topics: Collection[str], brokers: Sequence[Broker], options: ClientOptions) -> Iterator[Finding]:
    """What is wrong with these topics, as brokers report them.

    Args:
        options: those of addresses that answer.
    """
    try:
        rows = partition_rows(options, topics)
    except KafkaMetaError as error:
        yield failure("topics", error)
        return
    for _, members in groupby(rows, lambda row: row.topic):
        yield from judge_topic(list(members))
    live = {broker.node_id: broker for broker in brokers}
    with closing(KafkaWire(ConnectionSettings.of(options))) as wire:
        for row in one_of_each_leader(rows):
            if row.leader_id in live:
                yield _fetch_finding(wire, live[row.leader_id], row, options)


def judge_topic(rows: Sequence[PartitionRow]) -> Iterator[Finding]:
    """Findings on one topic: the worst `MAX_NAMED` of its partitions with something wrong, and the topic itself."""
    topic = rows[0].topic
    if rows[0].partition is None:
        yield fail(f"topic {topic}", str(rows[0].error), _topic_fix(topic, rows[0].error))
        return
    problems = [found for row in rows if (found := judge_partition(row)) is not None]
    yield from sorted(problems, key=lambda one: one.verdict is not Verdict.FAIL)[:MAX_NAMED]
    records = sum(row.end_offset - row.start_offset for row in rows if row.end_offset and row.start_offset is not None)
    good = len(rows) - len(problems) if problems else "all"
    if rows[0].topic_id is None:
        fix = "do not recreate the topic while a query reads it, or upgrade the brokers to Apache Kafka 2.8 or later"
        told = "the brokers report no topic id: a recreated topic is noticed only by leader epochs or a shorter log"
        yield warn(f"topic {topic}", told, fix)
    yield ok(f"topic {topic}", f"partitions: {len(rows)}, led and in sync: {good}; records: about {records}")


def judge_partition(row: PartitionRow) -> Finding | None:
    """None if nothing is wrong with it."""
    check = f"partition {row.topic}-{row.partition}"
    out = sorted(set(row.replicas) - set(row.isr))
    named = ", ".join(map(str, out))
    if row.leader_id == NO_LEADER:
        told = f"it has no leader; in sync is {', '.join(map(str, row.isr)) or 'nobody'}"
        return fail(
            check, told, f"start the brokers that hold it: {', '.join(map(str, row.offline_replicas or row.replicas))}"
        )
    if row.error is not None:
        return fail(check, row.error, _topic_fix(row.topic, row.error))
    if out:
        told = f"{len(row.isr)} of {len(row.replicas)} replicas are in sync"
        return warn(check, told, f"look at broker {named}: down, slow or cut off; another failure may stop reads")
    return None


def one_of_each_leader(rows: Sequence[PartitionRow]) -> list[PartitionRow]:
    """A partition of each topic and leader, rather one with records than one without."""
    chosen: dict[tuple[str, int | None], PartitionRow] = {}
    for row in sorted(rows, key=lambda row: row.end_offset == row.start_offset):
        if None not in (row.start_offset, row.end_offset):
            chosen.setdefault((row.topic, row.leader_id), row)
    return list(chosen.values())


def judge_fetched(check: str, fetched: FetchedPartition, latency_ms: float) -> Finding:
    """The answer to a small Fetch."""
    topic = fetched.partition.topic
    if fetched.error_code:
        refused = broker_error(f"{fetched.partition} cannot be read", fetched.error_code, topic, "READ")
        return fail(check, str(refused), _topic_fix(topic, describe(fetched.error_code)))
    try:
        batches = read_batch_headers(fetched.records)
    except CorruptBatchError as error:
        fix = "restore this replica, skip the batch with onCorruptBatch, or start behind it with startingOffsets"
        return fail(check, f"{fetched.partition}: {error}", fix)
    except UnsupportedRecordFormatError as error:
        fix = "start behind these records with startingOffsets, or copy the topic: see docs/troubleshooting.md"
        return fail(check, f"{fetched.partition}: {error}", fix)
    what = (
        f"gave a record batch ({batches[0].codec.name.lower()})" if batches else "may be read, and is empty: answered"
    )
    return ok(check, f"{fetched.partition} {what} in {latency_ms:.1f} ms")


def _fetch_finding(wire: Wire, leader: Broker, row: PartitionRow, options: ClientOptions) -> Finding:
    check = f"fetch {row.topic} from broker {leader.node_id}"
    deadline = options.api_deadline(time.monotonic())
    wire.fetch.send(leader, _request(row, options), deadline)
    match wire.fetch.receive([leader.node_id], deadline):
        case FetchResponse(partitions=(fetched,), latency_ms=latency_ms):
            return judge_fetched(check, fetched, latency_ms)
        case FetchResponse(error_code=code):
            return fail(check, f"the Fetch was refused: {describe(code)}", _topic_fix(row.topic, describe(code)))
        case RequestFailure(error=reason):
            return failure(check, reason)
        case None:
            return fail(
                check, "no answer in time", "look at this broker's load, or give it more time with --timeout-ms"
            )


def _request(row: PartitionRow, options: ClientOptions) -> FetchRequest:
    assert row.partition is not None and row.start_offset is not None and row.leader_epoch is not None
    partition = FetchPartition(
        TopicPartition(row.topic, row.partition),
        None if row.topic_id is None else UUID(row.topic_id),
        row.start_offset,
        row.leader_epoch,
        NO_EPOCH,
        FETCH_BYTES,
    )
    return FetchRequest((partition,), 0, 1, FETCH_BYTES, options.read_committed)


_TOPIC_FIXES: Mapping[str, str] = {
    describe(TOPIC_AUTHORIZATION_FAILED): "allow it: kafka-acls --add --allow-principal User:... --operation Read "
    "--topic {topic} (Read includes Describe); or correct the name, for a topic that is not there looks the same",
    describe(UNKNOWN_TOPIC_OR_PARTITION): "correct the name, or create it: kafka-topics --create --topic {topic}",
}


def _topic_fix(topic: str, error: str | None) -> str:
    fix = _TOPIC_FIXES.get(
        error or "", "look at the log of its leader, and at `kafka-topics --describe --topic {topic}`"
    )
    return fix.format(topic=topic)
