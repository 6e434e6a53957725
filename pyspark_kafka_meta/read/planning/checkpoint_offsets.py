"""`SourceOffset`: the offsets in a checkpoint as canonical JSON, how they advance, and the ranges between them.

Spark keeps one JSON text for each micro-batch and compares texts as strings, so the same position must be the same
text: names sorted, partitions in numeric order, and an epoch or topic id replaced only along with an offset.

Spark stores nothing else for a Python source. While batch 0 is uncommitted, each restart asks for the initial offset.
By then `latest` would mean another offset, and an explicit offset may have aged out. So the initial offset is always
`BEGINNING`, and the end of batch 0 carries the start that it was planned from. The end of a later batch does the same
for partitions that do not begin at the offset before, because they are new or were reset. Two offsets thus define a
batch, now and after any restart.

The layout, version 1. A position is the list of its offset, epoch, epoch start and reported epoch, without what is
unknown (-1) at its end; if that is all but the offset, the offset alone, as in Spark's checkpoints. The offset is the
next to read. A start of -2 is the first offset of the log when the batch is planned: new partitions of a migrated batch
begin there, as their starts are not recorded.
    {"generations": {"t": [1, "<uuid>" or null, 3]}, only of changes, and of topics that were recreated or are gone
     "initial": true,                             only before batch 0
     "latestByKey": true,                         only after batch 0, if it has the latest record of each key
     "schemas": {"value": {"columns": "<digest>", "fingerprint": "<digest>", "source": "version 3 of t-value (id 7)"}},
     "start": {"t": {"0": [40, 3]}},
     "topics": {"t": {"id": "<uuid>" or null, "partitions": {"0": [42, 3, 37, 5], "1": 70}}},
     "version": 1}
The topic id detects a recreated topic (KIP-516), the epoch a truncated log (KIP-320). The epoch start is the first
offset of the epoch, known if records of this epoch lie before the offset. The reported epoch is of the leader that
reported the offset, if it is another: leaders of lower epochs were replaced. `schemas` is of typed columns alone: what
the micro-batch that ends here reads them as. `generations` has the fields of each `TopicGeneration`, without
partitions if none is gone.
Follows Spark's `KafkaSourceOffset`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from pyspark_kafka_meta.errors import CheckpointError, OptionError
from pyspark_kafka_meta.model import (
    NO_EPOCH,
    NO_OFFSET,
    OffsetRange,
    Position,
    Positions,
    SchemaPin,
    TopicEpoch,
    TopicGeneration,
    TopicPartition,
    is_other_topic,
    name_partitions,
    shortened,
)
from pyspark_kafka_meta.options import EARLIEST_OFFSET
from pyspark_kafka_meta.value_checks import INT32_MAX, INT64_MAX, partition_key, topic_name, whole_number

VERSION = 1
_FILE_VERSIONS = ("v1", "v2")
"""Of Spark's offsets files."""
MAX_PARTITIONS = 1_000_000
"""More than any cluster has: an offset with more partitions is corrupt."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """One end of a micro-batch.

    Attributes:
        topic_ids: of exactly the topics in `positions`; None if brokers report no ids (before Kafka 2.8).
        start: where partitions of the batch that ends here begin, if not at the offset before; in batch 0 all of them.
            An offset may be `EARLIEST_OFFSET`.
        initial: whether this is the initial offset of a query, before any batch.
        schemas: of the typed columns.
        generations: of topics whose generation is not 0, and of those that are gone, or have partitions that are.
        latest_by_key: whether the batch that ends here has the latest record of each key alone.
    """

    positions: Positions
    topic_ids: Mapping[str, UUID | None]
    start: Positions = field(default_factory=dict)
    initial: bool = False
    schemas: Mapping[str, SchemaPin] = field(default_factory=dict)
    generations: Mapping[str, TopicGeneration] = field(default_factory=dict)
    latest_by_key: bool = False

    def generation(self, topic: str) -> int:
        """The number of the topic's generation."""
        return self.generations[topic].number if topic in self.generations else 0

    def partition_counts(self) -> dict[str, int]:
        """How many partitions each topic had at most. Their numbers have no gap."""
        counts = {topic: known.partitions for topic, known in self.generations.items()}
        for topic, number in self.positions:
            counts[topic] = max(counts.get(topic, 0), number + 1)
        return counts

    def topic_epochs(self) -> dict[TopicPartition, TopicEpoch]:
        """The leader epochs that are known of the logs, as far as brokers report topic ids."""
        return {
            partition: TopicEpoch(topic_id, position.known_epoch)
            for partition, position in self.positions.items()
            if (topic_id := self.topic_ids[partition.topic]) is not None
        }

    def as_dict(self) -> dict[str, Any]:
        """The layout above, in the order that makes equal offsets equal texts."""
        ids = {topic: topic_id and str(topic_id) for topic, topic_id in self.topic_ids.items()}
        by_topic = _by_topic(self.positions)
        generations = {
            topic: [number, topic_id and str(topic_id), *([partitions] if partitions else [])]
            for topic, (number, topic_id, partitions) in sorted(self.generations.items())
        }
        return {
            **({"generations": generations} if generations else {}),
            **({"initial": True} if self.initial else {}),
            **({"latestByKey": True} if self.latest_by_key else {}),
            **(
                {"schemas": {column: pin._asdict() for column, pin in sorted(self.schemas.items())}}
                if self.schemas
                else {}
            ),
            **({"start": _by_topic(self.start)} if self.start else {}),
            "topics": {topic: {"id": ids[topic], "partitions": partitions} for topic, partitions in by_topic.items()},
            "version": VERSION,
        }

    @classmethod
    def parse(cls, value: object) -> SourceOffset:
        """The offset that `as_dict` wrote, after JSON. Raises CheckpointError: another version or program wrote it."""
        version = value.get("version") if isinstance(value, dict) else None
        if version != VERSION:
            raise CheckpointError(
                f"the checkpoint holds an offset of version {str(version)[:20]}, and this release reads version "
                f"{VERSION}: go on with the release or source that wrote it, or start with a new checkpoint"
            )
        try:
            return _parse(_members(value))
        except ValueError as error:
            raise CheckpointError(
                f"the checkpoint holds an offset that cannot be read ({shortened(str(error))}): restore the "
                "checkpoint, or start with a new one"
            ) from None


