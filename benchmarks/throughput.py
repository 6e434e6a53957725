"""How many records a second Spark reads through this source, beside its own JVM source, in one Spark session.

    python -m benchmarks.throughput [--records 3000000] [--rounds 5]

Starts a real three-broker Kafka (or uses KAFKAMETA_BOOTSTRAP_SERVERS), fills one topic for each codec, warms every
reader up once, then lets them take turns. A figure is the best of its turns; ratios compare figures of the same run.
Every turn reads the whole topic into Spark's noop sink, which uses each column of each row and keeps none.
"""

from __future__ import annotations

import statistics
import time
import uuid
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from benchmarks.harness import argument_parser, brokers, report, spark_session

PARTITIONS = 6
VALUE_BYTES = 200
TUNED = {"kafka.max.poll.records": "20000", "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024)}


class Reader(NamedTuple):
    """One way of reading the topic: a Spark format and options beside those that all share."""

    name: str
    source: str
    options: dict[str, str]


READERS = (
    Reader("kafkameta", "kafkameta", {}),
    Reader("JVM source, defaults", "kafka", {}),
    Reader("JVM source, tuned", "kafka", TUNED),
)


def fill(bootstrap_servers: str, topic: str, codec: str, records: int) -> None:
    """Make `topic` and produce `records` values of `VALUE_BYTES` to it, evenly over its partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(30)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "compression.type": codec,
            "linger.ms": 50,
            "batch.size": 131072,
            "acks": "1",
            "queue.buffering.max.messages": 500_000,
        }
    )
    # Half of each value is random text, so that a codec has something to do and something to gain.
    stock = [uuid.uuid4().hex.encode() * 3 + b"x" * (VALUE_BYTES - 96) for _ in range(1000)]
    for number in range(records):
        while True:
            try:
                producer.produce(topic, stock[number % 1000], b"%d" % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise RuntimeError(f"{topic} was not filled in time")


def read_seconds(spark: SparkSession, reader: Reader, bootstrap_servers: str, topic: str) -> float:
    """Wall-clock seconds that one batch query takes, planning included."""
    started = time.perf_counter()
    rows = spark.read.format(reader.source).options(**reader.options).option("subscribe", topic)
    rows.option("kafka.bootstrap.servers", bootstrap_servers).load().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def measure(spark: SparkSession, bootstrap_servers: str, topic: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each turn by reader, the readers taking turns, after one turn each that does not count."""
    for reader in READERS:
        read_seconds(spark, reader, bootstrap_servers, topic)
    seconds: dict[str, list[float]] = {reader.name: [] for reader in READERS}
    for _ in range(rounds):
        for reader in READERS:
            seconds[reader.name].append(read_seconds(spark, reader, bootstrap_servers, topic))
    return seconds


def result_rows(codec: str, records: int, seconds: dict[str, list[float]]) -> list[dict[str, object]]:
    """One row a reader: best and median thousands of records a second, and how this source compares with it."""
    ours = min(seconds["kafkameta"])
    return [
        {
            "codec": codec,
            "reader": name,
            "best_krec_s": round(records / min(turns) / 1000),
            "median_krec_s": round(records / statistics.median(turns) / 1000),
            "kafkameta_is_faster_by": round(min(turns) / ours, 2),
        }
        for name, turns in seconds.items()
    ]


def main() -> None:
    arguments = argument_parser(__doc__, records=3_000_000, rounds=5).parse_args()
    rows = []
    with brokers() as bootstrap_servers, spark_session() as spark:
        for codec in ("none", "lz4"):
            topic = f"throughput-{codec}-{uuid.uuid4().hex[:8]}"
            fill(bootstrap_servers, topic, codec, arguments.records)
            seconds = measure(spark, bootstrap_servers, topic, arguments.rounds)
            rows += result_rows(codec, arguments.records, seconds)
    title = f"{arguments.records:,} records of {VALUE_BYTES} B, {PARTITIONS} partitions, {arguments.rounds} turns each"
    report(title, rows, arguments.json)


if __name__ == "__main__":
    main()
