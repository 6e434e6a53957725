"""Measures what the exporter costs with many caches, each in an executor of its own.

    python -m benchmarks.exporter_cost [--caches 1000] [--partitions 100] [--rounds 10] [--json FILE]

No Kafka and no Spark: another process writes the files of simulated caches. The first poll reads what the caches
learned at their start. Before each of the next polls every cache writes one file, with a refresh after a leader change,
as in a rolling restart. Then there are polls without new files, and scrapes. CPU time of a scrape is that of server and
client. Without a cluster no stale partitions are counted. Memory includes what this program imports, pyspark among it.
"""

from __future__ import annotations

import multiprocessing
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

from benchmarks.harness import argument_parser, report
from pyspark_kafka_meta.events.event import Event, EventKind, Origin, Outcome, Role
from pyspark_kafka_meta.events.sinks import FolderSink, LocalFolder
from pyspark_kafka_meta.kafka.metadata.cache_state import Refreshed
from pyspark_kafka_meta.kafka.metadata.refresh_policy import RefreshCause
from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, PartitionLearned, SnapshotChanges
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.tools.event_sources import FolderEvents
from pyspark_kafka_meta.tools.exporter.server import Poller, PollTargets, serve

BROKERS = 100
TOPIC = "clicks"
RESIDENT = re.compile(rb"^process_resident_memory_bytes (\S+)", re.MULTILINE)
SCRAPE_TIMEOUT_S = 60


def write_events(folder: Path, caches: int, partitions: int, sequence: int) -> None:
    """One file and event for each cache: all partitions at sequence 1, one moved leader at later ones."""
    for number in range(caches):
        FolderSink(LocalFolder(folder)).write([event_of(number, partitions, sequence)])


def event_of(number: int, partitions: int, sequence: int) -> Event:
    partition = sequence % partitions
    learned = tuple(PartitionLearned(TOPIC, index, index % BROKERS, 0, None) for index in range(partitions))
    moved = LeaderChange(TOPIC, partition, partition % BROKERS, (partition + 1) % BROKERS, sequence - 1, sequence)
    return Event(
        cache_id=f"{number:032x}",
        sequence=sequence,
        cluster_id="simulated",
        time_ms=int(time.time() * 1000),
        kind=EventKind.REFRESH,
        reason=RefreshReason.BOOTSTRAP if sequence == 1 else RefreshReason.NOT_LEADER,
        age_ms=None,
        idle_ms=None,
        outcome=Outcome.CHANGED,
        generation_before=sequence - 1,
        generation_after=sequence,
        lookups=10,
        details=Refreshed(
            RefreshCause(RefreshReason.BOOTSTRAP),
            began=0.0,
            generation_before=sequence - 1,
            fetched_before=0.0,
            broker_id=number % BROKERS,
            broker_host="host",
            broker_port=9092,
            latency_ms=2.5,
            attempt=1,
            changes=SnapshotChanges(partitions_learned=learned)
            if sequence == 1
            else SnapshotChanges(leaders_changed=(moved,)),
        ),
        origin=Origin(role=Role.READER, application_id="app", executor_id=str(number), host="host", pid=number),
    )


class Steps:
    """Durations of each step, and a table of them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._rows: list[dict[str, object]] = []

    def take(self, name: str, times: int, step: Callable[[], object], before: Callable[[int], object]) -> None:
        cpu_ms, elapsed_ms = [], []
        for turn in range(times):
            before(turn)
            cpu_s, began_s = time.process_time(), time.perf_counter()
            step()
            elapsed_ms.append((time.perf_counter() - began_s) * 1000)
            cpu_ms.append((time.process_time() - cpu_s) * 1000)
        text = self.scrape()
        found = RESIDENT.search(text)
        self._rows.append(
            {
                "step": name,
                "times": times,
                "mean_cpu_ms": round(statistics.fmean(cpu_ms), 1),
                "mean_ms": round(statistics.fmean(elapsed_ms), 1),
                "resident_mb_after": round(float(found[1]) / 1e6) if found else None,
                "scrape_bytes": len(text),
                "series": sum(not line.startswith(b"#") for line in text.splitlines()),
            }
        )

    def scrape(self) -> bytes:
        with urlopen(self._url, timeout=SCRAPE_TIMEOUT_S) as response:
            return bytes(response.read())

    def rows(self) -> list[dict[str, object]]:
        return self._rows


def main() -> None:
    arguments = argument_parser(__doc__, caches=1_000, partitions=100, rounds=10).parse_args()
    caches, partitions, rounds = arguments.caches, arguments.partitions, arguments.rounds
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as writer:
        folder = Path(name)
        poller = Poller(PollTargets(events=FolderEvents(name, skips_unreadable=True), cluster={}), interval_s=1)

        def write(sequence: int) -> None:
            writer.submit(write_events, folder, caches, partitions, sequence).result()

        def nothing(_: int) -> None:
            """Before steps that need no new files."""

        with closing(serve(poller, "127.0.0.1", 0)) as server:
            steps = Steps(server.url)
            steps.take("before the first poll", 1, steps.scrape, nothing)
            steps.take("first poll", 1, poller.poll, lambda _: write(1))
            steps.take("poll with an event of each cache", rounds, poller.poll, lambda turn: write(turn + 2))
            steps.take("poll without new events", rounds, poller.poll, nothing)
            steps.take("scrape", rounds, steps.scrape, nothing)
    report(f"{caches:,} caches with {partitions:,} partitions each", steps.rows(), arguments.json)


if __name__ == "__main__":
    main()
