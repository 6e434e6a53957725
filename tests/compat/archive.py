"""A packed environment sent along by spark-submit, on two executors that have nothing else: `make archive`.

    python tests/compat/archive.py ENVIRONMENT.tar.gz

The archive is unpacked beside the program, as Python programs of `spark-submit` in client mode need it, and sent to the
executors, which are processes of their own (`local-cluster`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pyspark

from pyspark_kafka_meta.testing import MockCluster
from tests.compat.smoke import fill

SPARK_HOME = Path(pyspark.__file__).parent
PROGRAM = """
import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

servers, events = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
print("application", spark.sparkContext.applicationId)
cluster = {"kafka.bootstrap.servers": servers, "eventsPath": events}
rows = spark.read.format("kafkameta").options(**cluster, subscribe="t").load()
print("records", rows.count())
rows.select("value").write.format("kafkameta").mode("append").options(**cluster, topic="batch").save()
print("written", spark.read.format("kafkameta").options(**cluster, subscribe="batch").load().count())
events = [json.loads(line) for file in Path(events).glob("*.jsonl") for line in file.read_text().splitlines()]
for role, pid in {(event["role"], event["pid"]) for event in events if event["role"] in ("reader", "writer")}:
    process = Path(f"/proc/{pid}")
    print(role, process.joinpath("cwd").resolve() / process.joinpath("cmdline").read_text().split("\\0")[0])
"""


def main(archive: Path) -> None:
    with MockCluster() as cluster, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        fill(cluster)
        home = Path(folder)
        with tarfile.open(archive) as packed:
            packed.extractall(home / "environment", filter="fully_trusted")  # its Python is a link to a path outside
        (home / "program.py").write_text(PROGRAM)
        out = submit(archive, home, cluster.bootstrap_servers)
    kinds = ("application ", "records ", "written ", "reader ", "writer ")
    output = [line.split() for line in out.splitlines() if line.startswith(kinds)]
    application, workers = output[0][1], {kind: path for kind, path in output if kind in ("reader", "writer")}
    shutil.rmtree(SPARK_HOME / "work" / application)  # the unpacked archive of the executors, 700 MB
    assert ["records", "100"] in output, out
    assert ["written", "100"] in output, out
    assert workers.keys() == {"reader", "writer"}, out
    assert all("/environment/bin/python" in path and "/app-" in path for path in workers.values()), workers
    print(f"the executors read and write with {workers['writer']}")  # noqa: T201


def submit(archive: Path, home: Path, servers: str) -> str:
    command = ["spark-submit", "--master", "local-cluster[2,1,1024]", "--conf", "spark.ui.enabled=false"]
    command += ["--archives", f"{archive.resolve()}#environment", "program.py", servers, str(home / "events")]
    environment = {
        name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_DRIVER_PYTHON")
    }
    environment |= {"PYSPARK_PYTHON": "./environment/bin/kafkameta-python", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["SPARK_HOME"] = str(SPARK_HOME)  # which the packed Python could not tell
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
