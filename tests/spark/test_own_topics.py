"""Queries whose pattern matches all topics, beside the topics that queries write for themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.consumer import consume

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("local_kafka")]  # no other topics

ROWS = 10


@pytest.mark.thorough
def test_queries_over_all_topics_read_neither_events_nor_decisions(
    spark: SparkSession,
    kafka: Any,
    make_topic: Callable[..., str],
    produce: Any,
    wait_for: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """The first query uses names that all queries recognise. The names of the second are its own: the pattern of the
    first excludes them."""
    source = make_topic()
    audit, ledger = f"{source}-audit", f"{source}-ledger"
    own_topics = {
        "first": {"eventsTopic": f"{source}.kafkameta-events", "decisionsTopic": f"{source}.kafkameta-decisions"},
        "second": {"eventsTopic": audit, "decisionsTopic": ledger},
    }
    patterns = {"first": f"^(?!{source}-).*", "second": f"^(?!{source}-out-).*"}
    outputs = {name: make_topic(name=f"{source}-out-{name}") for name in own_topics}
    for options in own_topics.values():
        make_topic(name=options["eventsTopic"])

    def start(name: str) -> StreamingQuery:
        both = {"kafka.bootstrap.servers": kafka.bootstrap_servers, **own_topics[name]}
        reading = spark.readStream.format("kafkameta").options(**both, subscribePattern=patterns[name])
        writing = reading.load().select("value").writeStream.format("kafkameta").options(**both, topic=outputs[name])
        writing = writing.option("kafka.transactional.id", outputs[name])
        return writing.option("checkpointLocation", str(tmp_path / name)).start()

    def written(topic: str) -> list[bytes]:
        return sorted(message.value() or b"" for message in consume(kafka.bootstrap_servers, topic, "read_committed"))

    def all_wrote(expected: list[bytes]) -> bool:
        return all(written(topic) == expected for topic in outputs.values())

    queries = [start(name) for name in own_topics]
    try:
        for query in queries:
            wait_for(partial(getattr, query, "lastProgress"), timeout_s=120)  # the query begins at the ends of all logs
        for rows in (ROWS, 2 * ROWS):
            produce(source, [f"{number:02}" for number in range(rows - ROWS, rows)])
            wait_for(partial(all_wrote, [b"%02d" % number for number in range(rows)]), timeout_s=120)
            for own in own_topics.values():
                for topic in own.values():
                    wait_for(partial(consume, kafka.bootstrap_servers, topic))
    finally:
        for query in queries:
            query.stop()
    assert all(query.exception() is None for query in queries)
    assert all_wrote([b"%02d" % number for number in range(2 * ROWS)])
