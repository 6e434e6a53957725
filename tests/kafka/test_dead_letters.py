"""Malformed records on a real cluster: their letters, and `kafkameta replay`, which sends them again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pyspark_kafka_meta.errors import DeadLetterError, UnknownTopicError
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.spark.batch_reader import KafkaMetaReader
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.typed.reading import query_schemas
from tests.consumer import consume

pytestmark = [pytest.mark.kafka]

RECORDS = 60
COLUMNS = ("key", "value", "headers")


@pytest.fixture
def read(kafka: Any, tmp_path: Any) -> Callable[..., list[dict[str, Any]]]:
    def rows(topic: str, value_schema: str = "id BIGINT", **others: str) -> list[dict[str, Any]]:
        """As a batch query reads a topic; without letters malformed records are null."""
        given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "eventsPath": str(tmp_path)}
        typed = {"valueFormat": "json", "valueSchema": value_schema, "onMalformedRecord": "null"}
        options = SourceOptions.parse({**given, **typed, **others}).for_batch()
        schemas = query_schemas(options.typed, options.topics)
        reader = KafkaMetaReader(options, {name: name for name in COLUMNS}, schemas)
        return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]

    return rows


@pytest.fixture
def letters(make_topic: Callable[..., str]) -> str:
    return make_topic(partitions=2)


def with_letters(topic: str, **others: str) -> dict[str, str]:
    return {"onMalformedRecord": "deadLetter", "deadLetterTopic": topic, **others}


def records(malformed: str) -> Iterator[dict[str, Any]]:
    """Of which every tenth has an id that is no number."""
    for number in range(RECORDS):
        value = json.dumps({"id": malformed if number % 10 == 3 else number})
        yield {"value": value, "key": str(number), "headers": [("trace", str(number))], "partition": number % 3}


def replay(kafka: Any, letters: str, *arguments: str, answer: str = "") -> Result:
    servers = ["--bootstrap-servers", kafka.bootstrap_servers]
    return CliRunner().invoke(app, ["replay", letters, *servers, *arguments], input=answer)


def test_malformed_records_are_letters_and_a_replay_sends_each_once(
    kafka: Any, topic: str, letters: str, make_topic: Callable[..., str], produce: Any, read: Any
) -> None:
    produce(topic, records("three"))
    kept = with_letters(letters, deadLetterKey="offset")
    rows = [row for _ in range(2) for row in read(topic, **kept)]  # a repeated task writes its letters again

    good = set(range(RECORDS)) - set(range(3, RECORDS, 10))
    assert Counter(row["value"]["id"] for row in rows) == dict.fromkeys(good, 2)
    assert len({row["key"] for row in read(letters)}) == 6

    mended = make_topic(partitions=3)
    refused = replay(kafka, letters, "--to", mended, answer="n\n")
    (shown,) = [json.loads(line) for line in refused.stdout.splitlines() if line.startswith("{")]
    assert (shown["topic"], shown["letters"], refused.exit_code) == (topic, 6, 1)
    assert read(mended) == []

    sent = replay(kafka, letters, "--to", mended, "--yes", "--topic", topic, "--cause", shown["cause"], "--since", "1h")
    assert (sent.exit_code, f"sent 6 records to {mended}" in sent.stderr) == (0, True)
    again = sorted(read(mended, "id STRING", **with_letters(letters)), key=lambda row: row["key"])
    assert [row["value"]["id"] for row in again] == ["three"] * 6
    assert [row["key"] for row in again] == sorted(str(number).encode() for number in range(3, RECORDS, 10))
    for row in again:
        own, sent_again = row["headers"]
        assert (own, sent_again["key"]) == ({"key": "trace", "value": row["key"]}, "kafkameta.replay")
        assert sent_again["value"].decode() == f"{topic}-{int(row['key']) % 3}-{int(row['key']) // 3}"

    nothing = replay(kafka, letters, "--to", mended, "--cause", "no such cause")
    assert (nothing.exit_code, "nothing to send" in nothing.stderr) == (0, True)


def test_letters_need_a_topic(kafka: Any, topic: str, make_topic: Callable[..., str], produce: Any, read: Any) -> None:
    small = make_topic(config={"max.message.bytes": "100"})
    produce(topic, records("three"))

    with pytest.raises(UnknownTopicError, match=f"topic {topic}-letters does not exist"):
        read(topic, **with_letters(f"{topic}-letters"))
    with pytest.raises(DeadLetterError, match=f"6 malformed records cannot be written to 'deadLetterTopic' {small}"):
        read(topic, **with_letters(small))
    assert "--to must be another topic" in replay(kafka, topic, "--to", topic).stderr


def test_a_large_record_that_came_compressed_becomes_a_letter_and_is_sent_again(
    kafka: Any, topic: str, letters: str, make_topic: Callable[..., str], produce: Any, read: Any
) -> None:
    """Of more than max.message.bytes, which is about what is sent."""
    settings = {"compression.type": "zstd", "message.max.bytes": 10_000_000}
    value = '{"id": "' + "x" * 9_000_000 + '"}'
    produce(topic, [value], **settings)

    assert read(topic, **with_letters(letters)) == []
    mended = make_topic(partitions=1)
    assert replay(kafka, letters, "--to", mended, "--yes").exit_code == 0
    assert [message.value() for message in consume(kafka.bootstrap_servers, mended)] == [value.encode()]
