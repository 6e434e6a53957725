"""Checks of the data source that need no Spark session (others: `tests/spark`)."""

from __future__ import annotations

import pytest

import pyspark_kafka_meta
from pyspark_kafka_meta import source
from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.spark.batch_reader import KafkaMetaReader


@pytest.mark.parametrize("name", pyspark_kafka_meta.__all__)
def test_public_name_is_loaded_on_first_use(name: str) -> None:
    assert callable(getattr(pyspark_kafka_meta, name))


def test_only_batches_are_supported_before_pyspark_4_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    kafka = source.KafkaMetaDataSource({"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"})

    assert isinstance(kafka.reader(kafka.schema()), KafkaMetaReader)
    with pytest.raises(OptionError, match=r"streams need pyspark 4\.2 or later, and this is 4\."):
        kafka.streamReader(kafka.schema())


TOPIC = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}
STREAM_ONLY = {
    "maxOffsetsPerTrigger": "5",
    "minOffsetsPerTrigger": "5",
    "maxTriggerDelay": "15m",
    "onTopicRecreated": "latest",
    "newPartitions": "earliest",
    "commitOffsetsToGroup": "mine",
}
EVENTS = {"table": "refresh_events", "metricsPath": "/no/such/folder"}


@pytest.mark.parametrize(("options", "ignored"), [(TOPIC, STREAM_ONLY), (EVENTS, {"maxFilesPerTrigger": "1000"})])
def test_batch_warns_once_of_each_stream_option(
    options: dict[str, str], ignored: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    kafka = source.KafkaMetaDataSource({name.lower(): text for name, text in {**options, **ignored}.items()})

    kafka.streamReader(kafka.schema())
    assert caplog.messages == []
    kafka.reader(kafka.schema())
    assert caplog.messages == [f"{name} option ignored in batch queries" for name in ignored]


def test_writing_is_refused_with_an_alternative() -> None:
    kafka = source.KafkaMetaDataSource(TOPIC)
    for write in (kafka.writer, kafka.streamWriter):
        with pytest.raises(OptionError, match=r'^kafkameta only reads: write with format\("kafka"\)'):
            write(kafka.schema(), False)
    for sink_option in ("topic", "checkpointLocation"):
        with pytest.raises(OptionError, match=r'kafkameta only reads: write with format\("kafka"\)'):
            source.KafkaMetaDataSource({**TOPIC, sink_option: "x"})
