"""Measures what Spark's Python processes import for this source beyond Spark's own modules, and for how long.

    python -m benchmarks.imports [--rounds 11] [--before FOLDER] [--json FILE]

Each process imports Spark's modules first, and then looks up the source, writes a record to mock brokers, or plans or
reads it, under `python -X importtime`. Modules of the standard library count to the package that imported them. Run it
without test packages: the protocol library imports hypothesis where it finds it. FOLDER is another checkout.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import argument_parser, installed_environment, report
from pyspark_kafka_meta.testing import MockCluster

ROOT = Path(__file__).parent.parent
PACKAGE = "pyspark_kafka_meta"
TOPIC = "imports"
TIMEOUT_S = 60
WARM_UP_ROUNDS = 1
SHOWN_FROM_MS = 1.0
BEGIN = "--- this source ---"
TASK_CONTEXT = """
import pickle, sys
from pyspark import TaskContext
TaskContext._getOrCreate()._localProperties = {}
"""
HANDED_OVER = f"""
given = sys.stdin.buffer.read()
print("{BEGIN}", file=sys.stderr, flush=True)
given = pickle.loads(given) if given else None
"""
IMPORT = f"from {PACKAGE} import DefaultSource"
SOURCE = f"""
{IMPORT}
source = DefaultSource({{"kafka.bootstrap.servers": sys.argv[1], sys.argv[2]: "{TOPIC}"}})
"""
SEND = "sys.stdout.buffer.write(pickle.dumps({}))"


class Process(NamedTuple):
    """A Python process of Spark: what Spark imports in it, what this source does, and the option that names the topic.

    A task works with what the process before it hands over.
    """

    name: str
    spark: str
    work: str
    option: str = "subscribe"
    is_task: bool = False


PLAN = "from pyspark.sql.worker import plan_data_source_read"
WRITE = "from pyspark.sql.worker import write_into_data_source"
PROCESSES = (
    Process("lookup", "from pyspark.sql.worker import lookup_data_sources", IMPORT),
    Process(
        "sink",
        WRITE,
        f"""{SOURCE}
from pyspark.sql.types import StructType
{SEND.format('source.writer(StructType().add("value", "binary"), False)')}""",
        "topic",
    ),
    Process(
        "writer",
        f"import pyspark.worker, pyarrow as pa\n{WRITE}",
        "given.write(iter([pa.record_batch({'value': pa.array([b'value'])})]))",
        is_task=True,
    ),
    Process(
        "planner",
        PLAN,
        f"{SOURCE}\nreader = source.reader(source.schema())\n{SEND.format('(reader, reader.partitions()[0])')}",
    ),
    Process("reader", f"import pyspark.worker\n{PLAN}", "reader, task = given\nlist(reader.read(task))", is_task=True),
)


class Imported(NamedTuple):
    modules: int
    ms: float


NONE = Imported(0, 0.0)


def imported(importtime: str) -> dict[str, Imported]:
    """Modules and their time by package, from what `-X importtime` wrote: a module follows the modules it imports."""
    by_package: defaultdict[str, list[int]] = defaultdict(list)
    importers: list[tuple[int, str]] = []  # depth and package
    for line in reversed(importtime.splitlines()):
        if line.startswith("import time:"):
            self_us, _, module = line.removeprefix("import time:").split("|")
            depth, name = len(module) - len(module.lstrip()), module.strip()
            while importers and importers[-1][0] >= depth:
                importers.pop()
            package = package_of(name) or (importers[-1][1] if importers else "standard library")
            importers.append((depth, package))
            by_package[package].append(int(self_us))
    return {package: Imported(len(times), sum(times) / 1000) for package, times in by_package.items()}


def package_of(module: str) -> str | None:
    """None for the standard library."""
    first, *rest = module.split(".")
    if first in sys.stdlib_module_names:
        return None
    own = rest[: 2 if rest[:1] == ["kafka"] else 1]  # the rooms of the package
    return ".".join([first, *own]) if first == PACKAGE else first


def run(process: Process, folder: Path, bootstrap_servers: str, given: bytes) -> tuple[dict[str, Imported], bytes]:
    """What the process imports from its checkout in `folder`, and what it hands to the task."""
    program = "\n".join((TASK_CONTEXT, process.spark, HANDED_OVER, process.work))
    with tempfile.TemporaryDirectory() as events:
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", program, bootstrap_servers, process.option],
            env={**installed_environment(folder), "TMPDIR": events},
            cwd=folder,  # `python -c` imports from it first
            input=given,
            capture_output=True,
            timeout=TIMEOUT_S,
        )
    errors = done.stderr.decode()
    if done.returncode != 0:
        raise RuntimeError(f"the {process.name} failed: {errors[-2000:]}")
    return imported(errors.partition(BEGIN)[2]), done.stdout


def one_round(folder: Path, bootstrap_servers: str) -> Iterator[tuple[str, Mapping[str, Imported]]]:
    handed = b""
    for process in PROCESSES:
        packages, handed = run(process, folder, bootstrap_servers, handed if process.is_task else b"")
        total = Imported(*map(sum, zip(*packages.values(), strict=True)))
        yield process.name, {**packages, "together": total}


def main() -> None:
    parser = argument_parser(__doc__, rounds=11)
    parser.add_argument("--before", type=Path, help="another checkout, to compare with")
    arguments = parser.parse_args()
    folders = {"before_ms": arguments.before.resolve(), "ms": ROOT} if arguments.before else {"ms": ROOT}
    taken: defaultdict[tuple[str, str], defaultdict[str, list[Imported]]] = defaultdict(lambda: defaultdict(list))
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC)
        for number in range(WARM_UP_ROUNDS + arguments.rounds):
            for column, folder in folders.items():
                for process, packages in one_round(folder, cluster.bootstrap_servers):
                    for package, imports in packages.items():
                        if number >= WARM_UP_ROUNDS:
                            taken[process, package][column].append(imports)
    rows: list[dict[str, object]] = []
    for (process, package), by_folder in taken.items():
        ms = {
            column: round(statistics.median(each.ms for each in by_folder[column] or [NONE]), 1) for column in folders
        }
        if max(ms.values()) >= SHOWN_FROM_MS:
            modules = (by_folder["ms"] or [NONE])[0].modules
            rows.append({"case": process, "package": package, **ms, "modules": modules})
    report(f"Imports beyond Spark's own, {arguments.rounds} rounds", rows, arguments.json)


if __name__ == "__main__":
    main()
