"""The Python of the README runs, and that of the test clusters in docs/api.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text() + (ROOT / "docs" / "api.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.kafka
@pytest.mark.spark
def test_python_runs(
    spark: SparkSession, kafka: Any, make_topic: Any, produce: Any, tmp_path: Path, capfd: Any
) -> None:
    topic, copies, visits = make_topic(partitions=2), make_topic(partitions=2), make_topic(partitions=2)
    produce(topic, ["a", "b", "a"])
    replaced = {
        "localhost:19092": kafka.bootstrap_servers,
        '"topic-0"': f'"{topic}"',
        '"topic-1"': f'"{copies}"',
        '"topic-2"': f'"{visits}"',
        '"words"': f'"{copies}"',
        "/tmp/checkpoints": str(tmp_path),
    }
    names: dict[str, Any] = {}
    for block in BLOCKS:
        for old, new in replaced.items():
            block = block.replace(old, new)
        if "LocalKafka()" in block:
            block = block.split("with LocalKafka()")[0]  # tests/kafka/test_local_kafka.py starts and kills brokers
        exec(block, names)

    assert not names["query"].isActive
    assert sorted(row.value for row in names["copies"].collect()) == [b"A", b"A", b"B"]
    shown = capfd.readouterr().out
    assert "|partition|count|" in shown
    assert "|   1|page-1|\n|   2|page-2|" in shown
    assert "|3       |B   |" in shown
