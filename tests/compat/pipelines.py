"""Spark Declarative Pipelines, in an environment with `pyspark[pipelines]`, by `make pipelines`: a table that reads a
topic, and sinks, through further runs, a full refresh, and a run that is killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Message

from benchmarks.processes import kill_session
from tests.consumer import consume, consume_committed
from tests.kafka.cluster_tools import is_readable, poll_until

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "pipeline"
FLOWS = Path(__file__).with_name("pipeline_flows.py")
AUTO_CDC = Path(__file__).with_name("auto_cdc_flow.py")
RUN_TIMEOUT_S = 600
HOLD_MS = 1000 * RUN_TIMEOUT_S
LASTING_CATALOG = ("--conf", "spark.sql.catalogImplementation=hive")

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(4 * RUN_TIMEOUT_S)]


class Pipeline:
    """A folder with the files of a pipeline, its checkpoints, its catalog and its tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "run.log"

    def run(self, *arguments: str, command: str = "run") -> None:
        """Run the pipeline to its end."""
        with self.running(*arguments, command=command) as process:
            process.wait(RUN_TIMEOUT_S)
        assert process.returncode == 0, self._log.read_text()[-6000:]

    @contextmanager
    def running(self, *arguments: str, command: str = "run") -> Iterator[subprocess.Popen[bytes]]:
        """A run in a session of its own. Its processes, the JVM among them, are killed at the end."""
        java = f"-Djava.io.tmpdir={self.folder} -Dspark.ui.enabled=false -XX:-UsePerfData"
        own = {"JAVA_TOOL_OPTIONS": java, "SPARK_LOCAL_IP": "127.0.0.1"}
        own |= {"PYSPARK_PYTHON": sys.executable, "TMPDIR": str(self.folder)}
        program = str(Path(sys.executable).with_name("spark-pipelines"))
        with self._log.open("w") as log:
            process = subprocess.Popen(
                [program, command, "--remote", "local[4]", *arguments],
                cwd=self.folder,
                env=os.environ | own,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            poll_until(lambda: not kill_session(process.pid))
            process.wait(30)

    def rows(self, table: str, column: str) -> Counter[str]:
        """Of the files that Spark's file sink has committed."""
        folder = self.folder / "spark-warehouse" / table
        logs = [log.read_text().splitlines() for log in (folder / "_spark_metadata").glob("[0-9]*")]
        files = [urlparse(json.loads(line)["path"]).path for _, *lines in logs for line in lines]
        return Counter(value for file in files for value in pq.read_table(file)[column].to_pylist())


def records(kafka: Any, topic: str) -> Counter[str]:
    """How often each value is in the topic, for a read_committed reader, once no transaction holds it back."""
    return values(consume_committed(kafka.bootstrap_servers, topic))


def values(messages: Iterable[Message]) -> Counter[str]:
    return Counter((message.value() or b"").decode() for message in messages)


def times(count: int, values: Iterable[str]) -> Counter[str]:
    return Counter(dict.fromkeys(values, count))


def test_the_example_goes_on_with_each_run_and_writes_all_again_in_a_full_refresh(
    kafka: Any, make_topic: Callable[..., str], produce: Callable[..., list[int]], tmp_path: Path
) -> None:
    source, target = make_topic(2), make_topic(2)
    own = {
        "localhost:19092": kafka.bootstrap_servers,
        "topic-0": source,
        "topic-1": target,
        '"page-views"': f'"{target}"',
        "/tmp/kafkameta-pipeline": str(tmp_path / "storage"),
    }
    for file in EXAMPLE.glob("*.*"):
        text = file.read_text()
        for default, name in own.items():
            text = text.replace(default, name)
        (tmp_path / file.name).write_text(text)
    pipeline = Pipeline(tmp_path)
    views = [f"user-{number % 10} opened page-{number}" for number in range(50)]
    for some in (views[:30], views[30:]):
        produce(source, some)
        pipeline.run(*LASTING_CATALOG)
    assert pipeline.rows("page_views", "value") == times(1, views)
    assert records(kafka, target) == times(1, map(str.upper, views))
    pipeline.run(*LASTING_CATALOG, "--full-refresh-all")
    assert pipeline.rows("page_views", "value") == times(1, views)
    assert records(kafka, target) == times(2, map(str.upper, views))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the processes of a run in /proc")
def test_a_killed_run_costs_no_record_and_with_a_transactional_id_repeats_none(
    kafka: Any, make_topic: Callable[..., str], produce: Callable[..., list[int]], tmp_path: Path
) -> None:
    """One task of each sink has written its rows when the run is killed, and the other has not."""
    source = make_topic(2)
    at_least_once, exactly_once = (make_topic(2, name=f"{source}-{sink}") for sink in ("at_least_once", "exactly_once"))
    pipeline = Pipeline(tmp_path)
    shutil.copy(FLOWS, tmp_path)

    def hold(hold_ms: int) -> None:
        configuration = {"servers": kafka.bootstrap_servers, "source": source, "hold_ms": str(hold_ms)}
        spec = {
            "name": "copies",
            "storage": f"file://{tmp_path}/storage",
            "configuration": {f"kafkameta.{name}": value for name, value in configuration.items()},
            "libraries": [{"glob": {"include": FLOWS.name}}],
        }
        (tmp_path / "spark-pipeline.yml").write_text(json.dumps(spec))

    early, late, new = ([f"{when}-{number}" for number in range(20)] for when in ("early", "late", "new"))
    produce(source, early, partition=0)
    produce(source, ["hold", *late], partition=1)
    hold(HOLD_MS)
    with pipeline.running() as process:

        def are_written() -> bool:
            assert process.poll() is None, "the run has ended"
            topics = at_least_once, exactly_once
            return all(values(consume(kafka.bootstrap_servers, topic)) == times(1, early) for topic in topics)

        poll_until(are_written, RUN_TIMEOUT_S)
    assert not is_readable(kafka.bootstrap_servers, exactly_once)
    assert consume(kafka.bootstrap_servers, exactly_once, "read_committed") == []
    produce(source, new)
    hold(0)
    pipeline.run()
    assert records(kafka, exactly_once) == times(1, [*early, "hold", *late, *new])
    assert records(kafka, at_least_once) == times(2, early) + times(1, ["hold", *late, *new])


def test_auto_cdc_takes_changes_as_they_are(tmp_path: Path) -> None:
    """As far as a dry run sees, which evaluates no expression. No more can run: no format of tables for this release
    supports MERGE."""
    shutil.copy(AUTO_CDC, tmp_path)
    libraries = [{"glob": {"include": AUTO_CDC.name}}]
    spec = {"name": "customers", "storage": f"file://{tmp_path}/storage", "libraries": libraries}
    (tmp_path / "spark-pipeline.yml").write_text(json.dumps(spec))
    Pipeline(tmp_path).run(command="dry-run")
