"""Mistakes of users end soon in one clear sentence, at load() or start() where possible, and never hang."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.marks import thorough_after

pytestmark = pytest.mark.spark

NOBODY = "127.0.0.1:1"
UNREACHABLE = {"kafka.bootstrap.servers": NOBODY, "kafka.default.api.timeout.ms": "500"}


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
    bad = {"subscribe": "t", "includeHeaders": "perhaps", "topics": "t"}
    with pytest.raises(PySparkException, match="OptionError") as caught:
        spark.read.format("kafkameta").options(**bad).load()
    for text in ("kafka.bootstrap.servers", "includeHeaders", "topics"):
        assert text in str(caught.value)