BEGINNING = SourceOffset({}, {}, initial=True)
"""The initial offset of every query: it begins where its options say."""


def source_offset(offset: Any) -> SourceOffset | None:
    """An offset that Spark stores or reports, as text or parsed; None if not of this source, or without partitions."""
    try:
        parsed = SourceOffset.parse(json.loads(offset) if isinstance(offset, str) else offset)
    except (ValueError, CheckpointError):
        return None
    return parsed if parsed.positions else None


def offsets_in(text: str) -> dict[str, SourceOffset]:
    """The offsets in an offsets file of a checkpoint, by the number or name of the source. Other sources are left out.
    Raises CheckpointError: the file has another version."""
    lines = text.splitlines()
    if lines and lines[0] not in _FILE_VERSIONS:
        raise CheckpointError(f"the checkpoint has offsets of {lines[0][:20]}: this release reads v1 and v2")
    found = {}
    for number, line in enumerate(lines[2:]):
        name, _, text = line.partition(":") if lines[0] == "v2" else (str(number), "", line)
        if (offset := source_offset(text)) is not None:
            found[name] = offset
    return found


class RecentOffsets:
    """The last offsets beside their JSON objects. Spark gives a planner back what the planner returned, and with ten
    thousand partitions an object takes 26 ms to parse, 8 ms to make and 1 ms to compare."""

    def __init__(self) -> None:
        # Of two micro-batches, the end and the latest offsets.
        self._recent: deque[tuple[SourceOffset, dict[str, Any]]] = deque(maxlen=4)

    def parse(self, value: object) -> SourceOffset:
        """As `SourceOffset.parse`."""
        for offset, known in self._recent:
            if known == value:
                return offset
        return SourceOffset.parse(value)

    def as_dict(self, offset: SourceOffset) -> dict[str, Any]:
        """As `SourceOffset.as_dict`; not to be changed."""
        for known, value in self._recent:
            if known is offset or known == offset:
                return value
        self._recent.append((offset, offset.as_dict()))
        return self._recent[-1][1]


