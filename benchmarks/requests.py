"""Counts the requests and connections for a million records, of this source and of Spark's JVM source.

    python -m benchmarks.requests [--records 3000000] [--seconds 60] [--json FILE]

Proxies in front of the brokers count the clients' requests. A batch reads a filled topic of 6 partitions, after a
warm-up. A stream runs with 2,000 records per second in 100 partitions, and is counted in its last `--seconds`, from the
end of one micro-batch to the end of another. Its requests per minute are listed too, because the requests of a stream
depend on time, not on records.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack, closing

from pyspark.sql import SparkSession

from benchmarks.counting import APIS, CONNECTIONS, OTHERS, Count
from benchmarks.harness import argument_parser, report, spark_session
from benchmarks.peers import JVM, OURS, TUNED_JVM, Reader
from benchmarks.topics import fill, new_topic, trickle
from benchmarks.watching import watch
from pyspark_kafka_meta.testing import LocalKafka
from tests.tcp_proxy import TcpProxy

BROKERS = 3
USER, PASSWORD = "benchmark", "secret"
LOGIN = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="{USER}" password="{PASSWORD}";',
}
"""Only a listener with a login can advertise another port, here the port of a proxy."""
BATCH_PARTITIONS, VALUE_BYTES = 6, 200
STREAM_PARTITIONS, RECORDS_PER_S = 100, 2_000
WARM_UP_S = 30.0


def batch(spark: SparkSession, reader: Reader, bootstrap_servers: str, topic: str, count: Count) -> Counter[str]:
    """The requests of the second of two batch queries."""
    for _ in range(2):
        before = count.so_far()
        reader.read(spark, bootstrap_servers, topic).write.format("noop").mode("overwrite").save()
    return count.so_far() - before


def stream(
    spark: SparkSession, reader: Reader, bootstrap_servers: str, topic: str, count: Count, seconds: float
) -> tuple[Counter[str], int, float]:
    """The requests of a warm stream, the records that it read meanwhile, and the seconds of the count."""
    read: dict[int, int] = {}  # records by micro-batch
    cuts: list[tuple[Counter[str], int, float]] = []
    with closing(watch(reader.read_stream(spark, bootstrap_servers, topic))) as looks:
        for passed_s, reports in looks:
            batches = len(read)
            read |= {progress.batchId: progress.numInputRows for progress in reports if progress.numInputRows > 0}
            if len(read) > batches and passed_s >= WARM_UP_S + seconds * len(cuts):
                cuts.append((count.so_far(), sum(read.values()), time.monotonic()))
            if len(cuts) == 2:  # the start and the end
                break
    (sent, records, began), (sent_later, records_later, ended) = cuts
    return sent_later - sent, records_later - records, ended - began


def result_row(
    query: str, reader: Reader, sent: Counter[str], records: int, seconds: float | None
) -> dict[str, object]:
    """The requests per million records."""
    kinds = (*APIS.values(), OTHERS, CONNECTIONS)
    requests = sent.total() - sent[CONNECTIONS]
    return {
        "query": query,
        "reader": reader.name,
        "requests": round(requests * 1e6 / records),
        **{kind: round(sent[kind] * 1e6 / records) for kind in kinds},
        "requests_a_minute": "" if seconds is None else round(requests * 60 / seconds),
    }


def main() -> None:
    arguments = argument_parser(__doc__, records=3_000_000, seconds=60).parse_args()
    rows: list[dict[str, object]] = []
    with ExitStack() as stack:
        count = Count()
        proxies = [stack.enter_context(TcpProxy(watch=count.watch)) for _ in range(BROKERS)]
        kafka = LocalKafka(
            BROKERS,
            security="SASL_PLAINTEXT",
            mechanisms=["PLAIN"],
            users={USER: PASSWORD},
            advertised_ports=[proxy.address.port for proxy in proxies],
        )
        for proxy, node_id in zip(proxies, kafka.broker_ids, strict=True):
            proxy.target = kafka.address(node_id)
        stack.enter_context(kafka)
        spark = stack.enter_context(spark_session())
        admin, servers = kafka.admin_servers, str(proxies[0].address)
        readers = [reader._replace(options={**LOGIN, **reader.options}) for reader in (OURS, JVM, TUNED_JVM)]
        topic = new_topic(admin, "requests", BATCH_PARTITIONS)
        fill(admin, topic, BATCH_PARTITIONS, arguments.records, VALUE_BYTES)
        for reader in readers:
            sent = batch(spark, reader, servers, topic, count)
            rows.append(result_row(f"batch, {BATCH_PARTITIONS} partitions", reader, sent, arguments.records, None))
        topic = new_topic(admin, "requests", STREAM_PARTITIONS)
        with trickle(admin, topic, STREAM_PARTITIONS, RECORDS_PER_S):
            for reader in readers[:2]:
                sent, records, passed_s = stream(spark, reader, servers, topic, count, arguments.seconds)
                query = f"stream, {STREAM_PARTITIONS} partitions"
                rows.append(result_row(query, reader, sent, records, passed_s))
    report("Requests and connections for a million records", rows, arguments.json)


if __name__ == "__main__":
    main()
