"""The option `where` on a real topic with gaps in its offsets: kept and dropped records add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from confluent_kafka import Producer

from pyspark_kafka_meta.arrow_reader import rows_of
from pyspark_kafka_meta.events.event import Event
from pyspark_kafka_meta.events.origin import planner_origin
from pyspark_kafka_meta.events.publisher import EventPublisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner

pytestmark = pytest.mark.kafka

LONG_AGO_MS = 1_600_000_000_000
AFTER = "timestamp >= TIMESTAMP '2020-09-13 12:26:40.050Z'"


def is_late(row: dict[str, Any]) -> bool:
    return bool(row["timestamp"].timestamp() * 1000 >= LONG_AGO_MS + 50)


@pytest.fixture(scope="module")
def topic(make_topic: Any, delete_records: Any, kafka: Any) -> str:
    """100 records in each of two partitions, whose times fall from the 60th on, without the first ten. Partition 0 has
    transactions, every third of which is aborted."""
    topic: str = make_topic(2, {"retention.ms": "-1"})
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    transactional, plain = Producer({**servers, "transactional.id": topic}), Producer(servers)
    transactional.init_transactions(30)
    for number in range(10):
        transactional.begin_transaction()
        for index in range(10 * number, 10 * number + 10):
            headers: dict[str, str | bytes | None] = {"kind": str(index % 4)}
            time_ms = LONG_AGO_MS + min(index, 119 - index)
            for partition, producer in enumerate((transactional, plain)):
                producer.produce(topic, str(index), str(index), partition, timestamp=time_ms, headers=headers)
        end = transactional.abort_transaction if number % 3 == 2 else transactional.commit_transaction
        end(30)
    assert plain.flush(30) == 0
    for partition in range(2):
        delete_records(topic, partition, 10)
    return topic


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize(
    ("where", "is_kept", "begins"),
    [
        ("headers['kind'] = '1'", lambda row: int(row["value"]) % 4 == 1, {0: 10, 1: 10}),
        (f"NOT {AFTER}", lambda row: not is_late(row), {0: 10, 1: 10}),
        (AFTER, is_late, {1: 50}),  # the marker of the first transaction is late enough
        ("key LIKE '5_' AND partition = 1", lambda row: row["value"][:1] == b"5" and row["partition"] == 1, {1: 10}),
        ("offset >= 50 AND headers['kind'] IS NULL", lambda row: False, {0: 50, 1: 50}),
    ],
)
def test_kept_and_dropped_records_are_all_records_of_the_offsets_that_are_read(
    kafka: Any, topic: str, where: str, is_kept: Callable[[dict[str, Any]], bool], begins: dict[int, int], level: str
) -> None:
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "kafka.isolation.level": level}
    everything, _, _ = read(given)
    rows, dropped, offsets = read({**given, "where": where})

    assert rows == list(filter(is_kept, everything))
    in_offsets = [row for row in everything if row["offset"] in offsets.get(row["partition"], ())]
    assert dropped == Counter(row["partition"] for row in in_offsets if not is_kept(row))
    assert {partition: offsets[partition].start for partition in begins} == begins


def test_what_a_read_that_ends_early_has_dropped_is_counted(kafka: Any, topic: str) -> None:
    """As with LIMIT."""
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic}
    rows, dropped, _ = read({**given, "where": "headers['kind'] = '1'"}, batches=1)

    assert rows and sum(dropped.values()) >= 2 * len(rows)


def read(
    given: dict[str, str], batches: int | None = None
) -> tuple[list[dict[str, Any]], dict[int, int], dict[int, range]]:
    """The rows of a batch, or its first record batches, in order; by partition what events say of dropped records, and
    the offsets that it reads."""
    options, events = SourceOptions.parse(given).for_batch(), Events()
    client = KafkaClient(options.client, EventPublisher([events], planner_origin()))
    planner = OffsetPlanner(client, options)
    ranges = [each for task in planner.tasks(planner.batch_ranges()) for each in task]
    columns = {name: name for name in ("partition", "offset", "timestamp", "value")}
    opened = rows_of(client, options, ranges, columns)
    found = [row for batch in islice(opened, batches) for row in batch.to_pylist()]
    del opened  # ends it
    client.close()
    rows = sorted(found, key=lambda row: (row["partition"], row["offset"]))
    dropped = {each.partition: each.records for event in events.written for each in event.filtered}
    return rows, dropped, {each.partition.partition: range(each.from_offset, each.until_offset) for each in ranges}


class Events:
    """A sink."""

    def __init__(self) -> None:
        self.written: list[Event] = []

    def write(self, events: Any) -> None:
        self.written += events

    def close(self) -> None:
        """Nothing is open."""