def advance(start: SourceOffset, end: SourceOffset, begun: Positions) -> SourceOffset:
    """The offset to log for the batch from `start` to `end`; `end` is as brokers report it, or limited.

    A partition that did not move keeps its old epoch, and a topic without any move keeps its old id; an unknown epoch
    or id is replaced once. If nothing changes the result is `start` itself, except after an initial offset: batch 0 is
    logged at once, even empty, which pins it.

    Args:
        begun: where partitions begin that `start` lacks, or whose position in `start` is lost.
    """
    moved = {
        partition
        for partition, position in end.positions.items()
        if (old := start.positions.get(partition)) is None or position[0] != old[0] or partition in begun
    }
    begins = {**start.positions, **begun} if start.initial else begun
    moved_topics = {partition.topic for partition in moved}
    advanced = SourceOffset(
        positions={
            partition: position if partition in moved or (known := start.positions[partition])[1] == NO_EPOCH else known
            for partition, position in end.positions.items()
        },
        topic_ids={
            topic: topic_id if topic in moved_topics else start.topic_ids[topic] or topic_id
            for topic, topic_id in end.topic_ids.items()
        },
        start={partition: position for partition, position in begins.items() if partition in end.positions},
        generations=start.generations,
    )
    is_same = (advanced.positions, advanced.topic_ids) == (start.positions, start.topic_ids)
    return start if is_same and not moved and not start.initial else advanced


def with_generations(start: SourceOffset, end: SourceOffset, begun_again: Collection[str]) -> SourceOffset:
    """`end`, with a generation more for each topic whose offsets begin again in the batch. A topic that is gone keeps
    its generation: it may return with its offsets, or be recreated. So may partitions: they are no added ones.

    Args:
        end: the offset to log, from `advance`.
        begun_again: topics that were recreated, or whose logs were truncated, since `start`.
    """
    left = {topic: TopicGeneration(start.generation(topic), topic_id) for topic, topic_id in start.topic_ids.items()}
    gone = {topic: known for topic, known in {**start.generations, **left}.items() if topic not in end.topic_ids}
    before, now, read = start.partition_counts(), replace(end, generations={}).partition_counts(), {}
    for topic, topic_id in end.topic_ids.items():
        number = start.generation(topic) + (topic in begun_again)
        had = 0 if is_other_topic(start.topic_ids.get(topic), topic_id) else before.get(topic, 0)
        partitions = had if had > now.get(topic, 0) else 0
        if number or partitions:
            read[topic] = TopicGeneration(number, topic_id, partitions)
    return replace(end, generations={**gone, **read})


