"""Measures the records per second with typed values, beside values as bytes and beside Spark's own functions.

    python -m benchmarks.typed_values [--rounds 5] [--records 3000000] [--json FILE] [CASE ...]

A topic of 6 partitions has 100,000 different values over and over, in Confluent's frames: 8 plain fields as Avro,
Protobuf or JSON; in the case nested, Avro records in an array and an array of strings; in the cases with nulls, each
49th value is null; in the other cases of JSON, each field has a line of its own, or a map of 1 to 4 strings is another
field. This source takes the schema from a registry; after Spark's source, `from_avro`, `from_protobuf` or `from_json`
decodes what `substring` leaves of a value. Before the turns, all of these must have read the same values.

In the cases of writing, the typed rows of such a topic, cached in the memory of Spark, are written in the same frames,
by this sink, and by Spark's after `to_avro`, `to_protobuf` or `to_json`, as in `benchmarks.write_throughput`.

Turns, figures, ratios and CPU seconds are those of `benchmarks.throughput`. All readers have the same columns; for a
row of the noop sink, Spark copies each field of a typed value, or the bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks import peers, write_peers
from benchmarks.encoded_values import ENCODED, MESSAGE, Encoded
from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.jvm_source import jvm_format_jars
from benchmarks.peers import Reader, take_turns
from benchmarks.throughput import PARTITIONS, Turn, read, result_rows
from benchmarks.topics import delete, fill_with, new_topic
from benchmarks.write_peers import Writer
from benchmarks.write_throughput import write
from pyspark_kafka_meta.options import Framing
from pyspark_kafka_meta.testing import MockRegistry
from pyspark_kafka_meta.typed.framing import frame

DIFFERENT_VALUES = 100_000
WRITTEN = {"writing": "avro", "writing_protobuf": "protobuf", "writing_json": "json"}
"""Cases of writing, and what they write."""
CASES = (*ENCODED, *WRITTEN)


class TypedTopic(NamedTuple):
    """A topic of typed values.

    Attributes:
        frame: before each value.
        options: of this source and sink.
    """

    name: str
    encoded: Encoded
    frame: bytes
    options: dict[str, str]

    @property
    def readers(self) -> list[Reader]:
        """With typed values; this source first."""
        payload = F.expr(f"substring(value, {len(self.frame) + 1})")
        value, function = self.encoded.decode(payload), f"from_{self.encoded.format}"
        return [
            Reader("kafkameta, typed", peers.OURS.source, self.options),
            *(jvm._replace(name=f"{jvm.name}, {function}", value=value) for jvm in (peers.JVM, peers.TUNED_JVM)),
        ]

    @property
    def writers(self) -> list[Writer]:
        """Of typed values to other topics; this sink first, with the schema of subject `MESSAGE`."""
        value = F.concat(F.lit(self.frame), self.encoded.encode(F.col("value")))
        own = {**self.options, "valueSubjectNameStrategy": "record", "valueRecordName": MESSAGE}
        return [
            Writer("kafkameta, typed", write_peers.OURS.sink, own),
            *(
                jvm._replace(name=f"{jvm.name}, to_{self.encoded.format}", value=value)
                for jvm in (write_peers.JVM, write_peers.TUNED_JVM)
            ),
        ]


@contextmanager
def typed_topic(bootstrap_servers: str, registry: MockRegistry, encoded: Encoded, records: int) -> Iterator[TypedTopic]:
    """Inside `with`, a topic with as many records."""
    topic = new_topic(bootstrap_servers, "typed", PARTITIONS)
    schema_id = registry.register(f"{topic}-value", encoded.schema, encoded.format.upper())
    before = frame(schema_id, Framing.CONFLUENT.id_bytes) + encoded.message_indexes
    values = [None if value is None else before + value for value in encoded.values]
    fill_with(values, bootstrap_servers, topic, PARTITIONS, records)
    options = {"valueFormat": encoded.format, "schema.registry.url": registry.url}
    yield TypedTopic(topic, encoded, before, options)
    delete(bootstrap_servers, topic)


def check(spark: SparkSession, bootstrap_servers: str, topic: str, records: int, readers: Sequence[Reader]) -> None:
    """Raises RuntimeError if the readers do not have as many rows, with the same values."""
    digest = F.sum(F.xxhash64(F.to_json("value")).cast("decimal(38)"))  # maps have no hash
    expected = None
    for reader in readers:
        found = reader.read(spark, bootstrap_servers, topic).agg(F.count("*"), digest).first()
        expected = expected or found
        if found is None or found[0] != records or found != expected:
            raise RuntimeError(f"{reader.name} read {found} instead of {records} rows {expected}")


def read_turns(
    spark: SparkSession, bootstrap_servers: str, topic: TypedTopic, rounds: int, records: int
) -> dict[str, list[Turn]]:
    ours, *others = topic.readers
    check(spark, bootstrap_servers, topic.name, records, [ours, *others])
    as_bytes = Reader("kafkameta, bytes", peers.OURS.source)
    return take_turns([ours, as_bytes, *others], rounds, partial(read, spark, bootstrap_servers, topic.name))


def write_turns(
    registry: MockRegistry, spark: SparkSession, bootstrap_servers: str, topic: TypedTopic, rounds: int, records: int
) -> dict[str, list[Turn]]:
    registry.register(MESSAGE, topic.encoded.schema, topic.encoded.format.upper())
    rows = topic.readers[0].read(spark, bootstrap_servers, topic.name).select("key", "value")
    rows.persist(StorageLevel.MEMORY_ONLY).count()
    try:
        return take_turns(topic.writers, rounds, partial(write, rows, bootstrap_servers, "none", records))
    finally:
        rows.unpersist()


def main() -> None:
    parser = argument_parser(__doc__, rounds=5, records=3_000_000)
    parser.add_argument("cases", nargs="*", metavar="CASE", default=list(CASES), help=f"of {', '.join(CASES)}")
    arguments = parser.parse_args()
    rounds, records = arguments.rounds, arguments.records
    formats = {WRITTEN.get(case, case).partition("_")[0] for case in arguments.cases}
    jars = jvm_format_jars("avro", *({"protobuf"} & formats))
    rows = []
    with brokers() as bootstrap_servers, spark_session(more_jars=jars) as spark, MockRegistry() as registry:
        for case in arguments.cases:
            encoded = ENCODED[WRITTEN.get(case, case)](DIFFERENT_VALUES)
            take = partial(write_turns, registry) if case in WRITTEN else read_turns
            with typed_topic(bootstrap_servers, registry, encoded, records) as topic:
                played = take(spark, bootstrap_servers, topic, rounds, records)
            value_bytes = round(statistics.fmean(len(value or b"") for value in encoded.values))
            rows += result_rows({"case": case, "value_bytes": value_bytes}, "reader_or_writer", records, played)
    report(f"Thousands of records a second, {rounds} turns each", rows, arguments.json)


if __name__ == "__main__":
    main()
