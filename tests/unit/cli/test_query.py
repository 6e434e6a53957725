"""What is told of the demo's query when it fails."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.cli.demo.query import sentence

OURS = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform it: Traceback
  File "/opt/pyspark_kafka_meta/errors.py", line 7, in offsets
pyspark_kafka_meta.errors.ConnectError: cannot connect to b:9092

During handling of the above exception, another exception occurred:

pyspark_kafka_meta.errors.NoLeaderError: no offsets of t-0 in 60000 ms: b:9092 is down
 SQLSTATE: 38000
=== Streaming Query ===
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (OURS, "no offsets of t-0 in 60000 ms: b:9092 is down"),
        ("\nJob aborted due to stage failure\n\tat org.apache", "Job aborted due to stage failure"),
    ],
    ids=["ours", "Spark's"],
)
def test_the_cause_is_told_rather_than_what_spark_was_doing(text: str, told: str) -> None:
    assert sentence(text) == told
