"""`kafkameta move-checkpoint` to a copy by MirrorMaker 2 of logs with gaps of transactions and compaction."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from pyspark_kafka_meta import read_arrow
from pyspark_kafka_meta.java_launcher import find_java
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.testing.kafka_config import KafkaRelease
from pyspark_kafka_meta.testing.maven_jars import resolve_jars
from pyspark_kafka_meta.tools.move_checkpoint import plan_move
from pyspark_kafka_meta.tools.same_records import Verdict, Way
from tests.checkpoints import write_checkpoint
from tests.kafka.changing_keys import BROKER_CONFIG, TOPIC_CONFIG
from tests.kafka.test_moved_checkpoints import write_transactions

pytestmark = [pytest.mark.kafka, pytest.mark.thorough, pytest.mark.timeout(600)]

ORDERS, STATES = "orders", "states"
SYNCS = "mm2-offset-syncs.other.internal"
NAMES = {"*": "first.*"}
RECORDS = 3_000
KEYS = 700
COMMITTED = {"kafka.isolation.level": "read_committed"}


class Clusters(NamedTuple):
    first: dict[str, str]
    other: dict[str, str]


@contextmanager
def mirror(first: str, other: str, folder: Path) -> Iterator[None]:
    """MirrorMaker 2, which copies the topics as they are committed."""
    settings = {
        "clusters": "first, other",
        "first.bootstrap.servers": first,
        "other.bootstrap.servers": other,
        "first->other.enabled": "true",
        "first->other.topics": f"{ORDERS}, {STATES}",
        "first->other.consumer.isolation.level": "read_committed",
        "refresh.topics.interval.seconds": "2",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "sync.topic.configs.enabled": "false",
        **{f"{name}.replication.factor": "1" for name in ("offset.storage", "status.storage", "config.storage")},
        **{f"{name}.replication.factor": "1" for name in ("offset-syncs.topic", "checkpoints.topic")},
        "replication.factor": "1",
    }
    (folder / "mm2.properties").write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    version = KafkaRelease().version
    jars = resolve_jars([f"org.apache.kafka:{name}:{version}" for name in ("connect-mirror", "connect-runtime")])
    command = [str(find_java()), "-Xmx256m", "-cp", ":".join(map(str, jars))]
    command += ["org.apache.kafka.connect.mirror.MirrorMaker", str(folder / "mm2.properties")]
    with (folder / "mm2.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.kill()


def records(options: Mapping[str, str], topic: str) -> list[tuple[Any, ...]]:
    """Place, key, value and time of each committed record."""
    table = read_arrow(**options, subscribe=topic, **COMMITTED).read_all()
    columns = ("partition", "offset", "key", "value", "timestamp")
    return sorted(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def write_states(options: Mapping[str, str], rounds: Sequence[int]) -> None:
    producer = Producer({"bootstrap.servers": options["kafka.bootstrap.servers"], "linger.ms": 5})
    for each in rounds:
        for key in range(KEYS):
            if key % 5 == each:
                continue  # so that single records of earlier rounds stay
            producer.produce(STATES, f"{each}-{key}" + "x" * 400, str(key), partition=key % 2)
        assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory, wait_for: Callable[..., Any]) -> Iterator[Clusters]:
    """Topic orders has transactions, of which some are aborted; in states keys are written again, and compaction has
    removed what they were before the mirror began."""
    with ExitStack() as opened:
        started = [
            opened.enter_context(LocalKafka(1, config={**BROKER_CONFIG, "log.retention.ms": "-1"}))
            for _ in Clusters._fields
        ]
        found = Clusters(*({"kafka.bootstrap.servers": each.bootstrap_servers} for each in started))
        admin = AdminClient({"bootstrap.servers": started[0].bootstrap_servers})
        topics = [NewTopic(ORDERS, 1, 1, config={"retention.ms": "-1"}), NewTopic(STATES, 2, 1, config=TOPIC_CONFIG)]
        for created in admin.create_topics(topics).values():
            created.result(60)
        transactions = [(list(range(at, at + 20)), at % 100 != 40) for at in range(0, RECORDS, 20)]
        write_transactions(started[0].bootstrap_servers, ORDERS, transactions)
        for number in range(5):
            write_states(found.first, [number])
            time.sleep(0.6)  # a segment is closed, and may be compacted
        wait_for(lambda: len(records(found.first, STATES)) <= 2 * KEYS, timeout_s=60)
        time.sleep(2)  # what else may be compacted is
        with mirror(started[0].bootstrap_servers, started[1].bootstrap_servers, tmp_path_factory.mktemp("mirror")):
            expected = sum(len(records(found.first, topic)) for topic in (ORDERS, STATES))

            def copied() -> bool:
                names = AdminClient({"bootstrap.servers": started[1].bootstrap_servers}).list_topics(timeout=30).topics
                return {f"first.{ORDERS}", f"first.{STATES}"} <= names.keys() and expected <= sum(
                    len(records(found.other, f"first.{topic}")) for topic in (ORDERS, STATES)
                )

            wait_for(copied, timeout_s=120)
        yield found


def moved(
    clusters: Clusters,
    folder: Path,
    positions: Mapping[TopicPartition, int],
    way: Way,
    names: Mapping[str, str] = NAMES,
) -> dict[Any, Any]:
    """Proof by partition."""
    ids: dict[str, UUID | None] = {partition.topic: None for partition in positions}
    offset = SourceOffset({partition: Position(at) for partition, at in positions.items()}, ids)
    old = Path(write_checkpoint(folder, {0: offset}, 0))
    syncs = SYNCS if way is Way.OFFSET_SYNCS else None
    first, other = ({**options, **COMMITTED} for options in clusters)
    return {row.partition: row.proof for row in plan_move(old, first, other, names, way, syncs).rows()}


@pytest.mark.parametrize("way", [Way.TIMESTAMPS, Way.OFFSET_SYNCS])
def test_rows_up_to_a_position_and_from_where_it_was_moved_are_those_of_the_topic(
    clusters: Clusters, tmp_path: Path, way: Way
) -> None:
    whole = {topic: records(clusters.first, topic) for topic in (ORDERS, STATES)}
    copies = {topic: records(clusters.other, f"first.{topic}") for topic in (ORDERS, STATES)}
    gaps = {topic: found[-1][1] + 1 - sum(row[0] == found[-1][0] for row in found) for topic, found in whole.items()}
    assert gaps[ORDERS] > RECORDS // 20 and gaps[STATES] > KEYS // 2, "transactions and compaction left no gaps"
    for share in (0.1, 0.35, 0.6, 0.85):
        positions = {
            TopicPartition(topic, partition): int(offsets[0] + share * (offsets[-1] - offsets[0]))
            for topic, found in whole.items()
            for partition in {row[0] for row in found}
            for offsets in [[row[1] for row in found if row[0] == partition]]
        }
        proofs = moved(clusters, tmp_path / str(share), positions, way)
        for partition, proof in proofs.items():
            assert proof.verdict is Verdict.PROVED, (partition, positions[partition], proof.text)
            rows, copied = (
                [row for row in found[partition.topic] if row[0] == partition.partition] for found in (whole, copies)
            )
            before = [row[2:] for row in rows if row[1] < positions[partition]]
            after = [row[2:] for row in copied if row[1] >= proof.offset]
            assert before + after == [row[2:] for row in rows]


@pytest.mark.parametrize(
    ("names", "way", "reason"),
    [
        (NAMES, Way.OFFSETS, "the records differ"),
        ({ORDERS: f"first.{STATES}"}, Way.TIMESTAMPS, "does not have the record"),
        ({ORDERS: f"first.{STATES}"}, Way.OFFSETS, "the records differ"),
    ],
)
def test_another_topic_and_other_offsets_are_refused(
    clusters: Clusters, tmp_path: Path, names: dict[str, str], way: Way, reason: str
) -> None:
    (proof,) = moved(clusters, tmp_path, {TopicPartition(ORDERS, 0): 500}, way, names).values()
    assert (proof.verdict, reason in proof.text) == (Verdict.REFUSED, True), proof.text


def test_a_copy_that_lacks_the_last_records_is_refused(clusters: Clusters, tmp_path: Path) -> None:
    """The mirror has ended."""
    write_transactions(clusters.first["kafka.bootstrap.servers"], ORDERS, [(list(range(RECORDS, RECORDS + 100)), True)])
    end = TopicPartition(ORDERS, 0), records(clusters.first, ORDERS)[-1][1]
    for way in (Way.TIMESTAMPS, Way.OFFSET_SYNCS):
        (proof,) = moved(clusters, tmp_path / way, dict([end]), way).values()
        assert (proof.verdict, "does not have the record" in proof.text) == (Verdict.REFUSED, True), proof.text
