"""Measures the records per second that `read_arrow` reads on one core, beside others that read Kafka into Arrow.

    python -m benchmarks.read_arrow [--rounds 3] [--records 3000000] [--json FILE]

A topic of 6 partitions has values of 200 bytes; slower peers have a smaller topic, so that their turns too take some
seconds. A turn reads the whole topic into record batches and counts the rows, in a new process, which has one core for
all its threads. It connects and asks for metadata within the time of its turn, and imports before. A figure is the
median of the turns; a ratio is the median of the ratios of rates in the same round.

Peers: confluent-kafka's `consume()`, whose messages become the same columns; kafkarrow (once kafkars), which has fewer
columns and orders rows by their times. A peer whose package is missing is left out. Turns of daft's `read_kafka`
did not end within two minutes; DuckDB's extension tributary is in no package index; polars, pathway, bytewax and
quixstreams do not read Kafka into Arrow.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from benchmarks.harness import argument_parser, brokers, report
from benchmarks.peers import CONSUME, CONSUME_RECORDS, CONSUME_TIMEOUT_S, arrow_of, take_turns
from benchmarks.topics import delete, fill, new_topic
from pyspark_kafka_meta import read_arrow

PARTITIONS = 6
VALUE_BYTES = 200
CODECS = ("none", "lz4")


class Peer(NamedTuple):
    """A way to read a topic into Arrow.

    Attributes:
        read: takes the bootstrap servers, the topic and its number of records.
        module: imported before.
        share: of the records, that its topic has.
    """

    name: str
    read: Callable[[str, str, int], Iterator[pa.RecordBatch]]
    module: str
    share: float = 1


class Turn(NamedTuple):
    krec_s: float
    first_ms: float


def _ours(servers: str, topic: str, records: int) -> Iterator[pa.RecordBatch]:
    yield from read_arrow(**{"kafka.bootstrap.servers": servers, "subscribe": topic})


def _consume(servers: str, topic: str, records: int) -> Iterator[pa.RecordBatch]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "peer", "log_level": 0})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    while records > 0:
        messages = consumer.consume(min(CONSUME_RECORDS, records), CONSUME_TIMEOUT_S)
        if not messages:
            raise TimeoutError("no records came")
        records -= len(messages)
        yield arrow_of(topic, messages)
    consumer.close()


def _kafkarrow(servers: str, topic: str, records: int) -> Iterator[pa.RecordBatch]:
    from kafkarrow import ConsumerManager, SourceTopic

    manager = ConsumerManager({"bootstrap.servers": servers}, [SourceTopic.from_earliest(topic)])
    while records > 0:
        batch = manager.poll(timeout_ms=1_000)
        records -= batch.num_rows
        yield batch


PEERS = (
    Peer("read_arrow", _ours, "pyspark_kafka_meta.tools.cli.read"),
    Peer(CONSUME.name, _consume, "confluent_kafka", 0.2),
    Peer("kafkarrow", _kafkarrow, "kafkarrow", 0.01),
)


def _count(peer: Peer, servers: str, topic: str, records: int) -> Turn:
    """In a process of its own. Raises RuntimeError if other rows were read."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import_module(peer.module)
    began, first_s, rows = time.perf_counter(), 0.0, 0
    for batch in peer.read(servers, topic, records):
        rows += batch.num_rows
        first_s = first_s or (rows > 0) * (time.perf_counter() - began)
    if rows != records:
        raise RuntimeError(f"{peer.name} read {rows} rows instead of {records}")
    return Turn(records / (time.perf_counter() - began) / 1000, first_s * 1000)


def _rows(codec: str, played: dict[str, list[Turn]]) -> Iterator[dict[str, Any]]:
    ours = played[PEERS[0].name]
    for name, turns in played.items():
        ratios = [own.krec_s / turn.krec_s for turn, own in zip(turns, ours, strict=True)]
        yield {
            "codec": codec,
            "reader": name,
            "krec_s": round(statistics.median(turn.krec_s for turn in turns)),
            "read_arrow_is_times_as_fast": round(statistics.median(ratios), 2),
            "first_batch_ms": round(statistics.median(turn.first_ms for turn in turns)),
        }


def _filled(servers: str, codec: str, records: int) -> tuple[str, int]:
    """A new topic, and how many records it has."""
    topic = new_topic(servers, "arrow", PARTITIONS)
    fill(servers, topic, PARTITIONS, records, VALUE_BYTES, codec)
    return topic, records


def main() -> None:
    arguments = argument_parser(__doc__, rounds=3, records=3_000_000).parse_args()
    peers = [peer for peer in PEERS if find_spec(peer.module) is not None]
    rows: list[dict[str, Any]] = []
    with brokers() as servers, multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for codec in CODECS:
            topics = {
                share: _filled(servers, codec, int(arguments.records * share))
                for share in {each.share for each in peers}
            }

            def turn(peer: Peer, topics: dict[float, tuple[str, int]] = topics) -> Turn:
                return pool.apply(_count, (peer, servers, *topics[peer.share]))

            rows += _rows(codec, take_turns(peers, arguments.rounds, turn))
            delete(servers, *(topic for topic, _ in topics.values()))
    report(f"Records a second on one core, {arguments.rounds} turns each", rows, arguments.json)


if __name__ == "__main__":
    main()
