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

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.protocol.admin import CreateTopicRequest
from pyspark_kafka_meta.kafka.protocol.apis import FETCH, LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH, PRODUCE, Api
from pyspark_kafka_meta.kafka.protocol.consumer_groups import OffsetFetchRequest
from pyspark_kafka_meta.kafka.protocol.fetch import FetchPartition, FetchRequest
from pyspark_kafka_meta.kafka.protocol.list_offsets import OffsetsResponse
from pyspark_kafka_meta.kafka.protocol.produce import ProduceResponse
from pyspark_kafka_meta.kafka.protocol.transactions import (
    AddPartitionsRequest,
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
    ProducerIdRequest,
)
from pyspark_kafka_meta.kafka.records.compression import Codec
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords
from pyspark_kafka_meta.model import NO_EPOCH, OffsetRange, TopicPartition
from pyspark_kafka_meta.read.fetching.partition_cursor import Emit, PartitionCursor
from tests.unit.kafka.protocol.responses import SENT, fetched, listed, message, payload, produced, received, versions
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
        "diverging_epoch": {"epoch": -1, "end_offset": -1},
        "current_leader": {"leader_id": -1, "leader_epoch": -1},
        "aborted_transactions": [{"producer_id": 9, "first_offset": 10}],
        "records": records,
    }
    return payload(message(FETCH, **fetched(*((TOPIC_ID, log.partition) for log in PARTITIONS)), **fields))


def rows_read(data: bytes) -> Iterator[tuple[TopicPartition, Row]]:
    """The rows of a response, as a reader gets them."""
    for part in REQUEST.decode(received(FETCH, 16, data), 3).partitions:
        span = OffsetRange(part.partition, TOPIC_ID, FROM, UNTIL, NO_EPOCH)
        cursor = PartitionCursor(span, read_committed=True, max_bytes=1 << 20, check_crcs=True)
        instruction = cursor.on_fetched(part, response_is_empty=False)
        if isinstance(instruction, Emit):
            records: FetchedRecords = instruction.records
            yield from ((part.partition, row) for row in rows_of(records))


def read_fetch(rng: random.Random) -> str:
    """Alternately damages bytes anywhere in the frame, with the old checksums, and batches, with correct checksums."""
    is_repaired = rng.random() < 0.5
    records = b"".join(repaired(rng) if is_repaired else batches(rng))
    data = fetch_frame(records) if is_repaired else mutate(fetch_frame(records), rng)
    rows = list(rows_read(data))
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
    response = SENT[METADATA].decode(received(METADATA, 12, mutate(payload(message(METADATA, 12)), rng)), 3)
    assert {topic.name for topic in response.topics} <= {"t"}
    assert all(one.node_id >= 0 and 0 < one.address.port < 65536 and one.address.host for one in response.brokers)
    partitions = [partition for topic in response.topics for partition in topic.partitions]
    assert all(one.partition >= 0 and one.leader_id >= -1 and one.leader_epoch >= -1 for one in partitions)
    return "read"


def read_offsets(api: Api, rng: random.Random) -> str:
    data = mutate(payload(message(api, **listed(("t", 0), ("t", 1)))), rng)
    response: OffsetsResponse = SENT[api].decode(received(api, api.max_version, data), 3)
    assert response.result.keys() <= set(PARTITIONS) | {TopicPartition("u", 0)}
    assert all(one.offset >= -1 and one.leader_epoch >= -1 for one in response.result.values())
    return "read"


def read_produce(rng: random.Random) -> str:
    """Any version: v8 has another encoding, older brokers name topics by name."""
    version = rng.choice(versions(PRODUCE))
    data = mutate(payload(message(PRODUCE, version, **produced((TOPIC_ID, 0), (TOPIC_ID, 1)))), rng)
    response: ProduceResponse = SENT[PRODUCE].decode(received(PRODUCE, version, data), 3)
    assert {one.partition for one in response.partitions} <= {*PARTITIONS, TopicPartition("u", 0)}
    assert len({one.partition for one in response.partitions}) == len(response.partitions)
    assert all(one.base_offset >= -1 for one in response.partitions)
    texts = [one.error_message for one in response.partitions]
    texts += [text for one in response.partitions for _, text in one.record_errors]
    assert all(text is None or text.isprintable() for text in texts)
    hints = [one.leader_hint for one in response.partitions if one.leader_hint is not None]
    assert all(hint.leader_id >= 0 and hint.leader_epoch >= -1 for hint in hints)
    return "read"


def read_other(api: Api, rng: random.Random) -> str:
    """Any version, as for Produce."""
    version, request = rng.choice(versions(api)), SENT[api]
    response = request.decode(received(api, version, mutate(payload(message(api, version)), rng)), 3)
    match request:
        case ProducerIdRequest() if response.error_code == 0:
            assert min(response.result) >= 0
        case FindCoordinatorRequest(keys):
            assert response.result
            assert response.result.keys() <= set(keys)
            assert all((found.broker is None) is (found.error_code != 0) for found in response.result.values())
        case AddPartitionsRequest(partitions=partitions):
            assert response.result.keys() <= set(partitions)
        case DescribeTransactionsRequest() if response.error_code == 0:
            assert min(response.result.producer) >= 0
            assert all(partition.partition >= 0 for partition in response.result.partitions)
        case OffsetFetchRequest(partitions=partitions):
            assert response.result.keys() <= set(partitions)
            assert all(offset >= 0 for offset in response.result.values())
        case CreateTopicRequest():
            assert response.result.isprintable()
    return "read"


READ: dict[str, Callable[[random.Random], str]] = {
    **{api.name: partial(read_other, api) for api in SENT},
    **{api.name: partial(read_offsets, api) for api in (LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH)},
    FETCH.name: read_fetch,
    METADATA.name: read_metadata,
    PRODUCE.name: read_produce,
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
