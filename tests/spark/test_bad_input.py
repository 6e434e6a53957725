"""Mistakes of users end soon in one clear sentence, at load() or start() where possible, and never hang."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.marks import thorough_after

pytestmark = pytest.mark.spark

NOBODY = "127.0.0.1:1"
COMPLETE = {"kafka_bootstrap_servers": NOBODY, "subscribe": "t"}


def load(spark: SparkSession, **options: str) -> Any:
    """Load with these options; `kafka_bootstrap_servers` stands for kafka.bootstrap.servers."""
    named = {name.replace("kafka_", "kafka.").replace("_", "."): value for name, value in options.items()}
    return spark.read.format("kafkameta").options(**named).load()


@pytest.mark.parametrize(
    ("options", "text"),
    thorough_after(
        3,
        [
            ({"subscribe": "t"}, "'kafka.bootstrap.servers' must be specified"),
            ({"kafka_bootstrap_servers": "localhost"}, "must be host:port"),
            ({"kafka_bootstrap_servers": NOBODY}, "specified for Kafka source: subscribe, subscribePattern, assign"),
            (COMPLETE | {"startingOffset": "earliest"}, "Did you mean 'startingOffsets'"),
            (COMPLETE | {"startingOffsets": "{"}, "'startingOffsets' must be"),
            ({"kafka_bootstrap_servers": NOBODY, "assign": "[1]"}, "'assign' must be JSON"),
            (COMPLETE | {"failOnDataLoss": "maybe"}, "failOnDataLoss"),
            (COMPLETE | {"minPartitions": "0"}, "minPartitions must be positive"),
            (COMPLETE | {"kafka_auto_offset_reset": "latest"}, "auto.offset.reset"),
        ],
    ),
)
def test_a_bad_option_is_refused_at_load(spark: SparkSession, options: dict[str, str], text: str) -> None:
    with pytest.raises(PySparkException) as caught:
        load(spark, **options)
    assert "OptionError" in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "options", "text"),
    [
        ("append", {"topic": "t", "subscribes": "t"}, "OptionError: Unknown option 'subscribes'"),
        ("append", {}, "SchemaError: topic option required when no 'topic' attribute is present"),
        ("overwrite", {"topic": "t"}, "OptionError: Save mode Overwrite not allowed for Kafka"),
    ],
)
def test_a_bad_write_is_refused_before_a_task_starts(
    spark: SparkSession, mode: str, options: dict[str, str], text: str
) -> None:
    sink = spark.range(1).selectExpr("'x' as value").write.format("kafkameta").options(**options)
    with pytest.raises(PySparkException, match=text):
        sink.option("kafka.bootstrap.servers", NOBODY).mode(mode).save()


UNREACHABLE = {"kafka.bootstrap.servers": NOBODY, "kafka.default.api.timeout.ms": "2000"}


@pytest.mark.parametrize(
    ("is_stream", "options"),
    thorough_after(
        3,
        [
            (False, {"table": "brokers"}),
            (True, {"subscribe": "t"}),
            (False, {"subscribe": "t", "foo": "1"}),
            (True, {"subscribe": "t", "foo": "1"}),
            (False, {"subscribe": "t", "startingOffsets": "latest"}),
            (True, {"subscribe": "t", "endingOffsets": "latest"}),
            (False, {"subscribe": "t"}),
        ],
    ),
    ids=["task", "plan stream", "load", "load stream", "reader", "stream reader", "plan"],
)
def test_an_error_has_its_sentence_first_and_no_traceback(
    spark: SparkSession, tmp_path: Any, is_stream: bool, options: dict[str, str]
) -> None:
    with pytest.raises(PySparkException) as caught:
        if is_stream:
            rows = spark.readStream.format("kafkameta").options(**UNREACHABLE, **options).load()
            stream = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
            stream.start().awaitTermination(120)
        else:
            spark.read.format("kafkameta").options(**UNREACHABLE, **options).load().count()
    before, _, sentence = str(caught.value).partition("pyspark_kafka_meta.errors.")
    assert sentence
    assert "Traceback" not in before
    assert ".py" not in sentence.partition("JVM stacktrace")[0]


def test_every_bad_option_is_named_at_once(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        load(spark, subscribe="t", includeHeaders="perhaps", topics="t")
    for text in ("kafka.bootstrap.servers", "includeHeaders", "topics"):
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries"),
    ],
)
def test_offsets_that_no_batch_can_have_are_refused(spark: SparkSession, options: dict[str, str], text: str) -> None:
    with pytest.raises(PySparkException, match=text):
        load(spark, kafka_bootstrap_servers=NOBODY, subscribe="t", **options).count()


@pytest.mark.thorough
def test_ending_offsets_in_a_stream_are_refused_at_start(spark: SparkSession, tmp_path: Any) -> None:
    options = {"kafka.bootstrap.servers": NOBODY, "subscribe": "t", "endingOffsets": "latest"}
    stream = spark.readStream.format("kafkameta").options(**options).load().writeStream.format("noop")
    with pytest.raises(PySparkException, match="ending offset not valid in streaming queries"):
        stream.option("checkpointLocation", str(tmp_path)).start().awaitTermination(120)


@pytest.fixture
def silent_peer() -> Iterator[str]:
    """Accepts connections and sends no response."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.thorough
