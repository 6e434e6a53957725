"""Halves the start time of Kafka nodes with an archive of their classes, created once for each Java.

Follows JEP 350 (dynamic class data sharing). Java ignores a missing or unsuitable archive and starts more slowly.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from pyspark_kafka_meta.testing import kafka_config
from pyspark_kafka_meta.testing.kafka_node import JavaRuntime, write_files

TRAINING_TIMEOUT_S = 120.0


def with_class_archive(runtime: JavaRuntime) -> JavaRuntime:
    """`runtime` with the option of its archive. Creates a missing archive (about 6 s)."""
    java = runtime.java.resolve()
    key = hashlib.sha256(f"{java} {java.stat().st_mtime_ns} {list(runtime.options)}".encode()).hexdigest()[:8]
    archive = runtime.jars[0].with_name(f"classes-{key}.jsa")
    if not archive.exists():
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix="training-") as folder:
            _create(runtime, Path(folder), archive)
    return replace(runtime, options=[*runtime.options, f"-XX:SharedArchiveFile={archive}"])


def _create(runtime: JavaRuntime, folder: Path, archive: Path) -> None:
    """Run a broker without a controller: it loads nearly all classes, exits, and Java writes the archive then."""
    node_id = kafka_config.FIRST_BROKER_ID
    layout = kafka_config.ClusterLayout(kafka_config.new_cluster_id(), controller_port=1, broker_ports={node_id: 0})
    give_up_early = {"initial.broker.registration.timeout.ms": "1000"}
    server = kafka_config.broker_properties(layout, node_id, folder / "data", give_up_early)
    write_files(folder, server, kafka_config.meta_properties(layout, node_id))
    created = folder / "classes.jsa"
    training = replace(runtime, options=[*runtime.options, f"-XX:ArchiveClassesAtExit={created}"])
    command = training.command("kafka.Kafka", folder, str(folder / "server.properties"))
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, timeout=TRAINING_TIMEOUT_S)
    if created.exists():
        created.rename(archive)
