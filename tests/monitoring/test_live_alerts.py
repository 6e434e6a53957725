"""Each alert fires in a live scene, and none in a calm run: Prometheus scrapes the exporter beside brokers, a producer
and streams that write events and checkpoints.

Here a minute lasts `MINUTE_S`: `hurried` shortens the durations of the shipped rules and their numbers of seconds, and
nothing else; Prometheus scrapes, and the exporter polls, as much more often.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Partition

from pyspark_kafka_meta.client_facts import LookupReason, MalformedRecords, SchemaLookup
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import new_publisher
from pyspark_kafka_meta.java_launcher import find_java
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from pyspark_kafka_meta.options import ClientOptions, EventsOptions
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.tools.exporter.metric_table import Source
from tests.checkpoints import parsed, write_checkpoint
from tests.exporter_process import running
from tests.kafka.cluster_tools import admin, create_topic, delete_topic, elect_leader, poll_until, reassign
from tests.kafka.harness import SteadyProducer, Stream, write_numbers
from tests.monitoring.prometheus_process import Api, started
from tests.monitoring.shipped_files import RULES

MINUTE_S = 1.5
DURATION = re.compile(r"\b(\d+)m\b")
SECONDS = re.compile(r"\b\d+(?= \* sum)|(?<=_seconds > )\d+")
"""The factor of a rate per minute, and thresholds of metrics in seconds."""
NUMBER = re.compile(r"\d[\d.]*(?:ms|m)?")
INTERVAL_MS = round(MINUTE_S * 1000 / 4)
"""Of scrapes, evaluations and polls: 15 s as shipped."""
CALM_S = 13 * MINUTE_S
"""KafkametaLagRising needs twelve minutes to fire."""
SCENES_TIMEOUT_S, OUTAGE_TIMEOUT_S = 60, 45
REPLICAS = ([2, 3, 4], [3, 4, 2], [4, 2, 3])
STANDING = ["lost", "behind", "marker", "recreated"]
"""Topics of the query that stands still."""
AFTER_LOSS, AT_MARKER = TopicPartition("lost", 0), TopicPartition("marker", 0)
STORM = {"kafka.metadata.max.age.ms": "10", "kafka.retry.backoff.ms": "10", "startingOffsets": "latest"}
REFRESHES_AT_ONCE = 20

LABELS = {
    "KafkametaCacheStale": ("executor",),
    "KafkametaRefreshStorm": (),
    "KafkametaDataLoss": ("topic",),
    "KafkametaMalformedRecords": ("topic", "column"),
    "KafkametaRegistryFailing": ("reason",),
    "KafkametaLagRising": ("query_id", "topic"),
    "KafkametaLagUnknown": ("query_id", "topic"),
    "KafkametaTransactionOpenTooLong": ("sink",),
    "KafkametaExporterFailing": ("source",),
}
Labels = set[tuple[str, ...]]
"""The values of these, of each alert of a name that fired."""
FAILING = "KafkametaExporterFailing"
SCENES: dict[str, Labels] = {
    "KafkametaCacheStale": {("standing",), ("planner",)},
    "KafkametaRefreshStorm": {()},
    "KafkametaDataLoss": {("lost",)},
    "KafkametaMalformedRecords": {("lost", "value")},
    "KafkametaRegistryFailing": {("new_versions",)},
    "KafkametaLagRising": {("standing", "behind")},
    "KafkametaLagUnknown": {("standing", "marker"), ("standing", "recreated")},
    "KafkametaTransactionOpenTooLong": {("",)},
    FAILING: {("cluster",), ("transactions",), ("lag",), ("",)},
}
DEAD = (FAILING, "")
"""The exporter itself does not respond."""


def hurried(text: str) -> str:
    """An expression or a duration of the rules, where a minute lasts `MINUTE_S`."""
    text = SECONDS.sub(lambda found: f"{int(found[0]) * MINUTE_S / 60:g}", text)
    return DURATION.sub(lambda found: f"{int(found[1]) * MINUTE_S * 1000:.0f}ms", text)


def hurried_rules() -> str:
    timed = ("expr", "for")
    rules = [{key: hurried(value) if key in timed else value for key, value in rule.items()} for rule in RULES]
    return str(yaml.safe_dump({"groups": [{"name": "kafkameta", "rules": rules}]}))


class Query(Stream):
    """A stream with a checkpoint, whose id and executor have the same name. All queries share a folder of events."""

    def __init__(self, servers: str, topics: list[str], folder: Path, name: str, **options: str) -> None:
        self._name, self._batch = name, 0
        self._checkpoint = folder / "checkpoints" / name
        super().__init__(servers, topics, folder / "events", **options)

    def run_batch(self) -> None:
        super().run_batch()
        write_checkpoint(self._checkpoint, {self._batch: parsed(self.committed)}, self._batch, self._name)
        self._batch += 1

    def _client(self, role: Role, options: ClientOptions) -> KafkaClient:
        origin = Origin(role=role, executor_id=self._name, query_id=self._name)
        return KafkaClient(options, new_publisher(EventsOptions(str(self._folder), None, ()), origin))


@dataclass(frozen=True, slots=True)
class Played:
    """What Prometheus showed.

    Attributes:
        calm: names of alerts that fired in the calm run.
        up: by source of the exporter, at the end of the calm run.
        stale: by executor, then.
        lag_s: by query and topic, then.
        fired: in the scenes, by alert.
    """

    calm: set[str]
    up: dict[tuple[str, ...], float]
    stale: dict[tuple[str, ...], float]
    lag_s: dict[tuple[str, ...], float]
    fired: dict[str, Labels]


def firing(api: Api) -> set[tuple[str, ...]]:
    """Name and labels of each alert that fires."""
    alerts = [alert["labels"] for alert in api.get("alerts")["alerts"] if alert["state"] == "firing"]
    return {(each["alertname"], *(each.get(label, "") for label in LABELS[each["alertname"]])) for each in alerts}


def expected(*alerts: str) -> set[tuple[str, ...]]:
    """As `firing`."""
    return {(alert, *labels) for alert in alerts for labels in SCENES[alert]}


def watch(api: Api, fired: set[tuple[str, ...]], is_over: Callable[[], object], timeout_s: float) -> None:
    """Add what fires to `fired`. An alert that does not fire in time fails its own test."""
    with suppress(AssertionError):
        poll_until(lambda: fired.update(firing(api)) or is_over(), timeout_s)


def move_leader(cluster: LocalKafka, topic: str) -> None:
    """From the first replica of partition 0 to the second one."""
    reassign(cluster, topic, 0, [3, 4, 2])
    elect_leader(cluster, topic, 0, 3)


def put(producer: Producer, topic: str) -> None:
    """Write a record in a transaction that stays open."""
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=0)
    assert producer.flush(30) == 0


def disturb(cluster: LocalKafka, standing: Query, producer: Producer) -> None:
    """Begin the scenes. The query loses records and reads on, past a malformed value, to the record of an open
    transaction; then it stands still, while this transaction ends, a leader moves, a producer writes and a topic is
    recreated."""
    write_numbers(cluster, "lost", 10, 20)
    client = admin(cluster)
    (deleted,) = client.delete_records([Partition("lost", 0, 15)]).values()
    deleted.result(60)
    put(producer, "marker")
    standing.run_until(lambda: standing.positions().items() >= {AFTER_LOSS: 20, AT_MARKER: 1}.items())
    producer.commit_transaction(30)
    standing.reader_client.report(MalformedRecords(AFTER_LOSS, "truncated", 1, "value", 1))
    standing.reader_client.publisher.flush()
    move_leader(cluster, "lost")
    write_numbers(cluster, "behind", 10, 20)
    delete_topic(cluster, "recreated")
    create_topic(cluster, "recreated", REPLICAS[:1])
    put(producer, "open")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalKafka]:
    """Brokers of this file alone: other tests leave transactions open."""
    find_java()
    config = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
    with LocalKafka(config=config) as kafka:
        create_topic(kafka, "calm", REPLICAS)
        for topic in (*STANDING, "open"):
            create_topic(kafka, topic, REPLICAS[:1])
        for topic in ("lost", "behind", "recreated"):
            write_numbers(kafka, topic, 0, 10)
        yield kafka


@pytest.fixture(scope="module")
def played(cluster: LocalKafka, prometheus: str, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder, servers = tmp_path_factory.mktemp("alerts"), cluster.bootstrap_servers
    rules = folder / "alerts.yml"
    rules.write_text(hurried_rules())
    watched = ["--path", f"{folder}/events", "--bootstrap-servers", servers, "--option", "default.api.timeout.ms=2000"]
    watched += [f"--checkpoint={folder}/checkpoints/{name}" for name in ("calm", "standing")]
    in_calm, in_scenes = set[tuple[str, ...]](), set[tuple[str, ...]]()
    with ExitStack() as opened:
        calm = opened.enter_context(closing(Query(servers, ["calm"], folder, "calm")))
        standing = opened.enter_context(closing(Query(servers, STANDING, folder, "standing", failOnDataLoss="false")))
        for query in (calm, standing):
            query.run_batch()
        interval = ["--interval", str(INTERVAL_MS / 1000), "--port", "0"]
        exporter, url = opened.enter_context(running(*watched, *interval))
        api = opened.enter_context(started(prometheus, folder, url, rules, f"{INTERVAL_MS}ms"))
        poll_until(lambda: len(api.values("kafkameta_exporter_up == 1", "source")) == len(Source))

        with calm, SteadyProducer(servers, "calm", len(REPLICAS)):
            move_leader(cluster, "calm")
            watch(api, in_calm, lambda: calm.error, CALM_S)
            up = api.values("kafkameta_exporter_up", "source")
            stale = api.values("kafkameta_stale_partitions", "executor")
            lag_s = api.values("kafkameta_lag_seconds", "query_id", "topic")
            producer = Producer({"bootstrap.servers": servers, "transactional.id": "other", "log_level": 0})
            producer.init_transactions(30)
            disturb(cluster, standing, producer)
            storm = opened.enter_context(closing(Query(servers, ["calm"], folder, "storm", **STORM)))

            def is_over() -> bool:
                storm.run_batch()
                failed = SchemaLookup(LookupReason.NEW_VERSIONS, 1.0, "no response", None, None, "t-value")
                storm.reader_client.report(failed)
                for _ in range(REFRESHES_AT_ONCE):  # on a slow machine micro-batches alone are no storm
                    storm.reader_client.cache.refresh(RefreshReason.ON_DEMAND, storm.reader_client.api_deadline())
                return in_scenes >= expected(*SCENES.keys() - {FAILING})

            watch(api, in_scenes, is_over, SCENES_TIMEOUT_S)
            producer.abort_transaction(30)
        for broker_id in cluster.broker_ids:
            cluster.pause(broker_id)
        watch(api, in_scenes, lambda: in_scenes >= expected(FAILING) - {DEAD}, OUTAGE_TIMEOUT_S)
        exporter.kill()
        watch(api, in_scenes, lambda: DEAD in in_scenes, OUTAGE_TIMEOUT_S)
    fired = {alert: {tuple(labels) for name, *labels in in_scenes if name == alert} for alert in SCENES}
    return Played({name for name, *_ in in_calm}, up, stale, lag_s, fired)


@pytest.mark.kafka
@pytest.mark.thorough
def test_no_alert_fires_in_a_calm_run_with_a_leader_that_moves(played: Played) -> None:
    assert played.calm == set()
    assert played.up == {(source,): 1 for source in Source}
    assert played.stale == {(name,): 0 for name in ("calm", "standing", "planner")}
    assert played.lag_s.keys() == {("calm", "calm"), *(("standing", topic) for topic in STANDING)}


@pytest.mark.kafka
@pytest.mark.thorough
@pytest.mark.parametrize("alert", SCENES)
def test_an_alert_fires_in_its_live_scene_for_what_the_scene_disturbs_alone(played: Played, alert: str) -> None:
    assert played.fired[alert] == SCENES[alert]


def test_each_alert_has_a_live_scene() -> None:
    assert list(SCENES) == [rule["alert"] for rule in RULES]


def test_in_a_hurry_only_times_differ() -> None:
    shipped, used = ([NUMBER.sub("#", change(rule["expr"])) for rule in RULES] for change in (str, hurried))

    assert used == shipped
    assert hurried("60 * sum by (a) (rate(b[5m])) / 2 > 6") == "1.5 * sum by (a) (rate(b[7500ms])) / 2 > 6"
    assert hurried("a_seconds > 120 and deriv(a_seconds[10m]) > 0") == "a_seconds > 3 and deriv(a_seconds[15000ms]) > 0"
