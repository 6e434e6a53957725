"""Measures what reads the refresh events of 500 caches with 10,000 partitions: the page, `kafkameta incidents`, Spark.

    python -m benchmarks.events_scale [--caches 500] [--partitions 10000] [--events 1000000] [--json FILE]

The events are simulated: `benchmarks.simulation.events`. The first screen of the page is the first response that shows
a cache; an answer is the slowest of five responses to an address, after all events are read. Processor time and peak
memory are those of the process so far. Of Spark only the time is measured, without the start of the session.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from benchmarks.harness import argument_parser, report, spark_session
from benchmarks.simulation.events import Scale, write_events

TIMEOUT_S = 600
IDLE_S = 20.0
COMMAND = [sys.executable, "-m", "pyspark_kafka_meta"]
TABLES = ("refresh_events", "caches", "leader_changes")
PEAK = re.compile(r"VmHWM:\s+(\d+) kB")
SELECTIONS = ("", "?find=executor", "?broker=3", "?broker=3&topic=topic-007")


class Used(NamedTuple):
    """What a process has used so far."""

    cpu_s: float
    peak_mb: float


def row(step: str, seconds: float, used: Used | None = None) -> dict[str, object]:
    cpu_s, peak_mb = ("", "") if used is None else (round(used.cpu_s, 1), round(used.peak_mb))
    return {"step": step, "seconds": round(seconds, 2), "cpu_s_so_far": cpu_s, "peak_mb": peak_mb}


def timed(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def used_by(pid: int) -> Used:
    found = PEAK.search(Path(f"/proc/{pid}/status").read_text())
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return Used((int(user) + int(system)) / os.sysconf("SC_CLK_TCK"), int(found[1]) / 1024 if found else 0.0)


def get(url: str) -> str:
    with urlopen(url, timeout=TIMEOUT_S) as response:
        return str(response.read().decode())


def wait_for(url: str, every_s: float, is_there: Callable[[str], object]) -> None:
    """Each response is a page that is kept up to date for a while, though nobody looks at it."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_there(get(url)):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{url} does not show it")
        time.sleep(every_s)


@contextmanager
def page(folder: Path) -> Iterator[tuple[str, int]]:
    """The address of a page, and its process."""
    with subprocess.Popen(
        [*COMMAND, "page", "--path", str(folder), "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


def measure_page(folder: Path) -> Iterator[dict[str, object]]:
    began_s = time.perf_counter()
    with page(folder) as (url, pid):

        def step(name: str, seconds: float) -> dict[str, object]:
            return row(f"page: {name}", seconds, used_by(pid))

        yield step("start of the process", time.perf_counter() - began_s)
        yield step("first screen", timed(partial(wait_for, url, 0.5, re.compile(r"cache [0-9a-f]{8}").search)))
        yield step("all events read", timed(partial(wait_for, url, 10.0, lambda html: "so far" not in html)))
        for selection in SELECTIONS:
            yield step(f"answer {selection}", max(timed(partial(get, url + selection)) for _ in range(5)))
        time.sleep(IDLE_S)
        yield step("later, nobody looks on", IDLE_S)


def measure_command(*arguments: str) -> dict[str, object]:
    began_s = time.perf_counter()
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, arguments
    used = Used(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
    return row(f"kafkameta {arguments[0]}", time.perf_counter() - began_s, used)


def measure_spark(folder: Path) -> Iterator[dict[str, object]]:
    with spark_session() as spark:
        for table in TABLES:
            rows = spark.read.format("kafkameta").option("table", table).option("eventsPath", str(folder)).load()
            yield row(f"spark: {table}", timed(rows.write.format("noop").mode("overwrite").save))


def main() -> None:
    parser = argument_parser(__doc__, caches=500, partitions=10_000, events=1_000_000)
    parser.add_argument("--folder", type=Path, help="with such events, from a run before; else they are written there")
    parser.add_argument("--only", choices=("page", "incidents", "spark"), help="of the measurements")
    arguments = parser.parse_args()
    scale = Scale(caches=arguments.caches, partitions=arguments.partitions, events=arguments.events)
    with tempfile.TemporaryDirectory() as temporary:
        folder, rows = arguments.folder or Path(temporary), list[dict[str, object]]()
        if not any(folder.glob("*.jsonl")):
            rows.append(row("write the events", timed(lambda: write_events(folder, scale, int(time.time() * 1000)))))
        if arguments.only in (None, "page"):
            rows += measure_page(folder)
        if arguments.only in (None, "incidents"):
            rows.append(measure_command("incidents", "--path", str(folder)))
        if arguments.only in (None, "spark"):
            rows += measure_spark(folder)
    title = f"{scale.caches:,} caches of {scale.partitions:,} partitions, {scale.events:,} events"
    report(title, rows, arguments.json)


if __name__ == "__main__":
    main()