def ranges(start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
    """The ranges of the batch between two logged offsets, sorted by partition, without empty ranges. Raises
    CheckpointError: neither offset has the start of some partition."""
    if start == end:
        return []
    begins = {**start.positions, **end.start}
    if unknown := end.positions.keys() - begins.keys():
        raise CheckpointError(
            f"the checkpoint does not say where to begin with {name_partitions(unknown)}: restore it, or start with a "
            "new one"
        )
    spans = [(partition, begins[partition], end.positions[partition]) for partition in sorted(end.positions)]
    return [
        OffsetRange(
            partition,
            end.topic_ids[partition.topic],
            begin.offset,
            until.offset,
            begin.leader_epoch,
            until.known_epoch,
            end.generation(partition.topic),
            end.latest_by_key,
        )
        for partition, begin, until in spans
        if begin.offset < until.offset
    ]


def check_same_partitions(
    option: str, given: Collection[TopicPartition], partitions: Collection[TopicPartition]
) -> None:
    """Check that the JSON of `option` names the partitions that the query reads. Raises OptionError: `given` lacks some
    of `partitions`, or has others."""
    missing, unread = set(partitions) - set(given), set(given) - set(partitions)
    if missing or unread:
        raise OptionError(
            f"{option} must name exactly the partitions that are read, with -1 for latest and -2 for earliest. "
            f"Missing: {name_partitions(missing)}. Not read: {name_partitions(unread)}."
        )


def _by_topic(positions: Positions) -> dict[str, dict[str, int | list[int]]]:
    topics: dict[str, dict[str, int | list[int]]] = {topic: {} for topic in sorted({topic for topic, _ in positions})}
    for (topic, number), position in sorted(positions.items()):
        offset, epoch, epoch_start, reported_epoch = position
        known = 4 if reported_epoch != NO_EPOCH else 3 if epoch_start != NO_OFFSET else 2 if epoch != NO_EPOCH else 1
        topics[topic][str(number)] = offset if known == 1 else list(position[:known])
    return topics


def _parse(value: Mapping[str, object]) -> SourceOffset:
    if value.keys() - {"generations", "initial", "latestByKey", "schemas", "start"} != {"topics", "version"}:
        raise ValueError("its fields are not those of this version")
    for name in ("initial", "latestByKey"):
        if value.get(name, True) is not True:
            raise ValueError(f"{name} is not true")
    topics = {topic: _id_and_partitions(content) for topic, content in _members(value["topics"]).items()}
    return SourceOffset(
        positions=_parse_positions({topic: partitions for topic, (_, partitions) in topics.items()}),
        topic_ids={topic: None if topic_id is None else UUID(str(topic_id)) for topic, (topic_id, _) in topics.items()},
        start=_parse_positions(value.get("start", {}), may_be_earliest=True),
        initial="initial" in value,
        schemas={column: _parse_pin(pin) for column, pin in _members(value.get("schemas", {})).items()},
        generations={
            topic_name(topic): _parse_generation(pair) for topic, pair in _members(value.get("generations", {})).items()
        },
        latest_by_key="latestByKey" in value,
    )


def _parse_generation(value: object) -> TopicGeneration:
    if not isinstance(value, list) or len(value) not in (2, 3):
        raise ValueError(f"{str(value)[:40]} is no generation")
    number, topic_id, partitions = TopicGeneration(*value)
    return TopicGeneration(
        whole_number(number, 0, INT32_MAX),
        None if topic_id is None else UUID(str(topic_id)),
        whole_number(partitions, 0, MAX_PARTITIONS),
    )


def _parse_pin(value: object) -> SchemaPin:
    texts = {name: text for name, text in _members(value).items() if isinstance(text, str)}
    if texts.keys() != set(SchemaPin._fields) or len(texts) < len(_members(value)):
        raise ValueError("it names a schema in another way than this version")
    return SchemaPin(**texts)


def _parse_positions(value: object, may_be_earliest: bool = False) -> dict[TopicPartition, Position]:
    """The positions in `{"topic": {"0": [42, 3]}}`; every topic has a partition."""
    positions = {}
    for name, partitions in _members(value).items():
        topic = topic_name(name)
        if not _members(partitions):
            raise ValueError(f"topic {topic} has no partitions")
        for key, position in _members(partitions).items():
            positions[TopicPartition(topic, partition_key(key))] = _parse_position(position, may_be_earliest)
    if len(positions) > MAX_PARTITIONS:
        raise ValueError(f"{len(positions)} partitions")
    return positions


def _parse_position(value: object, may_be_earliest: bool) -> Position:
    if isinstance(value, dict):  # until the first release: a clone of before wrote positions so
        value = [value.get(name, -1) for name in ("offset", "epoch", "epoch_start", "reported_epoch")]
    fields = value if isinstance(value, list) else [value]
    if not 1 <= len(fields) <= len(Position._fields):
        raise ValueError(f"{str(value)[:40]} is no position")
    offset, epoch, epoch_start, reported_epoch = Position(*fields)
    is_earliest = may_be_earliest and offset == EARLIEST_OFFSET
    next_offset = EARLIEST_OFFSET if is_earliest else whole_number(offset, 0, INT64_MAX)
    return Position(
        next_offset,
        whole_number(epoch, NO_EPOCH, INT32_MAX),
        whole_number(epoch_start, NO_OFFSET, max(NO_OFFSET, next_offset - 1)),
        whole_number(reported_epoch, NO_EPOCH, INT32_MAX),
    )


def _members(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:40]!r} is not an object")
    return value


def _id_and_partitions(value: object) -> tuple[object, object]:
    members = _members(value)
    if members.keys() != {"id", "partitions"}:
        raise ValueError(f"{sorted(members)[:3]} is not id and partitions")
    return members["id"], members["partitions"]
