"""Check whether tasks could read and write the topics: existence, permissions, leaders, in-sync replicas, requests.

Each leader gets a small Fetch, and with `--write` a Produce request with a damaged record batch for each of its
partitions, so that no record is written. Kafka's brokers check rights (`KafkaApis`), leadership and in-sync replicas
(`Partition.appendRecordsToLeader`) before the checksum (`UnifiedLog.append`): after CORRUPT_MESSAGE nothing else is
wrong. Brokers do not log this error.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from uuid import UUID

from pyspark_kafka_meta.errors import (
    AuthorizationError,
    CorruptBatchError,
    KafkaMetaError,
    UnsupportedRecordFormatError,
)
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.client.producer_state import NO_SEQUENCE
from pyspark_kafka_meta.kafka.metadata.snapshot import MetadataSnapshot
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    CORRUPT_MESSAGE,
    NOT_ENOUGH_REPLICAS,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    Action,
    broker_error,
    describe,
    write_action,
)
from pyspark_kafka_meta.kafka.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.network_interface import Network, RequestFailure
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition, ProduceRequest, ProduceResponse
from pyspark_kafka_meta.kafka.records.batches import read_batch_headers, write_batch
from pyspark_kafka_meta.kafka.records.compression import Codec
from pyspark_kafka_meta.model import (
    NO_EPOCH,
    NO_LEADER,
    NO_PRODUCER,
    Broker,
    RefreshReason,
    TopicPartition,
    name_partitions,
    shortened,
)
from pyspark_kafka_meta.options import (
    ChangesOptions,
    ClientOptions,
    FetchOptions,
    ProducerOptions,
    RegistryOptions,
    SinkOptions,
    SourceOptions,
    TransactionOptions,
    TypedValuesOptions,
    option_names,
)
from pyspark_kafka_meta.options.unknown_options import CaseInsensitiveMap
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.tables.rows import PartitionRow
from pyspark_kafka_meta.tools.doctor import Finding, Verdict, fail, failure, ok, warn

FETCH_BYTES = 1
"""A broker then sends the first record batch alone, whole (KIP-74)."""

MAX_NAMED = 20
CHECKED_TIMEOUT_MS = 1_000
"""Without `kafka.transaction.timeout.ms`: brokers accept it whatever their maximum. No transaction begins."""
_RECORD_COUNT = slice(57, 61)
"""In a record batch: `kafka/records/batches.py` has the layout."""


_TOPIC_FIXES: Mapping[str, str] = {
    describe(TOPIC_AUTHORIZATION_FAILED): "allow it: kafka-acls --add --allow-principal User:... "
    "--operation {operation} --topic {topic} ({operation} includes Describe); "
    "or correct the name: a missing topic looks the same",
    describe(UNKNOWN_TOPIC_OR_PARTITION): "correct the name, or create it: kafka-topics --create --topic {topic}",
}


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
    with closing(KafkaNetwork(ConnectionSettings.of(options))) as network:
        for row in partition_of_each_leader(rows):
            if row.leader_id in live:
                deadline = options.api_deadline(time.monotonic())
                yield _fetch_finding(network, live[row.leader_id], _request(row, fetch), deadline, must_read)


def judge_topic(rows: Sequence[PartitionRow], operation: str = "Read") -> Iterator[Finding]:
    """Findings on a topic and on at most `MAX_NAMED` of its partitions, the worst first; `operation` as in
    `topic_fix`."""
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


def _fetch_finding(
    network: Network, leader: Broker, request: FetchRequest, deadline: float, must_read: bool
) -> Finding:
    topic = request.partitions[0].partition.topic
    check = f"fetch {topic} from broker {leader.node_id}"
    network.fetch.send(leader, request, deadline)
    match network.fetch.receive([leader.node_id], deadline):
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


def topic_fix(topic: str, error: str | None, operation: str = "Read") -> str:
    """What to do about an error of a topic; `operation` is the right to propose against a missing right."""
    fix = _TOPIC_FIXES.get(error or "", "see the log of its leader, and `kafka-topics --describe --topic {topic}`")
    return fix.format(topic=topic, operation=operation)


def damaged_batch() -> bytes:
    """A record batch with a wrong checksum. It has no records, in case that a broker accepts it."""
    batch = bytearray(write_batch(b"", Codec.NONE, 0, 0, NO_PRODUCER, NO_SEQUENCE, record_count=1))
    batch[_RECORD_COUNT] = bytes(4)
    return bytes(batch)


def reading_query(given: Mapping[str, str], topics: Sequence[str]) -> tuple[dict[str, str], SourceOptions]:
    """The options of brokers, empty to check none; and all options of a query that reads the topics. Raises
    OptionError."""
    brokers, given = _with_servers(given)
    return brokers, SourceOptions.parse({**given, "subscribe": ",".join(topics) or "any"})


def writing_query(given: Mapping[str, str], topic: str) -> tuple[dict[str, str], SinkOptions]:
    """As `reading_query`, of a query that writes the topic. Its options may be beside those of reading."""
    brokers, given = _with_servers(given)
    return brokers, SinkOptions.parse({**given.without(*option_names(FetchOptions)), "topic": topic})


def _with_servers(given: Mapping[str, str]) -> tuple[dict[str, str], CaseInsensitiveMap[str]]:
    """The options of brokers; and all, with servers that nobody asks if there are none."""
    of_values = option_names(TypedValuesOptions, RegistryOptions, ChangesOptions)
    of_writes = option_names(ProducerOptions, TransactionOptions)
    brokers = CaseInsensitiveMap(given).without(*of_values, *of_writes)
    return brokers, CaseInsensitiveMap(given if brokers else {"kafka.bootstrap.servers": "localhost:9092", **given})


def write_findings(topics: Collection[str], options: ClientOptions, writing: SinkOptions) -> Iterator[Finding]:
    """Findings on writes to these topics; the bootstrap addresses of `options` respond."""
    with closing(client_without_events(options)) as client:
        yield from check_writes(client, topics, writing)


def check_writes(client: KafkaClient, topics: Collection[str], writing: SinkOptions) -> Iterator[Finding]:
    """As `write_findings`. Topics and partitions without a leader have no finding: the check of topics reports them,
    and the first exactly-once write creates the topic of decisions."""
    producer, transaction = writing.producer, writing.transaction
    if transaction.transactional_id is not None:
        topics = {*topics, transaction.decisions_topic}
    client.cache.track(topics)
    try:
        snapshot = client.cache.refresh(RefreshReason.BOOTSTRAP, client.api_deadline())
    except KafkaMetaError as error:
        yield failure("writes", error)
        return
    for topic in sorted(topics):
        for leader, partitions in _by_leader(snapshot, topic):
            entries = (ProducePartition(each, snapshot.topic_id(topic), damaged_batch()) for each in partitions)
            request = ProduceRequest(tuple(entries), producer.acks, client.options.request_timeout_ms)
            yield from _probe(client, topic, leader, request)
    if transaction.transactional_id is not None:
        yield _transaction_finding(client, transaction.transactional_id, transaction.timeout_ms)
    elif producer.idempotent:
        yield _producer_id_finding(client)


def judge_refusals(check: str, topic: str, response: ProduceResponse) -> Iterator[Finding]:
    """A finding for each error code in the response to damaged batches."""
    refused: defaultdict[int, list[TopicPartition]] = defaultdict(list)
    for produced in response.partitions:
        refused[produced.error_code].append(produced.partition)
    for code, partitions in sorted(refused.items()):
        if code == CORRUPT_MESSAGE:
            yield ok(check, f"{name_partitions(partitions)} can be written, responded in {response.latency_ms:.1f} ms")
        else:
            yield _refusal(check, topic, code, name_partitions(partitions))


def _refusal(check: str, topic: str, code: int, partitions: str) -> Finding:
    if code == 0:
        what = f"{partitions} accepted an empty record batch with a wrong checksum, at which reads may fail"
        return warn(check, what, "use brokers that verify checksums, and skip the batch with onCorruptBatch")
    error = str(broker_error(f"{partitions} cannot be written", code, topic, "WRITE"))
    if code == NOT_ENOUGH_REPLICAS:
        fix = f"start the brokers of the other replicas, or lower min.insync.replicas of topic {topic}"
        return fail(check, f"{error}: fewer replicas are in sync than the topic's min.insync.replicas", fix)
    if write_action(code) is Action.REFRESH:
        return warn(check, f"{error}: leaders are moving", "run the doctor again: tasks find the new leaders")
    return fail(check, error, topic_fix(topic, describe(code), "Write"))


def _by_leader(snapshot: MetadataSnapshot, topic: str) -> Iterable[tuple[Broker, list[TopicPartition]]]:
    led: defaultdict[Broker, list[TopicPartition]] = defaultdict(list)
    for partition in snapshot.partitions(topic):
        if (leader := snapshot.leader(partition)) is not None:
            led[leader.broker].append(partition)
    return sorted(led.items())


def _probe(client: KafkaClient, topic: str, leader: Broker, request: ProduceRequest) -> Iterator[Finding]:
    check = f"write {topic} to broker {leader.node_id}"
    client.network.produce.send(leader, request, client.api_deadline())
    match client.network.produce.receive([leader.node_id], math.inf):  # the request has its own deadline
        case ProduceResponse() as response:
            yield from judge_refusals(check, topic, response)
        case RequestFailure(error=reason):
            yield failure(check, reason)


def _transaction_finding(client: KafkaClient, sink: str, timeout_ms: int | None) -> Finding:
    """With an id of its own: an id of a task would be fenced."""
    check, transactional_id = "exactly-once", f"{sink}/doctor"
    try:
        client.coordinators.fence([transactional_id], timeout_ms or CHECKED_TIMEOUT_MS, client.api_deadline())
    except AuthorizationError as error:
        fix = f"allow this user WRITE on transactional ids that begin with {sink} (prefixed)"
        return fail(check, str(error), fix)
    except KafkaMetaError as error:
        return fail(check, str(error), "see the log of the brokers, which coordinate transactions")
    return ok(check, f"this user may write in transactions, responded for transactional id {transactional_id}")


def _producer_id_finding(client: KafkaClient) -> Finding:
    check = "idempotence"
    try:
        producer = client.coordinators.producer_id(client.api_deadline())
    except AuthorizationError as error:
        what, _, fix = str(error).rpartition(": ")
        return fail(check, what, fix)
    except KafkaMetaError as error:
        return fail(check, str(error), "see the log of the controller, from which brokers get producer ids")
    return ok(check, f"this user may write idempotently, responded with producer id {producer.producer_id}")
