"""`kafkameta move-checkpoint`: a query goes on at another cluster, which has copies of its topics.

The command finds each position of the checkpoint in the other cluster (`Way`), and proves it by the records around it
(`tools.same_records`). A micro-batch that was planned and not committed is read again as it was planned, so its end is
found too. Committed micro-batches are not read again: the copy of the checkpoint has the last two files of offsets
alone, which Spark needs.

The records of MirrorMaker's offset-syncs topic follow Kafka's `OffsetSync`. `OffsetSyncStore` translates to a record or
one after it, which reads records again. Here a sync, or a timestamp, is only where the search begins: the record at the
position, or before it if none follows, is not before that place in the other cluster.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from pyspark_kafka_meta.errors import CheckpointError, OptionError
from pyspark_kafka_meta.events.origin import planner_origin
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.protocol.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN
from pyspark_kafka_meta.model import (
    OffsetRange,
    Position,
    Positions,
    TopicGeneration,
    TopicPartition,
    is_other_topic,
    name_first,
)
from pyspark_kafka_meta.options import EARLIEST_OFFSET, ClusterOptions, ReadOptions, default_options
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, SourceOffset, ranges, source_offset
from pyspark_kafka_meta.read.planning.data_loss import MAX_NAMED
from pyspark_kafka_meta.tables.lag import FETCH_BYTES
from pyspark_kafka_meta.tools.checkpoints import batches, copy_with_offsets, files_in_one_line, translated
from pyspark_kafka_meta.tools.same_records import Around, Proof, SeenRecord, Verdict, Way, assume, prove, refused, seen

COMPARED = (8, 64, 512, 512)
"""Records on each side of a position: more where fewer are alike. Each attempt is at the place that the one before has
found."""
_GROWTH = 8
_COLUMNS = ["topic", "partition", "offset", "timestamp", "key", "value", HEADERS_COLUMN]
_SYNC_OFFSETS = struct.Struct(">qq")

Spans = Mapping[TopicPartition, tuple[int, int]]
Offsets = Mapping[TopicPartition, int]


class Logs:
    """The logs of one cluster, as readers see them with its `kafka.isolation.level`."""

    def __init__(self, options: Mapping[str, str], salt: bytes) -> None:
        cluster = ClusterOptions.parse(options)
        self._client = client_without_events(cluster.client, planner_origin())
        self._salt = salt
        # A Fetch of a few records does not return a backlog.
        self._options = default_options(
            ReadOptions,
            fetch=replace(cluster.fetch, max_partition_fetch_bytes=FETCH_BYTES),
            poll_timeout_ms=cluster.client.default_api_timeout_ms,
        )

    def close(self) -> None:
        self._client.close()

    def has_topic(self, topic: str) -> bool:
        return topic in self._client.cache.topic_names(self._client.api_deadline())

    def require(self, partitions: Mapping[TopicPartition, UUID | None], cluster: str) -> None:
        """Raises CheckpointError: a partition does not exist, or its topic has another id."""
        topics = {partition.topic for partition in partitions}
        found = self._client.partitions(topics, self._client.api_deadline(), partitions)
        if missing := sorted(partitions.keys() - set(found)):
            raise CheckpointError(f"{cluster} does not have {name_first(list(map(str, missing)))}")
        for partition, topic_id in partitions.items():
            if is_other_topic(topic_id, now := self._client.cache.snapshot.topic_id(partition.topic)):
                raise CheckpointError(
                    f"topic {partition.topic} in {cluster} is not the one that the query has read (topic id {topic_id},"
                    f" there {now}): correct --bootstrap-servers, or leave them out if that topic is gone"
                )

    def at(self, times: Offsets) -> dict[TopicPartition, int]:
        """The first offsets with these timestamps, ms, or later; -1 if there is none. Also `EARLIEST_TIMESTAMP`..."""
        listed = self._client.list_offsets(times, self._client.api_deadline(), self._options.fetch.read_committed)
        return {partition: found.offset for partition, found in listed.items()}

    def bounds(self, partitions: Offsets) -> Spans:
        starts, ends = (self.at(dict.fromkeys(partitions, time)) for time in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP))
        return {partition: (starts[partition], max(starts[partition], ends[partition])) for partition in partitions}

    def around(self, positions: Offsets, count: int) -> dict[TopicPartition, Around]:
        """Up to `count` records on each side of each position."""
        logs = self.bounds(positions)

        def before(partition: TopicPartition, width: int) -> tuple[int, int]:
            start, end = logs[partition]
            return max(start, positions[partition] - width), min(end, positions[partition])

        def after(partition: TopicPartition, width: int) -> tuple[int, int]:
            start, end = logs[partition]
            return max(start, positions[partition]), min(end, positions[partition] + width)

        sides = [self._nearest(positions, side, count, side is before) for side in (before, after)]
        return {
            partition: Around(position, *logs[partition], *(tuple(side[partition]) for side in sides))
            for partition, position in positions.items()
        }

    def _nearest(
        self, partitions: Offsets, span: Callable[[TopicPartition, int], tuple[int, int]], count: int, are_last: bool
    ) -> dict[TopicPartition, deque[SeenRecord]]:
        """The last or the first records of spans that grow until there are enough, or the log has no more."""
        found: dict[TopicPartition, deque[SeenRecord]] = {}
        left, width, spans = set(partitions), count, dict[TopicPartition, tuple[int, int]]()
        while left:
            before, spans = spans, {partition: span(partition, width) for partition in left}
            left = {partition for partition in left if spans[partition] != before.get(partition)}
            found |= {partition: deque(maxlen=count) for partition in left}
            for partition, record in self.records({partition: spans[partition] for partition in left}):
                if are_last or len(found[partition]) < count:
                    found[partition].append(record)
            left = {partition for partition in left if len(found[partition]) < count}
            width *= _GROWTH
        return found

    def find(self, wanted: Mapping[TopicPartition, SeenRecord], begins: Offsets) -> dict[TopicPartition, int]:
        """The offsets of the first records with this content, from `begins` on."""
        logs, found, width = self.bounds(begins), dict[TopicPartition, int](), 1000
        left = {part: max(at, logs[part][0]) for part, at in begins.items()}  # of a sync, retention may have removed it
        times = {record.timestamp_ms for record in wanted.values()}
        while left:
            spans = {part: (at, min(at + width, logs[part][1])) for part, at in left.items() if at < logs[part][1]}
            for partition, record in self.records(spans, times):
                if partition not in found and wanted[partition].is_copied_as(record):
                    found[partition] = record.offset
            left = {partition: until for partition, (_, until) in spans.items() if partition not in found}
            width *= _GROWTH
        return found

    def records(self, spans: Spans, times: set[int] | None = None) -> Iterator[tuple[TopicPartition, SeenRecord]]:
        """The records at offsets [from, until), in their order in each partition; only with these timestamps, ms."""
        for row, timestamp_ms in self._rows(spans, times):
            yield TopicPartition(row["topic"], row["partition"]), seen(row, timestamp_ms, self._salt)

    def _rows(self, spans: Spans, times: set[int] | None) -> Iterator[tuple[Mapping[str, Any], int]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        planned = [OffsetRange(partition, None, *span) for partition, span in spans.items() if span[0] < span[1]]
        for batch in TaskReader(self._client, self._options, _COLUMNS).read(planned) if planned else ():
            ms = pc.divide(batch.column("timestamp").cast(pa.int64()), 1000)
            rows = batch.drop_columns(["timestamp"])
            if times is not None:
                is_wanted = pc.is_in(ms, pa.array(times, pa.int64()))
                rows, ms = rows.filter(is_wanted), ms.filter(is_wanted)
            yield from zip(rows.to_pylist(), ms.to_pylist(), strict=True)

    def begins_by_syncs(self, topic: str, wanted: Mapping[TopicPartition, SeenRecord]) -> dict[TopicPartition, int]:
        """Where the last sync at or before each of these records of the first cluster is in the other one. Syncs of
        before a topic was recreated do not count."""
        begins: dict[TopicPartition, int] = {}
        last: dict[TopicPartition, int] = {}
        at = TopicPartition(topic, 0)
        for row, _ in self._rows(self.bounds({at: 0}), None):
            if (sync := parse_sync(row["key"], row["value"])) is None:
                continue
            partition, upstream, downstream = sync
            if upstream < last.get(partition, 0):
                begins.pop(partition, None)
            last[partition] = upstream
            if partition in wanted and upstream <= wanted[partition].offset:
                begins[partition] = downstream
        return begins


def parse_sync(key: bytes | None, value: bytes | None) -> tuple[TopicPartition, int, int] | None:
    """Partition and offset in the first cluster, and offset in the other; None for other records.

    A key is an int16 length, so many bytes of the topic, and an int32 partition; a value is two int64."""
    if key is None or value is None or len(key) < 6 or len(value) != _SYNC_OFFSETS.size:
        return None
    length = int.from_bytes(key[:2], "big")
    if len(key) != 2 + length + 4:
        return None
    upstream, downstream = _SYNC_OFFSETS.unpack(value)
    topic, partition = key[2 : 2 + length].decode(errors="replace"), int.from_bytes(key[2 + length :], "big")
    return TopicPartition(topic, partition), upstream, downstream


def name_there(names: Mapping[str, str], topic: str) -> str:
    """The topic in the other cluster. `*` in `names` is for all other topics and, in its value, for their name."""
    return names.get(topic, names.get("*", "*").replace("*", topic))


class MovedOffset(NamedTuple):
    """A position: the next offset of the query, or an end."""

    partition: TopicPartition
    what: str
    offset: int
    there: TopicPartition
    proof: Proof


class Mover:
    """Finds positions of a query in the other cluster."""

    def __init__(
        self, first: Logs | None, other: Logs, names: Mapping[str, str], way: Way, syncs_topic: str | None
    ) -> None:
        """
        Args:
            first: None if the cluster is gone: then positions are the same offsets.
            names: as of `name_there`.
            syncs_topic: of `Way.OFFSET_SYNCS`, in either cluster.
        """
        self._first, self._other, self._names, self._way, self._syncs_topic = first, other, names, way, syncs_topic

    def there(self, partition: TopicPartition) -> TopicPartition:
        return TopicPartition(name_there(self._names, partition.topic), partition.partition)

    def require(self, offset: SourceOffset) -> None:
        """Raises CheckpointError: a topic of the checkpoint is not in a cluster."""
        if self._first is not None:
            ids = {partition: offset.topic_ids[partition.topic] for partition in offset.positions}
            self._first.require(ids, "the first cluster")
        self._other.require({self.there(partition): None for partition in offset.positions}, "the other cluster")

    def find(self, offsets: Offsets, what: str) -> list[MovedOffset]:
        proofs = self._proofs(offsets)
        return [
            MovedOffset(partition, what, offset, self.there(partition), proofs[partition])
            for partition, offset in sorted(offsets.items())
        ]

    def _proofs(self, offsets: Offsets) -> dict[TopicPartition, Proof]:
        """By partition of the first cluster."""
        if self._first is None:
            return self._assumed(offsets)
        earliest = dict.fromkeys((partition for partition, offset in offsets.items() if offset == EARLIEST_OFFSET), 0)
        positions = {**offsets, **{partition: start for partition, (start, _) in self._first.bounds(earliest).items()}}
        logs = self._first.around(positions, 1)
        places = positions if self._way is Way.OFFSETS else self._places(self._first, logs)
        missing = "the other cluster does not have the record"
        proofs = {part: refused(f"{missing}: {logs[part].neighbours()}") for part in positions.keys() - places.keys()}
        twins = {} if self._way is Way.OFFSETS else self._twins(self._first, logs)
        left = places
        for count in COMPARED:
            # Where an equal record is nearer, both places are compared.
            near = {part: place for part, place in left.items() if twins.get(part, 0) <= count}
            copies = self._other.around({self.there(partition): place for partition, place in near.items()}, 2 * count)
            # Later than the copies, which have no record that the log does not have.
            logs |= self._first.around({partition: positions[partition] for partition in near}, count)
            for partition in near:
                copy = copies[self.there(partition)]
                proofs[partition] = prove(logs[partition], copy, count, self._way is Way.OFFSETS)
            left = {
                partition: place if (proof := proofs.get(partition)) is None or proof.offset is None else proof.offset
                for partition, place in left.items()
                if partition not in near or proofs[partition].verdict is Verdict.AMBIGUOUS
            }
        again = "the first cluster has an equal record {} offsets before, so that its place is not known"
        return {part: refused(again.format(twins[part])) for part in left if part not in proofs} | proofs

    def _twins(self, first: Logs, logs: Mapping[TopicPartition, Around]) -> dict[TopicPartition, int]:
        """How many offsets before the record at each position the first equal one is, as in a topic that was loaded
        twice: the other cluster would be searched to the first."""
        wanted = {part: record for part, log in logs.items() for record in (*log.before, *log.after)}  # the last counts
        listed = first.at({part: record.timestamp_ms for part, record in wanted.items()})
        found = first.find(wanted, {partition: offset for partition, offset in listed.items() if offset >= 0})
        return {partition: wanted[partition].offset - offset for partition, offset in found.items()}

    def _assumed(self, offsets: Offsets) -> dict[TopicPartition, Proof]:
        places = {self.there(partition): offset for partition, offset in offsets.items()}
        earliest = dict.fromkeys((partition for partition, offset in places.items() if offset == EARLIEST_OFFSET), 0)
        places |= {partition: start for partition, (start, _) in self._other.bounds(earliest).items()}
        copies = self._other.around(places, 1)
        return {partition: assume(copies[self.there(partition)]) for partition in offsets}

    def _places(self, first: Logs, logs: Mapping[TopicPartition, Around]) -> dict[TopicPartition, int]:
        """Places of the other cluster near the positions; none for a partition whose records are not there."""
        bounds = self._other.bounds({self.there(partition): 0 for partition in logs})
        places = {part: bounds[self.there(part)][1] for part, log in logs.items() if not (log.before or log.after)}
        for are_before in (False, True):  # the copy may not have the record after the position yet
            sides = {part: log.before if are_before else log.after for part, log in logs.items() if part not in places}
            wanted = {part: side[0] for part, side in sides.items() if side}
            begins = self._begins(first, wanted, {self.there(part): bounds[self.there(part)][0] for part in wanted})
            found = self._other.find({self.there(part): record for part, record in wanted.items()}, begins)
            places |= {part: found[self.there(part)] + are_before for part in wanted if self.there(part) in found}
        return places

    def _begins(self, first: Logs, wanted: Mapping[TopicPartition, SeenRecord], starts: Offsets) -> Offsets:
        """Where to search, by partition of the other cluster; `starts` are of its logs."""
        if self._way is Way.TIMESTAMPS:
            listed = self._other.at({self.there(part): record.timestamp_ms for part, record in wanted.items()})
            return {partition: offset for partition, offset in listed.items() if offset >= 0}
        topic = self._syncs_topic or ""
        logs = next((logs for logs in (first, self._other) if logs.has_topic(topic)), None)
        if logs is None:
            raise CheckpointError(f"neither cluster has the offset-syncs topic {topic}: correct its name")
        synced = logs.begins_by_syncs(topic, wanted)
        return {**starts, **{self.there(partition): offset for partition, offset in synced.items()}}


@dataclass(frozen=True, slots=True)
class MovedSource:
    """One source of a query, whose line in the files of offsets has the number `line`.

    Attributes:
        names: as of `name_there`.
        previous: where the micro-batch before the last one ended.
        begins: where the query goes on.
        ends: where the planned micro-batch ends; None if the last one is committed.
    """

    line: int
    names: Mapping[str, str]
    previous: SourceOffset
    last: SourceOffset
    begins: list[MovedOffset]
    ends: list[MovedOffset] | None

    def moved(self) -> tuple[SourceOffset, SourceOffset]:
        """`previous` and `last`, in the other cluster; both where the query goes on if `last` is committed."""
        last = self._there(self.last, self.begins if self.ends is None else self.ends)
        if self.ends is None:
            return last, last
        kept = [row for row in self.begins if row.partition in self.previous.positions]
        started = [row for row in self.begins if row.partition in self.last.start]
        return self._there(self.previous, kept), replace(last, start=_positions(started))

    def _there(self, offset: SourceOffset, rows: Sequence[MovedOffset]) -> SourceOffset:
        """Without topic ids and leader epochs, which the query takes from the other cluster with the next records. With
        other offsets, a generation more keeps later records of changes greater."""
        names = {row.partition.topic: row.there.topic for row in self.begins}
        has_moved = any(row.offset != row.proof.offset for row in (*self.begins, *(self.ends or ())))
        numbers = {name: offset.generation(topic) + has_moved for topic, name in names.items()}
        gone = {topic: known for topic, known in offset.generations.items() if topic not in names}
        return replace(
            offset,
            positions=_positions(rows),
            topic_ids={row.there.topic: None for row in rows},
            start={},
            generations={name_there(self.names, topic): known for topic, known in gone.items()}
            | {name: TopicGeneration(number, None) for name, number in numbers.items() if number},
        )


def _positions(rows: Sequence[MovedOffset]) -> Positions:
    return {row.there: Position(row.proof.offset) for row in rows if row.proof.offset is not None}


@dataclass(frozen=True, slots=True)
class Move:
    """What would be written.

    Attributes:
        lines: of the files of offsets, of the last two micro-batches.
    """

    checkpoint: Path
    lines: Mapping[int, list[str]]
    sources: tuple[MovedSource, ...]

    def rows(self) -> list[MovedOffset]:
        return [row for source in self.sources for row in (*source.begins, *(source.ends or ()))]

    def check(self, may_be_unproved: bool) -> None:
        """Raises CheckpointError: a position is not proved."""
        allowed = (Verdict.PROVED, Verdict.UNKNOWN) if may_be_unproved else (Verdict.PROVED,)
        wrong = [row for row in self.rows() if row.proof.verdict not in allowed]
        if not wrong:
            return
        named = [f"{row.partition} at offset {row.offset}: {row.proof.text}" for row in wrong[:MAX_NAMED]]
        others = [f"and {len(wrong) - MAX_NAMED} more"] if wrong[MAX_NAMED:] else []
        advice = "The query would lose records or read them twice"
        if all(row.proof.verdict is Verdict.UNKNOWN for row in wrong):
            advice = "Wait until the other cluster has all records, or add --unproved to go on with what is not known"
        raise CheckpointError(f"{'; '.join([*named, *others])}. {advice}")

    def write(self, target: Path) -> None:
        """Copy the checkpoint to `target`, with the offsets of the other cluster, after `check`. Raises
        CheckpointError: as `copy_with_offsets`."""
        lines = {batch: list(content) for batch, content in self.lines.items()}
        for source in self.sources:
            previous, last = source.moved()
            for batch, offset in zip(sorted(lines, reverse=True), (last, previous), strict=False):
                lines[batch][source.line] = json.dumps(offset.as_dict())
        copy_with_offsets(self.checkpoint, target, {batch: "\n".join(content) for batch, content in lines.items()})


def plan_move(
    checkpoint: Path,
    first: Mapping[str, str] | None,
    other: Mapping[str, str],
    names: Mapping[str, str],
    way: Way = Way.OFFSETS,
    syncs_topic: str | None = None,
) -> Move:
    """Find the positions of a query of kafkameta or of Spark's own source in another cluster.

    Args:
        first, other: `kafka.*` options; `first` is None if the cluster is gone.
        names, syncs_topic: as of `Mover`.

    Raises:
        OptionError: options contradict each other, or `names` has a topic that the query does not read.
        CheckpointError: the checkpoint cannot be read, or a cluster does not have its topics.
        KafkaMetaError: a cluster does not respond.
    """
    if (way is Way.OFFSET_SYNCS) != (syncs_topic is not None):
        raise OptionError("--by offset-syncs and --offset-syncs-topic need each other")
    if first is None and way is not Way.OFFSETS:
        raise OptionError(f"--by {way} needs --bootstrap-servers: without the first cluster only offsets can be equal")
    with files_in_one_line(f"{checkpoint} cannot be read"):
        last = batches(checkpoint)[-1]
        is_pending = not (checkpoint / "commits" / str(last)).exists()
        lines = {batch: translated(checkpoint, batch).splitlines() for batch in range(max(last - 1, 0), last + 1)}
    found = [(line, offset) for line, text in enumerate(lines[last]) if (offset := source_offset(text)) is not None]
    if not found:
        raise CheckpointError(f"no source of the query in {checkpoint} reads Kafka: nothing to move")
    _check_names(names, {topic for _, offset in found for topic in offset.topic_ids})
    salt, sources = secrets.token_bytes(16), []
    with ExitStack() as opened:
        logs = [opened.enter_context(closing(Logs(given, salt))) for given in (other, first) if given is not None]
        mover = Mover(logs[1] if first is not None else None, logs[0], names, way, syncs_topic)
        for line, offset in found:
            previous = (source_offset(lines[last - 1][line]) if last else None) or BEGINNING
            ranges(previous if is_pending else offset, offset)  # all have a start
            mover.require(offset)
            begins = _begins(previous, offset) if is_pending else _offsets(offset.positions)
            ends = mover.find(_offsets(offset.positions), f"end of batch {last}") if is_pending else None
            sources.append(MovedSource(line, names, previous, offset, mover.find(begins, "next"), ends))
    return Move(checkpoint, lines, tuple(sources))


def _offsets(positions: Positions) -> dict[TopicPartition, int]:
    return {partition: position.offset for partition, position in positions.items()}


def _begins(previous: SourceOffset, planned: SourceOffset) -> Offsets:
    begins = {**previous.positions, **planned.start}
    return {partition: begins[partition].offset for partition in planned.positions}


def _check_names(names: Mapping[str, str], topics: Collection[str]) -> None:
    if unread := sorted(names.keys() - {"*"} - set(topics)):
        raise OptionError(f"--topic names {name_first(unread)}, which the query does not read")
    there = [name_there(names, topic) for topic in topics]
    if len(set(there)) < len(there):
        raise OptionError("--topic gives two topics the same name: positions of both cannot be in one topic")
