"""Checks that a stream stays exactly-once, and its memory small, while brokers fail for a long time.

    python -m benchmarks.soak [--minutes 20] [--partitions 6] [--rate 2000] [--json FILE]

An idempotent producer with acks=all feeds a real three-broker Kafka, and a Spark streaming query writes all records to
Parquet, from a checkpoint. Every 25 s comes one fault: kill -9 of a broker, SIGSTOP for 12 s, SIGTERM, an election of
the preferred leaders. Faults go from broker to broker, and each waits until all replicas are in sync again. At the end
every acknowledged record must be one row. Exits with 1 if a record is missing or repeated, or the query was restarted.
Timeouts of healthy brokers, which refresh events blame although they had no fault, are counted.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.acked_feed import AckedFeed, Acknowledged
from benchmarks.harness import argument_parser, report, spark_session
from benchmarks.processes import kill_workers, resident_mb
from benchmarks.topics import new_topic
from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.cluster_tools import elect, in_sync, poll_until

KINDS = ("kill -9", "hang", "SIGTERM", "election")
WORKERS = "kill -9 of workers"
"""A fault that fails a task, and thereby the query."""
FAULT_EVERY_S = 25.0
HANG_S = 12.0
DOWN_S = 5.0
WORKERS_DIE_S, WORKERS_DIE_EVERY_S = 1.5, 0.05
"""Longer than the trigger interval: Spark replaces idle workers without a failure."""
HEALTHY_TIMEOUT_S = 120.0
CATCH_UP_TIMEOUT_S = 180.0
LOOK_EVERY_S = 2.0
BLAME_S = 10.0
"""For so long after a fault is over, a refresh event may blame its broker for a request that it did not respond to."""
MAX_PLACES = 10
"""Timeouts of healthy brokers that are described."""
MEASURE_AT = (0.1, 0.5, 1.0)
"""Fractions of the duration at which memory is measured: minutes 2, 10 and 20 of 20."""
PROCESSES = {"planner": "python_streaming_source_runner", "largest worker": "pyspark.daemon"}


class Unwell(NamedTuple):
    """The fault of a broker, from its begin until all replicas are in sync again, in seconds since 1970."""

    broker_id: int
    began: float
    ended: float

    def explains(self, event: Mapping[str, Any]) -> bool:
        """A broker responds to a commit once all in-sync replicas have it: it waits for a follower that hangs (9 s with
        `broker.session.timeout.ms` 9000), and is blamed for it."""
        is_during = self.began <= event["time_ms"] / 1000 <= self.ended + BLAME_S
        return is_during and bool(event["cause_node_id"] == self.broker_id or event["role"] == "committer")


@dataclass(frozen=True, slots=True)
class Rows:
    """Counts of the sink: rows, distinct positions in the log, and distinct acknowledged records."""

    count: int
    positions: int
    records: int


@dataclass(frozen=True, slots=True)
class Verdict:
    missing: int
    repeated: int
    restarts: int

    @classmethod
    def of(cls, acknowledged: Acknowledged, rows: Rows, restarts: int) -> Verdict:
        return cls(acknowledged.records - rows.records, rows.count - rows.positions, restarts)

    @property
    def is_good(self) -> bool:
        return self == Verdict(0, 0, 0)


def fault(number: int, broker_ids: Sequence[int], kinds: Sequence[str] = KINDS) -> tuple[str, int]:
    """The kind of a fault and its broker. Faults between two elections have different brokers, which lead therefore."""
    return kinds[number % len(kinds)], broker_ids[number % len(broker_ids)]


def inflict(kafka: LocalKafka, topics: Collection[str], kind: str, broker_id: int) -> Unwell:
    """Let a broker fail, bring it back, and wait until all replicas are in sync; or let running tasks fail."""
    began, workers_die_until = time.time(), time.monotonic() + WORKERS_DIE_S
    if kind == WORKERS:
        while time.monotonic() < workers_die_until:
            kill_workers()
            time.sleep(WORKERS_DIE_EVERY_S)
    elif kind == "election":
        elect(kafka, None)
    else:
        _let_fail(kafka, kind, broker_id)
        poll_until(lambda: all(in_sync(kafka, topic, len(kafka.broker_ids)) for topic in topics), HEALTHY_TIMEOUT_S)
    return Unwell(broker_id, began, time.time())


def _let_fail(kafka: LocalKafka, kind: str, broker_id: int) -> None:
    if kind == "hang":
        kafka.pause(broker_id)
        time.sleep(HANG_S)
    else:
        (kafka.kill if kind == "kill -9" else kafka.stop)(broker_id)
        time.sleep(DOWN_S)
    kafka.restore()


class Soak:
    """The query and what is seen of it.

    Attributes:
        kinds: of the faults.
        batch_ms: how long each micro-batch with rows took, by its id.
        failures: why the query ended by itself, each time.
        events_folder: of refresh events.
    """

    kinds: ClassVar[Sequence[str]] = KINDS

    def __init__(self, spark: SparkSession, kafka: LocalKafka, topic: str, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self.events_folder = folder / "events"
        self._options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "eventsPath": str(self.events_folder),
        }
        self.batch_ms: dict[int, float] = {}
        self.failures: list[str] = []
        self._query = self._start()

    def look(self) -> None:
        """Note the last micro-batches; start the query again if it has ended."""
        for progress in self._query.recentProgress:
            if progress.numInputRows > 0:
                self.batch_ms[progress.batchId] = float(progress.durationMs["triggerExecution"])
        if (error := self._query.exception()) is not None:
            self.failures.append(str(error).partition("\n")[0])
            self._query = self._start()

    def catch_up(self, acknowledged: Acknowledged) -> Rows:
        """Stop the query as soon as there are as many rows as acknowledged records, or it is late."""
        deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
        while (
            self._rows().select("partition", "offset").distinct().count() < acknowledged.records
            and time.monotonic() < deadline
        ):
            self.look()
            time.sleep(LOOK_EVERY_S)
        self._query.stop()
        known = ~F.col("number").isin(list(acknowledged.unknown))
        counts = [F.count("*"), F.countDistinct("partition", "offset"), F.countDistinct(F.when(known, F.col("number")))]
        [row] = self._rows().agg(*counts).collect()
        return Rows(*row)

    def _positions(self) -> int:
        return self._rows().select("partition", "offset").distinct().count()

    def _rows(self) -> DataFrame:
        return self._spark.read.parquet(str(self._folder / "rows"))

    def _start(self) -> StreamingQuery:
        rows = self._spark.readStream.format("kafkameta").options(**self._options).load()
        number = F.col("value").cast("string").cast("bigint").alias("number")
        sink = rows.select("partition", "offset", number).writeStream.format("parquet")
        sink = sink.option("path", str(self._folder / "rows")).option("checkpointLocation", str(self._folder / "state"))
        return sink.trigger(processingTime="1 second").start()


@dataclass(slots=True)
class Seen:
    """What is seen while faults come: how many of each kind, when brokers had them, and the MB of each process at each
    share of the time."""

    faults: Counter[str] = field(default_factory=Counter)
    unwell: list[Unwell] = field(default_factory=list)
    resident_mb: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PROCESSES})


def stand(soak: Soak, kafka: LocalKafka, topics: Collection[str], seconds: float) -> Seen:
    """Inflict faults for so long, the last of which is over when this returns."""
    seen, began, measured = Seen(), time.monotonic(), 0
    under_way: Future[None] | None = None

    def strike(kind: str, broker_id: int) -> None:
        seen.unwell.append(inflict(kafka, topics, kind, broker_id))

    with ThreadPoolExecutor(1) as thread:
        while (passed := time.monotonic() - began) < seconds or measured < len(MEASURE_AT):
            soak.look()
            if measured < len(MEASURE_AT) and passed >= MEASURE_AT[measured] * seconds:
                for name, part in PROCESSES.items():
                    seen.resident_mb[name].append(resident_mb(part))
                measured += 1
            number = seen.faults.total()
            if passed >= FAULT_EVERY_S * (number + 1) and (under_way is None or under_way.done()):
                if under_way is not None:
                    under_way.result()
                kind, broker_id = fault(number, kafka.broker_ids, soak.kinds)
                under_way = thread.submit(strike, kind, broker_id)
                seen.faults[kind] += 1
            time.sleep(LOOK_EVERY_S)
    if under_way is not None:
        under_way.result()
    return seen


def result_rows(
    setting: str, seen: Seen, acknowledged: Acknowledged, rows: Rows, verdict: Verdict, soak: Soak, minutes: float
) -> list[dict[str, str]]:
    batches = list(soak.batch_ms.values()) or [float("nan")]
    p50, p99, longest = np.percentile(batches, [50, 99, 100])
    at = ", ".join(f"{share * minutes:g}" for share in MEASURE_AT)
    memory = {
        f"{name}, MB after {at} minutes": ", ".join(f"{mb:.0f}" for mb in taken)
        for name, taken in seen.resident_mb.items()
    }
    values = {
        "topic": setting,
        "faults": told(seen.faults),
        "acknowledged records": f"{acknowledged.records:,}",
        "rows": f"{rows.count:,}",
        "acknowledged records without a row": f"{verdict.missing:,}",
        "rows read twice": f"{verdict.repeated:,}",
        "restarts of the query": str(verdict.restarts),
        "micro-batches with rows": f"{len(batches):,}",
        "micro-batch ms, p50 / p99 / longest": f"{p50:,.0f} / {p99:,.0f} / {longest:,.0f}",
        **memory,
        **event_rows(soak.events_folder, seen.unwell),
    }
    return [{"measure": name, "value": value} for name, value in values.items()]


def event_rows(folder: Path, unwell: Collection[Unwell]) -> dict[str, str]:
    """What the refresh events in a folder say: false timeouts, and how many there are for each reason."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.open()]
    # A process that was killed may leave a part of a line.
    events = [event for event in (json.loads(line) for line in lines if line.endswith("\n")) if event["reason"]]
    false = [f" ({_place(event, unwell)})" for event in false_timeouts(events, unwell)]
    return {
        "timeouts of healthy brokers": f"{len(false):,}{''.join(false[:MAX_PLACES])}",
        "refresh events": told(Counter(f"{event['role']} {event['reason']}" for event in events)),
    }


