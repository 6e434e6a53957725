"""What the refresh events cost a read: throughput with events, beside the same source without any.

    python -m benchmarks.events_cost [--records 3000000] [--rounds 60] [--json FILE]

All readers take turns in one Spark session, as in `benchmarks.throughput`. "Often" is a cache that refreshes ten times
a second, far more than any real trouble makes it. One turn differs from the next by several percent: a standard error
and a second reader without events tell how much of a figure is noise. With `--records 600` hardly anything is left but
what a query costs in any case, and what events add to that.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import MutableMapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import Reader, take_turns
from benchmarks.throughput import PARTITIONS, VALUE_BYTES, read
from benchmarks.topics import fill, new_topic
from pyspark_kafka_meta import KafkaMetaDataSource

TELLING, SILENT = "kafkameta_telling", "kafkameta_silent"
SILENT_READER = Reader("no events", SILENT)


class TellingSource(KafkaMetaDataSource):
    """This source, made known to Spark in the same way as the other."""

    @classmethod
    def name(cls) -> str:
        return TELLING


class SilentSource(KafkaMetaDataSource):
    """The same source, whose events go nowhere but to the log."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = replace(self._options, metrics=None)  # type: ignore[arg-type]

    @classmethod
    def name(cls) -> str:
        return SILENT


def readers(folder: str, metrics_topic: str) -> list[Reader]:
    often = {"kafka.metadata.max.age.ms": "100"}
    return [
        SILENT_READER,
        Reader("no events, as a control", SILENT, {"kafka.client.id": "control"}),
        Reader("events to a folder", TELLING, {"metricsPath": folder}),
        Reader("events to a topic", TELLING, {"metricsTopic": metrics_topic}),
        Reader("events to a folder, often", TELLING, {"metricsPath": folder, **often}),
    ]


def result_row(name: str, taken: list[float], silent: list[float]) -> dict[str, object]:
    """What the turns add to those without events of the same rounds."""
    added = [seconds - without for seconds, without in zip(taken, silent, strict=True)]
    usual = statistics.fmean(silent)
    return {
        "reader": name,
        "mean_s": round(statistics.fmean(taken), 3),
        "ratio_of_the_means": round(1 + statistics.fmean(added) / usual, 3),
        "standard_error": round(statistics.stdev(added) / usual / len(added) ** 0.5, 3),
        "ratio_of_the_medians": round(statistics.median(taken) / statistics.median(silent), 3),
    }


def main() -> None:
    arguments = argument_parser(__doc__, records=3_000_000, rounds=60).parse_args()
    with brokers() as bootstrap_servers, spark_session() as spark, tempfile.TemporaryDirectory() as folder:
        topic = new_topic(bootstrap_servers, "cost", PARTITIONS)
        metrics_topic = new_topic(bootstrap_servers, "events", 1)
        fill(bootstrap_servers, topic, PARTITIONS, arguments.records, VALUE_BYTES, "lz4")
        for source in (TellingSource, SilentSource):
            spark.dataSource.register(source)
        playing = readers(folder, metrics_topic)
        turns = take_turns(playing, arguments.rounds, partial(read, spark, bootstrap_servers, topic))
        files = list(Path(folder).glob("*.jsonl"))
        written = sum(len(file.read_text().splitlines()) for file in files)
    seconds = {name: [turn.seconds for turn in taken] for name, taken in turns.items()}
    rows = [result_row(name, taken, seconds[SILENT_READER.name]) for name, taken in seconds.items()]
    records, rounds = arguments.records, arguments.rounds
    title = f"{records:,} records of {VALUE_BYTES} B, {rounds} turns each; {written} events in {len(files)} files"
    report(title, rows, arguments.json)


if __name__ == "__main__":
    main()
