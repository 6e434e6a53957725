"""The README's Python runs, and it lists all commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pyspark.sql import SparkSession

from pyspark_kafka_meta.cli.main import app

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_every_command_is_listed() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]

    assert set(re.findall(r"^- `kafkameta ([\w-]+)`", README, re.MULTILINE)) == commands.keys()


@pytest.mark.kafka
@pytest.mark.spark
def test_python_runs(
    spark: SparkSession, local_kafka: Any, make_topic: Any, produce: Any, tmp_path: Path, capfd: Any
) -> None:
    topic, counts = make_topic(partitions=2), make_topic(partitions=2)
    produce(topic, ["a", "b", "a"])
    replaced = {
        "localhost:19092": local_kafka.bootstrap_servers,
        '"topic-0"': f'"{topic}"',
        '"topic-1"': f'"{counts}"',
        "awaitTermination(30)": "processAllAvailable(); query.stop()",
        # The console sink prints from the JVM, past pytest.
        '.format("console")': '.format("memory").queryName("readme")',
        'writeStream.outputMode("complete")': f'writeStream.option("checkpointLocation", "{tmp_path}/checkpoint")'
        '.outputMode("complete")',
    }
    names: dict[str, Any] = {}
    for block in BLOCKS:
        for old, new in replaced.items():
            block = block.replace(old, new)
        if "LocalKafka()" in block:
            block = block.split("with LocalKafka()")[0]  # tests/kafka/test_local_kafka.py starts and kills brokers
        exec(block, names)
    assert {tuple(row) for row in spark.table("readme").collect()} == {("a", 2), ("b", 1)}
    committed = {"subscribe": counts, "kafka.isolation.level": "read_committed"}
    written = names["spark"].read.format("kafkameta").options(**names["kafka"] | committed).load()
    assert [row.value for row in written.collect()] == [b"3", b"3"], "at least once, and exactly once"
    assert "|partition|count|" in capfd.readouterr().out
