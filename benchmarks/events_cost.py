"""Measures the cost of refresh events for a read: throughput with events and without.

    python -m benchmarks.events_cost [--records 3000000] [--rounds 60] [--json FILE]

All readers take turns in one Spark session, as in `benchmarks.throughput`. "Often" is a cache that refreshes ten times
a second, far more often than any real fault causes. Turns differ by several percent: the standard error and a second
reader without events show the noise of a figure. With `--records 600` only the fixed cost of a query is left, and the
cost that events add.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import Reader, take_turns
from benchmarks.throughput import PARTITIONS, VALUE_BYTES, read
from benchmarks.topics import fill, new_topic
from pyspark_kafka_meta import KafkaMetaDataSource
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.source import TableOptions

PUBLISHING, SILENT = "kafkameta_publishing", "kafkameta_silent"
SILENT_READER = Reader("no events", SILENT)


class PublishingSource(KafkaMetaDataSource):
    """This source, registered in Spark like the silent source."""

    @classmethod
    def name(cls) -> str:
        return PUBLISHING


class SilentSource(KafkaMetaDataSource):
    """This source, with events only in the log."""

    @classmethod
    def name(cls) -> str:
        return SILENT

    def _read_options(self) -> TableOptions:
        table, options = super()._read_options()
        assert isinstance(options, SourceOptions)
        return table, replace(options, events=None)


def readers(folder: str, events_topic: str) -> list[Reader]:
    often = {"kafka.metadata.max.age.ms": "100"}
    return [
        SILENT_READER,
        Reader("no events, as a control", SILENT, {"kafka.client.id": "control"}),
        Reader("events to a folder", PUBLISHING, {"eventsPath": folder}),
        Reader("events to a topic", PUBLISHING, {"eventsTopic": events_topic}),
        Reader("events to a folder, often", PUBLISHING, {"eventsPath": folder, **often}),
    ]


def result_row(name: str, taken: list[float], silent: list[float]) -> dict[str, object]:
    """The time that turns add to the turns without events in the same rounds."""
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
        events_topic = new_topic(bootstrap_servers, "events", 1)
        fill(bootstrap_servers, topic, PARTITIONS, arguments.records, VALUE_BYTES, "lz4")
        for source in (PublishingSource, SilentSource):
            spark.dataSource.register(source)
        compared = readers(folder, events_topic)
        turns = take_turns(compared, arguments.rounds, partial(read, spark, bootstrap_servers, topic))
        files = list(Path(folder).glob("*.jsonl"))
        written = sum(len(file.read_text().splitlines()) for file in files)
    seconds = {name: [turn.seconds for turn in taken] for name, taken in turns.items()}
    rows = [result_row(name, taken, seconds[SILENT_READER.name]) for name, taken in seconds.items()]
    records, rounds = arguments.records, arguments.rounds
    title = f"{records:,} records of {VALUE_BYTES} B, {rounds} turns each; {written} events in {len(files)} files"
    report(title, rows, arguments.json)


if __name__ == "__main__":
    main()
