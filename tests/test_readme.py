"""The README's Python runs, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pyspark.sql import SparkSession

from pyspark_kafka_meta.cli.main import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_commands_and_their_options_are_those_of_the_program() -> None:
    rows = dict(re.findall(r"^\| `kafkameta ([\w-]+)` \| (.*) \|$", section("Command line"), re.MULTILINE))
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]

    assert rows.keys() == commands.keys()
    for name, row in rows.items():
        assert set(re.findall(r"--[a-z-]+", row)) <= {option for one in commands[name].params for option in one.opts}


@pytest.mark.kafka
@pytest.mark.spark
def test_its_python_runs(
    spark: SparkSession, local_kafka: Any, make_topic: Any, produce: Any, tmp_path: Path, capfd: Any
) -> None:
    topic = make_topic(partitions=2)
    produce(topic, ["a", "b", "a"])
    replaced = {
        "localhost:19092": local_kafka.bootstrap_servers,
        '"topic-0"': f'"{topic}"',
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
            block = block.split("with LocalKafka()")[0]  # a cluster of its own is what test_local_kafka.py starts
        exec(block, names)
    assert {tuple(row) for row in spark.table("readme").collect()} == {("a", 2), ("b", 1)}
    assert "|partition|count|" in capfd.readouterr().out


@pytest.mark.parametrize("name", re.findall(r"`make (\w+)`", README))
def test_its_commands_are_in_the_makefile(name: str) -> None:
    assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
