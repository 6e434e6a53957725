"""Batches, streams, typed values and the tables through Spark Connect, in an environment with `pyspark[connect]`:
`make connect`.

PySpark starts the server on this machine. The server finds the source in its own Python, as any Spark does.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyspark
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

import pyspark_kafka_meta as kafkameta
from pyspark_kafka_meta.testing import LocalKafka, MockCluster, MockRegistry
from tests.compat.smoke import VALUES, fill, read_batch, read_stream, write_batch, write_stream
from tests.consumer import consume_committed
from tests.kafka.cluster_tools import poll_until


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            with MockCluster() as cluster:
                try_mock_brokers(spark, cluster, Path(folder))
            with LocalKafka(brokers=1) as kafka:
                copy_exactly_once(spark, kafka.bootstrap_servers, Path(folder) / "copy")
                copy_typed_values(spark, kafka.bootstrap_servers, Path(folder) / "typed")
    finally:
        spark.stop()
    print(f"pyspark {pyspark.__version__}: Spark Connect reads and writes batches, streams and typed values")  # noqa: T201


def try_mock_brokers(spark: SparkSession, cluster: MockCluster, folder: Path) -> None:
    fill(cluster)
    where = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    events: dict[str, Any] = {"eventsPath": str(folder / "events")}
    options = where | events | {"subscribe": "t", "startingOffsets": "earliest"}
    read_batch(spark, options)
    read_stream(spark, options, folder)
    read_stream_to_memory(spark, options)
    write_batch(spark, cluster.bootstrap_servers)
    write_stream(spark, cluster.bootstrap_servers, folder)
    look_at_tables(spark, where, events)


def read_stream_to_memory(spark: SparkSession, options: dict[str, str]) -> None:
    rows = spark.readStream.format("kafkameta").options(**options).load().selectExpr("CAST(value AS STRING) AS value")
    query = rows.writeStream.format("memory").queryName("in_memory").start()
    query.processAllAvailable()
    query.stop()
    assert sorted(row.value for row in spark.table("in_memory").collect()) == sorted(VALUES)


def look_at_tables(spark: SparkSession, where: dict[str, str], events: dict[str, Any]) -> None:
    poll_until(lambda: roles(spark, events) == {"planner", "reader"})  # threads write events, perhaps later
    assert kafkameta.caches(spark, **events).count() > 0
    assert kafkameta.brokers(spark, **where).count() == 3
    assert kafkameta.partitions(spark, **where, subscribe="t").count() == 2


def roles(spark: SparkSession, events: dict[str, Any]) -> set[str]:
    return {row.role for row in kafkameta.refresh_events(spark, **events).select("role").distinct().collect()}


def copy_exactly_once(spark: SparkSession, servers: str, folder: Path) -> None:
    """A stream from topic to topic, stopped, continued, and restarted without the commit of its last micro-batch."""
    create_topics(servers, "source", "copy")
    where, events = {"kafka.bootstrap.servers": servers}, {"eventsPath": str(folder / "events")}
    source = where | events | {"subscribe": "source", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    rows = spark.readStream.format("kafkameta").options(**source).load().select("key", "value")
    once = {"topic": "copy", "kafka.transactional.id": "copy", "checkpointLocation": str(folder / "checkpoint")}
    sink = rows.writeStream.format("kafkameta").options(**where, **events, **once)
    for values in (VALUES[:50], VALUES[50:], []):
        produce(servers, "source", values)
        query = sink.start()
        query.processAllAvailable()
        query.stop()
        last = max((folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda commit: int(commit.name))
        for file in (last, last.with_name(f".{last.name}.crc")):
            file.unlink(missing_ok=True)
    copies = sorted((message.value() or b"").decode() for message in consume_committed(servers, "copy"))
    assert copies == sorted(VALUES), copies
    poll_until(lambda: roles(spark, events) == {"planner", "reader", "writer", "committer"})


def copy_typed_values(spark: SparkSession, servers: str, folder: Path) -> None:
    """A batch of Avro in a schema that is derived; a stream of it, and its copy, once, in a schema of more fields; and
    a malformed value."""
    create_topics(servers, "clicks", "clicks-copy")
    more = [
        {"name": "id", "type": "long"},
        {"name": "page", "type": "string"},
        {"name": "by", "type": "string", "default": "?"},
    ]
    with MockRegistry() as registry:
        registry.register("clicks-copy-value", json.dumps({"type": "record", "name": "Click", "fields": more}))
        typed = {"kafka.bootstrap.servers": servers, "valueFormat": "avro", "schema.registry.url": registry.url}
        clicks = spark.range(100).selectExpr("struct(id, concat('/', id) AS page) AS value")
        clicks.write.format("kafkameta").mode("append").options(**typed, topic="clicks").option(
            "auto.register.schemas", "true"
        ).save()
        produce(servers, "clicks", ["no frame"])

        read = {"startingOffsets": "earliest", "onMalformedRecord": "record"}
        rows = spark.readStream.format("kafkameta").options(**typed, **read, subscribe="clicks").load()
        good = rows.where("value_error IS NULL").selectExpr("struct(value.*) AS value")
        sink = good.writeStream.format("kafkameta").options(**typed, topic="clicks-copy")
        sink = sink.options(**{"kafka.transactional.id": "clicks", "checkpointLocation": str(folder / "checkpoint")})
        assert sink.trigger(availableNow=True).start().awaitTermination(300), "the query did not end"

        assert len(consume_committed(servers, "clicks-copy")) == 100
        batch = {"subscribe": "clicks-copy", "kafka.isolation.level": "read_committed"}
        copies = spark.read.format("kafkameta").options(**typed, **batch).load().select("value.*")
        assert sorted(map(tuple, copies.collect())) == [(number, f"/{number}", "?") for number in range(100)]
        (malformed,) = (
            spark.read.format("kafkameta")
            .options(**typed, onMalformedRecord="record", subscribe="clicks")
            .load()
            .where("value_error IS NOT NULL")
            .select("value_error.*")
            .collect()
        )
        assert (malformed.cause, bytes(malformed.raw)) == ("no frame: its first byte is not 0", b"no frame")


def create_topics(servers: str, *topics: str) -> None:
    """Of two partitions each."""
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        created.result(120)


def produce(servers: str, topic: str, values: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(120) == 0


if __name__ == "__main__":
    main()
