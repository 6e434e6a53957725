"""Check whether a task could write to the topics, without writing a record.

Each leader gets a Produce request with a damaged record batch for each of its partitions. Kafka's brokers check rights
(`KafkaApis`), leadership and in-sync replicas (`Partition.appendRecordsToLeader`) before the checksum
(`UnifiedLog.append`): after CORRUPT_MESSAGE nothing else is wrong. Brokers do not log this error.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing

from pyspark_kafka_meta.errors import AuthorizationError, KafkaMetaError
from pyspark_kafka_meta.events.origin import cli_origin
from pyspark_kafka_meta.events.publisher import EventPublisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.client.producer_state import NO_SEQUENCE
from pyspark_kafka_meta.kafka.metadata.snapshot import MetadataSnapshot
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    CORRUPT_MESSAGE,
    NOT_ENOUGH_REPLICAS,
    Action,
    broker_error,
    describe,
    write_action,
)
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition, ProduceRequest, ProduceResponse
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure
from pyspark_kafka_meta.kafka.records.batches import write_batch
from pyspark_kafka_meta.kafka.records.compression import Codec
from pyspark_kafka_meta.model import NO_PRODUCER, Broker, RefreshReason, TopicPartition, name_partitions
from pyspark_kafka_meta.options import ClientOptions, SinkOptions
from pyspark_kafka_meta.options.case_insensitive import CaseInsensitiveMap
from pyspark_kafka_meta.options.definitions import documented_names
from pyspark_kafka_meta.options.fetch import FETCH_OPTIONS
from pyspark_kafka_meta.options.producer import PRODUCER_OPTIONS
from pyspark_kafka_meta.options.transactions import TRANSACTION_OPTIONS
from pyspark_kafka_meta.tools.doctor.findings import Finding, fail, failure, ok, warn
from pyspark_kafka_meta.tools.doctor.topic_checks import topic_fix

CHECKED_TIMEOUT_MS = 1_000
"""Without `kafka.transaction.timeout.ms`: brokers accept it whatever their maximum. No transaction begins."""
_RECORD_COUNT = slice(57, 61)
"""In a record batch: `kafka/records/batches.py` has the layout."""


def damaged_batch() -> bytes:
    """A record batch with a wrong checksum. It has no records, in case that a broker accepts it."""
    batch = bytearray(write_batch(b"", Codec.NONE, 0, 0, NO_PRODUCER, NO_SEQUENCE, record_count=1))
    batch[_RECORD_COUNT] = bytes(4)
    return bytes(batch)


def split_options(cluster: Mapping[str, str]) -> tuple[dict[str, str], SinkOptions]:
    """The `kafka.*` options without those of writing alone, and all parsed for writing.

    Raises:
        OptionError: an option is invalid, or is neither of reading nor of writing.
    """
    given = CaseInsensitiveMap(cluster)
    writing = SinkOptions.parse(given.without(*documented_names(FETCH_OPTIONS)))
    return given.without(*documented_names(PRODUCER_OPTIONS | TRANSACTION_OPTIONS)), writing


def write_findings(topics: Collection[str], options: ClientOptions, writing: SinkOptions) -> Iterator[Finding]:
    """Findings on writes to these topics.

    Args:
        options: with bootstrap addresses that respond.
    """
    with closing(KafkaClient(options, EventPublisher((), cli_origin()))) as client:
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
    client.wire.produce.send(leader, request, client.api_deadline())
    match client.wire.produce.receive([leader.node_id], math.inf):  # the request has its own deadline
        case ProduceResponse() as response:
            yield from judge_refusals(check, topic, response)
        case RequestFailure(error=reason):
            yield failure(check, reason)


def _transaction_finding(client: KafkaClient, sink: str, timeout_ms: int | None) -> Finding:
    """With an id of its own, beside those of tasks, which it would fence."""
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
