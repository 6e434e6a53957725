"""What `kafkameta doctor --write` makes of the responses to its damaged batches, and which options it takes."""

from __future__ import annotations

import random
from collections import deque

import pytest

from pyspark_kafka_meta.errors import CorruptBatchError
from pyspark_kafka_meta.events.origin import cli_origin
from pyspark_kafka_meta.events.publisher import EventPublisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.records.batches import read_batch_headers
from pyspark_kafka_meta.model import NO_LEADER, TopicPartition
from pyspark_kafka_meta.tools.doctor import Finding, Verdict
from pyspark_kafka_meta.tools.doctor.topic_checks import check_writes, damaged_batch, writing_query
from tests.partitions import T0, T1, T2
from tests.unit.fake_cluster import FakeCluster
from tests.unit.fake_network import FakeClock, FakeNetwork

OK, WARN, FAIL = Verdict.OK, Verdict.WARN, Verdict.FAIL
SERVERS = {"kafka.bootstrap.servers": "broker-1:9092"}
CORRUPT, NOT_LEADER, NOT_ENOUGH, STORAGE, DENIED, NO_CLUSTER_RIGHT, LOADING, POLICY = 2, 6, 19, 56, 29, 31, 14, 44
TRANSACTION_DENIED, BAD_TIMEOUT = 53, 50


@pytest.fixture
def network() -> FakeNetwork:
    """Brokers 1 to 3 lead a partition each, and refuse a damaged batch."""
    cluster = FakeCluster()
    cluster.create_topic("t", partitions=3)
    network = FakeNetwork(cluster, FakeClock())
    network.error_codes |= {partition: deque([CORRUPT]) for partition in (T0, T1, T2)}
    return network


def findings(network: FakeNetwork, *topics: str, **options: str) -> dict[str, Finding]:
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
    _, writing = writing_query({**SERVERS, **named}, "t")
    client = KafkaClient(
        writing.client,
        EventPublisher((), cli_origin()),
        network=network,
        clock=network.clock,
        sleep=network.clock.sleep,
        rng=random.Random(0),
    )
    found = list(check_writes(client, topics or ("t",), writing))
    client.close()
    assert all(finding.fix for finding in found if finding.verdict is not OK), found
    return {finding.check: finding for finding in found}


def verdicts(found: dict[str, Finding]) -> list[tuple[str, Verdict]]:
    return [(check, finding.verdict) for check, finding in found.items()]


def test_leaders_that_refuse_only_the_damage_can_be_written(network: FakeNetwork) -> None:
    found = findings(network)

    writes = [(f"write t to broker {node_id}", OK) for node_id in (1, 2, 3)]
    assert verdicts(found) == [*writes, ("idempotence", OK)]
    assert found["write t to broker 2"].what.startswith("t-1 can be written, responded in ")
    assert all(network.cluster.bounds(partition) == (0, 0) for partition in (T0, T1, T2))


def test_partitions_of_a_leader_are_asked_together(network: FakeNetwork) -> None:
    network.cluster.move_leader(T1, 1)
    network.cluster.move_leader(T2, 1)

    assert findings(network)["write t to broker 1"].what.startswith("t-0, t-1, t-2 can be written")
    assert len(network.produces) == 1


@pytest.mark.parametrize(
    ("code", "verdict", "what", "fix"),
    [
        (DENIED, FAIL, "t-0 cannot be written: TOPIC_AUTHORIZATION_FAILED", "--operation Write --topic t"),
        (NOT_ENOUGH, FAIL, "NOT_ENOUGH_REPLICAS (error 19): fewer replicas", "lower min.insync.replicas of topic t"),
        (NOT_LEADER, WARN, "NOT_LEADER_OR_FOLLOWER (error 6): leaders are moving", "run the doctor again"),
        (STORAGE, WARN, "KAFKA_STORAGE_ERROR (error 56)", "run the doctor again"),
        (POLICY, FAIL, "POLICY_VIOLATION (error 44)", "log of its leader"),
        (0, WARN, "t-0 accepted an empty record batch with a wrong checksum", "onCorruptBatch"),
    ],
)
def test_refusal_has_its_errors_fix(network: FakeNetwork, code: int, verdict: Verdict, what: str, fix: str) -> None:
    network.error_codes[T0] = deque([code])
    found = findings(network)["write t to broker 1"]

    assert found.verdict is verdict
    assert what in found.what
    assert fix in found.fix


def test_each_error_of_a_leader_is_one_finding(network: FakeNetwork) -> None:
    network.cluster.create_topic("many", partitions=60)
    partitions = [TopicPartition("many", number) for number in range(60)]
    codes = {partition: CORRUPT if partition.partition < 30 else NOT_ENOUGH for partition in partitions}
    network.error_codes |= {partition: deque([code]) for partition, code in codes.items()}
    found = findings(network, "many")

    assert list(found) == [*(f"write many to broker {node_id}" for node_id in (1, 2, 3)), "idempotence"]
    assert found["write many to broker 1"].what.startswith("many-30, ")