def false_timeouts(events: Iterable[Mapping[str, Any]], unwell: Collection[Unwell]) -> list[Mapping[str, Any]]:
    """Events that blame a broker without a fault for a request without a response."""
    timeouts = [event for event in events if event["reason"] == "request_timeout"]
    return [event for event in timeouts if not any(fault.explains(event) for fault in unwell)]


def _place(event: Mapping[str, Any], unwell: Collection[Unwell]) -> str:
    """Who blames which broker, and when."""
    blames, time_s = f"{event['role']} blames {event['cause_node_id']}", event["time_ms"] / 1000
    earlier = [fault for fault in unwell if fault.began <= time_s]
    if not earlier:
        return f"{blames} before any fault"
    last = max(earlier, key=attrgetter("began"))
    return f"{blames} {time_s - last.began:.1f} s after {last.broker_id}, unwell for {last.ended - last.began:.1f} s"


def told(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def main() -> None:
    arguments = argument_parser(__doc__, minutes=20, partitions=6, rate=2_000).parse_args()
    partitions, rate, minutes = arguments.partitions, arguments.rate, arguments.minutes
    with spark_session() as spark, LocalKafka() as kafka, TemporaryDirectory() as folder:
        topic = new_topic(kafka.bootstrap_servers, "soak", partitions)
        soak = Soak(spark, kafka, topic, Path(folder))
        feed = AckedFeed(kafka.bootstrap_servers, topic, partitions, rate)
        seen = stand(soak, kafka, [topic], minutes * 60)
        acknowledged = feed.close()
        rows = soak.catch_up(acknowledged)
        verdict = Verdict.of(acknowledged, rows, len(soak.failures))
        setting = f"{partitions:,} partitions of 3 replicas, {rate:,} records a second for {minutes} minutes"
        report("Soak", result_rows(setting, seen, acknowledged, rows, verdict, soak, minutes), arguments.json)
    for failure in soak.failures:
        print(f"the query ended: {failure}")
    sys.exit(not verdict.is_good)


if __name__ == "__main__":
    main()
