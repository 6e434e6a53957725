"""What the data source says before Spark asks it for anything; the rest of it needs Spark (`tests/spark`)."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta import source
from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.reading.source import KafkaMetaReader


def test_stream_on_a_pyspark_without_read_limits_is_refused_and_a_batch_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    kafka = source.KafkaMetaDataSource({"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"})

    assert isinstance(kafka.reader(kafka.schema()), KafkaMetaReader)
    with pytest.raises(OptionError, match=r"streams need pyspark 4\.2 or later, and this is 4\."):
        kafka.streamReader(kafka.schema())
