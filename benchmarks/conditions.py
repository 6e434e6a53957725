"""Measures the records per second of topics of which the option `where` keeps one in a hundred, beside all rows.

    python -m benchmarks.conditions [--rounds 5] [--records 1200000] [--json FILE]

The topic has the plain Avro values of `benchmarks.typed_values`, and a header of which one in a hundred records has the
value that is looked for: in runs of some fifty, so that each fetch has some. Beside a condition on a typed column is
Spark's `where` behind the source. Turns, figures, ratios and CPU seconds are those of `benchmarks.throughput`.
"""

from __future__ import annotations

from functools import partial

from benchmarks import peers
from benchmarks.encoded_values import ENCODED
from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import Reader, take_turns
from benchmarks.throughput import PARTITIONS, read, result_rows
from benchmarks.topics import fill_with, new_topic
from benchmarks.typed_values import DIFFERENT_VALUES
from pyspark_kafka_meta.options import Framing
from pyspark_kafka_meta.testing import MockRegistry
from pyspark_kafka_meta.typed.framing import frame

OF_HEADER, OF_COLUMN = "headers['kind'] = 'rare'", "value.quantity = 7"
RUN, ONE_IN = 50 * PARTITIONS, 100


def filled_topic(bootstrap_servers: str, registry: MockRegistry, records: int) -> str:
    topic = new_topic(bootstrap_servers, "conditions", PARTITIONS)
    encoded = ENCODED["avro"](DIFFERENT_VALUES)
    before = frame(registry.register(f"{topic}-value", encoded.schema, "AVRO"), Framing.CONFLUENT.id_bytes)
    values = [before + (value or b"") for value in encoded.values]
    for start in range(0, records, RUN * ONE_IN):
        stock = values[start % DIFFERENT_VALUES :] + values[: start % DIFFERENT_VALUES]
        fill_with(stock, bootstrap_servers, topic, PARTITIONS, RUN, headers={"kind": b"rare"})
        fill_with(stock[RUN:], bootstrap_servers, topic, PARTITIONS, RUN * (ONE_IN - 1), headers={"kind": b"usual"})
    return topic


def main() -> None:
    arguments = argument_parser(__doc__, rounds=5, records=1_200_000).parse_args()
    rows = []
    with brokers() as bootstrap_servers, spark_session() as spark, MockRegistry() as registry:
        topic = filled_topic(bootstrap_servers, registry, arguments.records)
        typed = {"valueFormat": "avro", "schema.registry.url": registry.url}
        for case, options, condition in (
            ("header", {}, OF_HEADER),
            ("header, typed values", typed, OF_HEADER),
            ("typed column", typed, OF_COLUMN),
        ):
            everything = Reader("all rows", peers.OURS.source, options)
            readers = [Reader(f"where: {condition}", peers.OURS.source, {**options, "where": condition}), everything]
            if condition == OF_COLUMN:
                readers.append(everything._replace(name=f"all rows, Spark's where: {condition}", where=condition))
            turns = take_turns(readers, arguments.rounds, partial(read, spark, bootstrap_servers, topic))
            rows += result_rows({"case": case}, "reader", arguments.records, turns)
    report(f"Thousands of records a second, {arguments.rounds} turns each", rows, arguments.json)


if __name__ == "__main__":
    main()
