"""What `kafkameta replay` does: it sends the records of dead letters again, once what they failed by is mended.

A record gets one header, `kafkameta.replay` with the place that its letter names, by which consumers recognise it if it
is sent twice. Letters of the same place and time are one record: a repeated task writes them again. The time tells
records of a recreated topic from those before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN
from pyspark_kafka_meta.model import OffsetRange, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner
from pyspark_kafka_meta.tools.console import Shown, note
from pyspark_kafka_meta.tools.doctor.topic_checks import writing_query
from pyspark_kafka_meta.tools.formatting import plain
from pyspark_kafka_meta.typed.dead_letters import LETTER_SCHEMA, Letter, read_letter
from pyspark_kafka_meta.write.input_columns import RECORD_COLUMNS
from pyspark_kafka_meta.write.task_writer import TaskWriter
from pyspark_kafka_meta.write.topic_metadata import ask_partitions

REPLAY_HEADER = "kafkameta.replay"
SCHEMA = LETTER_SCHEMA.append(pa.field("partition", pa.int32()))
COLUMNS = replace(RECORD_COLUMNS, partition=4)
LARGE_RECORDS = {"kafka.compression.type": "zstd", "kafka.max.request.size": "100000000"}
"""Unless options say otherwise: what could become a letter can be sent again."""
MAX_CAUSES = 20
"""That are shown: a cause may name what is different in each record."""


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters are sent.

    Attributes:
        topic: of their records; None for any.
        cause: text in their causes.
        since_ms: since 1970 UTC, when they were written.
    """

    topic: str | None
    cause: str
    since_ms: int

    def takes(self, letter: Letter, written_us: int) -> bool:
        is_of_topic = self.topic in (None, letter.partition.topic)
        return is_of_topic and self.cause in letter.cause and written_us >= self.since_ms * 1000


class LettersByCause(Counter[tuple[str, str]]):
    """How many letters there are, by topic and cause."""

    def rows(self) -> Iterator[dict[str, object]]:
        """The most frequent first."""
        for (topic, cause), count in self.most_common(MAX_CAUSES):
            yield {"topic": topic, "cause": cause, "letters": count}
        if rest := self.total() - sum(count for _, count in self.most_common(MAX_CAUSES)):
            yield {"topic": None, "cause": "other causes", "letters": rest}

    def table(self) -> Table:
        table = Table("topic", "cause", "letters", title="Letters", title_justify="left")
        for row in self.rows():
            table.add_row(*map(plain, row.values()))
        return table


LETTERS = Shown[LettersByCause](LettersByCause.rows, LettersByCause.table)


def replay(
    cluster: Mapping[str, str],
    letters: str,
    wanted: LetterFilter,
    to: str,
    is_confirmed: Callable[[str], bool],
    console: Console | None,
) -> bool:
    """Show the letters that are there now, and send their records if the user agrees. Returns whether nothing is left
    to do.

    Args:
        cluster: options of brokers and of writing.
        letters: topic to read.
        to: topic to write.

    Raises:
        KafkaMetaError: as `OffsetPlanner.batch_ranges`, `TaskReader.read` and `TaskWriter.write`.
    """
    if letters == to:
        raise OptionError("--to must be another topic than that of the letters, which would get its own letters")
    reading, sink = writing_query({**LARGE_RECORDS, **cluster}, to)
    given = {"kafka.isolation.level": "read_committed", **reading, "subscribe": letters}
    source = SourceOptions.parse(given).for_batch()
    with ExitStack() as opened:
        reader, writer = (
            opened.enter_context(closing(client_without_events(options))) for options in (source.client, sink.client)
        )
        ask_partitions(writer, [to], sink.producer.max_block_ms)
        ranges = OffsetPlanner(reader, source).batch_ranges()
        found = LettersByCause(
            (each.partition.topic, each.cause) for part in _letters(reader, source, ranges, wanted) for each in part
        )
        if not found:
            note(f"nothing to send: {letters} has no such letters")
            return True
        LETTERS.show(found, console)
        if not is_confirmed(f"Send these {found.total()} records to {to}?"):
            return False
        partitions = frozenset(writer.cache.snapshot.partitions(to))
        batches = (_records(part, partitions) for part in _letters(reader, source, ranges, wanted))
        written = TaskWriter(writer, sink.producer, COLUMNS, to).write(batches)
        note(f"sent {sum(offsets.records for offsets in written.values())} records to {to}")
        return True


def _letters(
    client: KafkaClient, source: SourceOptions, ranges: Sequence[OffsetRange], wanted: LetterFilter
) -> Iterator[list[Letter]]:
    """The first letter of each record, in parts."""
    seen: set[tuple[TopicPartition, int, int | None]] = set()
    for batch in TaskReader(client, source, LETTER_SCHEMA.names).read(ranges):
        *columns, times = (column.to_pylist() for column in [*batch.columns[:3], batch.columns[3].cast(pa.int64())])
        found: dict[tuple[TopicPartition, int, int | None], Letter] = {}
        for written_us, key, value, headers in zip(times, *columns, strict=True):
            letter = read_letter(key, value, headers, written_us)
            if letter is not None and wanted.takes(letter, written_us):
                found.setdefault((letter.partition, letter.offset, letter.timestamp_us), letter)
        yield [letter for record, letter in found.items() if record not in seen]
        seen |= found.keys()


def _records(letters: Sequence[Letter], partitions: Collection[TopicPartition]) -> pa.RecordBatch:
    """Those of one of these partitions go back there: producers may have chosen it otherwise than by Java's hash."""
    rows = [
        {
            "key": letter.key,
            "value": letter.value,
            HEADERS_COLUMN: [
                *(each for each in letter.headers if each["key"] != REPLAY_HEADER),
                {"key": REPLAY_HEADER, "value": letter.name.encode()},
            ],
            "timestamp": letter.timestamp_us,
            "partition": letter.partition.partition if letter.partition in partitions else None,
        }
        for letter in letters
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
