"""Reads mutated responses, as a child with bounded memory: `python mutated_responses.py <api> <count> <seed>`.

Each response goes the way that it would go in a reader: frame, message, our types, cursor, rows. A foreign error,
a row that was not written, or five seconds over one response end the process with the seed of the case.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16 import response as fetch

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.protocol import admin, frame_codec, list_offsets, metadata, produce, transactions
from pyspark_kafka_meta.kafka.protocol import fetch as translate_fetch
from pyspark_kafka_meta.kafka.protocol.admin import CreateTopicResponse, OffsetFetchRequest, OffsetFetchResponse
from pyspark_kafka_meta.kafka.protocol.fetch import FetchPartition, FetchRequest
from pyspark_kafka_meta.kafka.protocol.frame_codec import (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    Api,
    Exchange,
)
from pyspark_kafka_meta.kafka.protocol.list_offsets import LATEST_TIMESTAMP, OffsetQuery, OffsetsRequest
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition, ProduceRequest
from pyspark_kafka_meta.kafka.protocol.transactions import (
    AddPartitionsRequest,
    AddPartitionsResponse,
    CoordinatorResponse,
    DescribeTransactionsResponse,
    FindCoordinatorRequest,
    ProducerIdResponse,
)
from pyspark_kafka_meta.kafka.records.compression import Codec
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords
from pyspark_kafka_meta.model import NO_EPOCH, OffsetRange, TopicPartition
from pyspark_kafka_meta.read.fetching.partition_cursor import Emit, PartitionCursor
from tests.unit.kafka.protocol.responses import (
    ADMIN_REQUESTS,
    CORRELATION_ID,
    TRANSACTION_REQUESTS,
    admin_message,
    epochs_message,
    fetch_message,
    metadata_message,
    offsets_message,
    payload,
    produce_message,
    transaction_message,
    versions,
)
from tests.unit.kafka.records.handmade import (
    COMPRESS,
    ROWS,
    TRANSACTIONAL,
    Row,
    batch,
    batch_of,
    marker,
    record,
    repair_crc,
    rows_of,
)
from tests.unit.kafka.records.test_mutations import mutate

MORE_BYTES = 256 << 20
CASE_S = 5
TOPIC_ID = UUID(int=7)
PARTITIONS = [TopicPartition("t", number) for number in range(2)]
FROM, UNTIL = 2, 34
CONTENTS = {(row.key, row.value, row.timestamp, row.headers) for row in ROWS}
REQUEST = FetchRequest(
    tuple(FetchPartition(partition, TOPIC_ID, FROM, 3, 2, 1 << 20) for partition in PARTITIONS),
    max_wait_ms=500,
    min_bytes=1,
    max_bytes=1 << 20,
    read_committed=True,
    rack="",
)


def batches(rng: random.Random) -> list[bytes]:
    """Three batches of the same rows, in any codec, the second aborted; and the marker that says so."""
    return [*(one_batch(number, rng.choice(tuple(Codec))) for number in range(3)), marker(30, 9, commit=False)]


@cache
def one_batch(number: int, codec: Codec) -> bytes:
    rows = [Row(row.offset + 10 * number, row.key, row.value, row.timestamp, row.headers) for row in ROWS]
    return batch(rows, codec, attributes=TRANSACTIONAL * (number == 1), producer_id=9)


def repaired(rng: random.Random) -> list[bytes]:
    """A batch that was damaged before or after compression, with a correct checksum."""
    made, victim = batches(rng), rng.randrange(4)
    if rng.random() < 0.5:
        made[victim] = repair_crc(mutate(made[victim], rng))
        return made
    codec = rng.choice(tuple(Codec))
    body = b"".join(record(row) for row in ROWS)
    made[victim] = batch_of(
        COMPRESS[codec](mutate(body, rng)),
        attributes=codec,
        base_offset=10 * victim,
        last_offset_delta=4,
        record_count=len(ROWS),
    )
    return made


def fetch_frame(records: bytes) -> bytes:
    fields = {
        "error_code": ErrorCode.none,
        "high_watermark": 31,
        "last_stable_offset": 31,
        "diverging_epoch": fetch.EpochEndOffset(),
        "current_leader": fetch.LeaderIdAndEpoch(),
        "aborted_transactions": (fetch.AbortedTransaction(producer_id=9, first_offset=10),),
        "records": records,
    }
    return payload(fetch_message(*((TOPIC_ID, log.partition) for log in PARTITIONS), **fields))


def exchange(api: Api, version: int, data: bytes) -> Exchange:
    response = frame_codec.decode(api, version, CORRELATION_ID, memoryview(data))
    return Exchange(*response, version, CORRELATION_ID, 30, len(data), 1.0)


def fetched(data: bytes) -> Iterator[tuple[TopicPartition, Row]]:
    """The rows of a response, as a reader gets them."""
    response = translate_fetch.fetch_response(exchange(FETCH, 16, data), REQUEST, 3)
    for fetched in response.partitions:
        span = OffsetRange(fetched.partition, TOPIC_ID, FROM, UNTIL, NO_EPOCH)
        cursor = PartitionCursor(span, read_committed=True, max_bytes=1 << 20, check_crcs=True)
        instruction = cursor.on_fetched(fetched, response_is_empty=False)
        if isinstance(instruction, Emit):
            part: FetchedRecords = instruction.records
            yield from ((fetched.partition, row) for row in rows_of(part))


def read_fetch(rng: random.Random) -> str:
    """Alternately damages bytes anywhere in the frame, with the old checksums, and batches, with correct checksums."""
    is_repaired = rng.random() < 0.5
    records = b"".join(repaired(rng) if is_repaired else batches(rng))
    data = fetch_frame(records) if is_repaired else mutate(fetch_frame(records), rng)
    rows = list(fetched(data))
    places = [(partition, row.offset) for partition, row in rows]
    assert len(set(places)) == len(places) and places == sorted(
        places, key=lambda place: (place[0].partition, place[1])
    )
    assert all(FROM <= row.offset < UNTIL for _, row in rows)
    if not is_repaired:
        foreign = [row for _, row in rows if (row.key, row.value, row.timestamp, row.headers) not in CONTENTS]
        assert not foreign, foreign
    return "rows" if rows else "no rows"


def read_metadata(rng: random.Random) -> str:
    response = metadata.metadata_response(exchange(METADATA, 12, mutate(payload(metadata_message()), rng)), ["t"])
    assert {topic.name for topic in response.topics} <= {"t"}
    assert all(one.node_id >= 0 and 0 < one.address.port < 65536 and one.address.host for one in response.brokers)
    partitions = [partition for topic in response.topics for partition in topic.partitions]
    assert all(one.partition >= 0 and one.leader_id >= -1 and one.leader_epoch >= -1 for one in partitions)
    return "read"


def read_offsets(rng: random.Random) -> str:
    request = OffsetsRequest(tuple(OffsetQuery(log, LATEST_TIMESTAMP, 3) for log in PARTITIONS), False)
    data = mutate(payload(offsets_message(*PARTITIONS)), rng)
    responses = list_offsets.offsets_response(exchange(LIST_OFFSETS, 7, data), request, 3).offsets
    assert responses.keys() <= set(PARTITIONS)
    assert all(one.offset >= -1 and one.leader_epoch >= -1 for one in responses.values())
    return "read"


def read_epochs(rng: random.Random) -> str:
    request = OffsetsRequest(tuple(OffsetQuery(log, 3, 3) for log in PARTITIONS), by_epoch=True)
    data = mutate(payload(epochs_message(*PARTITIONS)), rng)
    responses = list_offsets.offsets_response(exchange(OFFSET_FOR_LEADER_EPOCH, 4, data), request, 3).offsets
    assert responses.keys() <= set(PARTITIONS)
    assert all(one.offset >= -1 and one.leader_epoch >= -1 for one in responses.values())
    return "read"


def read_produce(rng: random.Random) -> str:
    """Any version: v8 has another encoding, older brokers name topics by name."""
    version = rng.choice(versions(PRODUCE))
    by_id = version >= produce.TOPIC_IDS_SINCE
    message = produce_message(
        *((TOPIC_ID if by_id else log.topic, log.partition) for log in PARTITIONS), version=version
    )
    request = ProduceRequest(
        tuple(ProducePartition(log, TOPIC_ID if by_id else None, b"") for log in PARTITIONS), -1, 1
    )
    data = mutate(payload(message), rng)
    response = produce.produce_response(exchange(PRODUCE, version, data), request, 3)
    assert {one.partition for one in response.partitions} <= set(PARTITIONS)
    assert len({one.partition for one in response.partitions}) == len(response.partitions)
    assert all(one.base_offset >= -1 for one in response.partitions)
    texts = [one.error_message for one in response.partitions]
    texts += [text for one in response.partitions for _, text in one.record_errors]
    assert all(text is None or text.isprintable() for text in texts)
    hints = [one.leader_hint for one in response.partitions if one.leader_hint is not None]
    assert all(hint.leader_id >= 0 and hint.leader_epoch >= -1 for hint in hints)
    return "read"


def read_transaction(api: Api, rng: random.Random) -> str:
    """Any version, as for Produce."""
    version = rng.choice(versions(api))
    data = mutate(payload(transaction_message(api, version)), rng)
    request = TRANSACTION_REQUESTS[api]
    response = transactions.transaction_response(exchange(api, version, data), request, 3)
    match response:
        case ProducerIdResponse(error_code=0, producer=producer):
            assert min(producer) >= 0
        case CoordinatorResponse(coordinators=coordinators):
            assert isinstance(request, FindCoordinatorRequest)
            assert coordinators
            assert coordinators.keys() <= set(request.keys)
            assert all((found.broker is None) is (found.error_code != 0) for found in coordinators.values())
        case AddPartitionsResponse(errors=errors):
            assert isinstance(request, AddPartitionsRequest)
            assert errors.keys() <= set(request.partitions)
        case DescribeTransactionsResponse(error_code=0, transaction=transaction):
            assert transaction is not None
            assert min(transaction.producer) >= 0
            assert all(partition.partition >= 0 for partition in transaction.partitions)
    return "read"


def read_admin(api: Api, rng: random.Random) -> str:
    """Any version, as for Produce."""
    version, request = rng.choice(versions(api)), ADMIN_REQUESTS[api]
    data = mutate(payload(admin_message(api, version)), rng)
    response = admin.admin_response(exchange(api, version, data), request, 3)
    match response:
        case OffsetFetchResponse(offsets=offsets):
            assert isinstance(request, OffsetFetchRequest)
            assert offsets.keys() <= set(request.partitions)
            assert all(offset >= 0 for offset in offsets.values())
        case CreateTopicResponse(error_text=text):
            assert text.isprintable()
    return "read"


READ: dict[str, Callable[[random.Random], str]] = {
    FETCH.name: read_fetch,
    METADATA.name: read_metadata,
    LIST_OFFSETS.name: read_offsets,
    OFFSET_FOR_LEADER_EPOCH.name: read_epochs,
    PRODUCE.name: read_produce,
    **{api.name: partial(read_transaction, api) for api in TRANSACTION_REQUESTS},
    **{api.name: partial(read_admin, api) for api in ADMIN_REQUESTS},
}


def attack(api: str, count: int, seed: int) -> Counter[str]:
    """How often reading ended how. Exceptions that are not ours go through, with a note of the case."""
    ends: Counter[str] = Counter()
    for number in range(count):
        signal.alarm(CASE_S)
        try:
            ends[READ[api](random.Random(f"{seed}/{number}"))] += 1
        except KafkaMetaError as error:
            ends[type(error).__name__] += 1
        except Exception as error:
            error.add_note(f"{api}, seed {seed}, number {number}")
            raise
    signal.alarm(0)
    return ends


def bound_memory() -> None:
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_BYTES,) * 2)


if __name__ == "__main__":
    attack(sys.argv[1], 20, 0)  # which imports what is imported late
    bound_memory()
    sys.stdout.write(json.dumps(attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