def test_unreachable_servers_end_within_the_deadline_and_are_all_named(spark: SparkSession, silent_peer: str) -> None:
    options = {"kafka.default.api.timeout.ms": "3000", "kafka.socket.connection.setup.timeout.ms": "1000"}
    servers = {"kafka.bootstrap.servers": f"{NOBODY},{silent_peer}", "subscribe": "t"}
    rows = spark.read.format("kafkameta").options(**servers, **options).load()
    started = time.monotonic()
    with pytest.raises(PySparkException) as caught:
        rows.count()
    assert time.monotonic() - started < 45
    for text in ("ConnectError", NOBODY, "Connection refused", silent_peer, "does not answer"):
        assert text in str(caught.value)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("options", "text"),
    thorough_after(
        1,
        [
            ({"subscribe": "no-such-topic"}, "topic no-such-topic does not exist"),
            ({"assign": '{"%s": [0, 7]}'}, "option assign names %s-7, and %s has 3 partitions"),
            ({"subscribe": "%s", "startingOffsets": '{"%s": {"0": 0}}'}, "Missing: %s-1, %s-2"),
            ({"subscribe": "%s", "startingOffsets": '{"%s": {"0": 99, "1": -2, "2": -2}}'}, "its log ends at 0"),
            ({"subscribe": "%s", "endingOffsets": '{"%s": {"0": 99, "1": -1, "2": -1}}'}, "its log ends at 0"),
        ],
    ),
)
def test_missing_topics_partitions_and_offsets_are_reported_at_planning(
    spark: SparkSession, kafka: Any, topic: str, options: dict[str, str], text: str
) -> None:
    named = {name: value.replace("%s", topic) for name, value in options.items()}
    rows = spark.read.format("kafkameta").option("kafka.bootstrap.servers", kafka.bootstrap_servers).options(**named)
    started = time.monotonic()
    with pytest.raises(PySparkException) as caught:
        rows.load().count()
    assert time.monotonic() - started < 45
    assert text.replace("%s", topic) in str(caught.value)


@pytest.mark.thorough
@pytest.mark.kafka
def test_an_offset_that_has_aged_out_is_data_loss_or_skipped_when_allowed(
    spark: SparkSession, kafka: Any, topic: str, produce: Any, delete_records: Any
) -> None:
    produce(topic, [str(number) for number in range(10)], partition=0)
    delete_records(topic, 0, before_offset=4)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "assign": f'{{"{topic}": [0]}}'}
    rows = spark.read.format("kafkameta").options(**options).option("startingOffsets", f'{{"{topic}": {{"0": 2}}}}')
    with pytest.raises(PySparkException, match="its log starts at 4"):
        rows.load().count()
    assert rows.option("failOnDataLoss", "false").load().count() == 6