@pytest.mark.parametrize("acks", ["all", "1"])
def test_probe_asks_for_the_acks_of_the_options(network: FakeNetwork, acks: str) -> None:
    findings(network, acks=acks)

    assert {request.acks for _, request in network.produces} == {-1 if acks == "all" else 1}


@pytest.mark.parametrize(
    ("options", "asked"), [({}, True), ({"enable_idempotence": "false"}, False), ({"acks": "1"}, False)]
)
def test_idempotent_write_requests_a_producer_id(network: FakeNetwork, options: dict[str, str], asked: bool) -> None:
    assert ("idempotence" in findings(network, **options)) is asked


def test_missing_right_to_write_idempotently_fails(network: FakeNetwork) -> None:
    network.transaction_errors["InitProducerId"].append(NO_CLUSTER_RIGHT)
    found = findings(network)["idempotence"]

    assert (found.verdict, "CLUSTER_AUTHORIZATION_FAILED (error 31)" in found.what) == (FAIL, True)
    assert found.fix.startswith("allow it IDEMPOTENT_WRITE on the cluster")
    assert found.fix.endswith("or set kafka.enable.idempotence to false")


def test_brokers_without_producer_ids_are_a_failure_in_time(network: FakeNetwork) -> None:
    network.transaction_errors["InitProducerId"].extend([LOADING] * 10_000)
    started = network.clock.now
    found = findings(network, default_api_timeout_ms="10000")["idempotence"]

    assert (found.verdict, "COORDINATOR_LOAD_IN_PROGRESS" in found.what) == (FAIL, True)
    assert network.clock.now - started < 11


@pytest.mark.parametrize("broken", ["down", "hung"])
def test_leader_that_does_not_respond_is_a_failure_beside_others(network: FakeNetwork, broken: str) -> None:
    getattr(network, broken).add(2)
    found = findings(network, enable_idempotence="false", default_api_timeout_ms="10000")

    assert [finding.verdict for finding in found.values()] == [OK, FAIL, OK]


def test_nothing_is_sent_for_what_the_check_of_topics_reports(network: FakeNetwork) -> None:
    network.cluster.move_leader(T0, NO_LEADER)
    found = findings(network, "t", "nope", enable_idempotence="false")

    assert list(found) == ["write t to broker 2", "write t to broker 3"]


def test_cluster_that_does_not_respond_is_one_failure(network: FakeNetwork) -> None:
    network.down |= {1, 2, 3}

    assert verdicts(findings(network)) == [("writes", FAIL)]


def test_batch_is_whole_but_for_its_checksum_and_holds_no_record() -> None:
    with pytest.raises(CorruptBatchError, match="its checksum does not match"):
        read_batch_headers(damaged_batch())
    (header,) = read_batch_headers(damaged_batch(), check_crcs=False)
    assert (header.record_count, header.end) == (0, len(damaged_batch()))


def test_options_of_reading_and_writing_are_told_apart_in_any_case() -> None:
    reading = {**SERVERS, "kafka.client.rack": "r1"}
    given = {**reading, "kafka.ACKS": "1", "kafka.compression.type": "zstd"}
    rest, writing = writing_query(given, "t")
    producer = writing.producer

    assert rest == reading
    assert (producer.acks, producer.compression_type, producer.idempotent) == (1, "zstd", False)


def test_transactions_are_checked_with_an_id_that_no_task_has(network: FakeNetwork) -> None:
    network.cluster.create_topic("kafkameta-decisions", partitions=1)
    network.error_codes[TopicPartition("kafkameta-decisions", 0)] = deque([DENIED])
    found = findings(network, transactional_id="orders", transaction_timeout_ms="20000")

    assert found["exactly-once"].verdict is OK
    assert "idempotence" not in found
    assert list(network.cluster.coordinators.transactions) == ["orders/doctor"]
    assert [each.verdict for check, each in found.items() if "kafkameta-decisions" in check] == [FAIL]


@pytest.mark.parametrize(
    ("code", "fix"), [(TRANSACTION_DENIED, "WRITE on transactional ids that begin with orders"), (BAD_TIMEOUT, "log")]
)
def test_transactions_that_are_refused_are_a_failure(network: FakeNetwork, code: int, fix: str) -> None:
    network.transaction_errors["InitProducerId"].append(code)
    found = findings(network, transactional_id="orders")["exactly-once"]

    assert found.verdict is FAIL
    assert fix in (found.fix or "")
