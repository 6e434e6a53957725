"""Real brokers respond to the requests of transactions as the fake cluster does, which unit tests rely on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyspark_kafka_meta.errors import BrokerError, FencedError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import NO_PRODUCER, ProducerIdAndEpoch, TopicPartition, TransactionVersion
from pyspark_kafka_meta.options import SinkOptions
from tests.kafka.cluster_tools import Cluster, log_ends, poll_until
from tests.transaction_cases import CASES, INVALID_MAPPING, PATIENCE_S, TIMEOUT_MS, end_codes, write
from tests.unit.scene import RecordingPublisher

pytestmark = pytest.mark.kafka
MakeTopic = Callable[..., str]
V1, V2 = TransactionVersion.V1, TransactionVersion.V2
FENCED_PRODUCE = 47


@pytest.fixture
def client(kafka: Cluster) -> Iterator[KafkaClient]:
    with contextlib.closing(new_client(kafka.bootstrap_servers)) as made:
        yield made


def new_client(servers: str) -> KafkaClient:
    options = SinkOptions.parse({"kafka.bootstrap.servers": servers, "topic": "t"})
    return KafkaClient(options.client, RecordingPublisher([]))


@pytest.fixture
def partition(kafka: Cluster, make_topic: MakeTopic) -> TopicPartition:
    (made,) = log_ends(kafka.bootstrap_servers, make_topic())  # its leader leads
    return made


def soon(client: KafkaClient) -> float:
    return client.clock() + PATIENCE_S


def opened(
    client: KafkaClient, partition: TopicPartition, version: TransactionVersion, *ids: str
) -> dict[str, ProducerIdAndEpoch]:
    """An open transaction with one record for each id."""
    producers = {}
    for each in ids:
        producers[each] = client.coordinators.fence([each], TIMEOUT_MS, soon(client))[each]
        if version is V1:
            client.coordinators.add_partitions(each, producers[each], [partition], soon(client))
        assert write(client, partition, each, producers[each], version).error_code == 0
    return producers


def aborted(client: KafkaClient, transactional_id: str) -> Any:
    described = client.coordinators.describe_transactions([transactional_id], soon(client))
    return [transaction for transaction in described if transaction.state == "CompleteAbort"]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if "timed out" in case else ()) for case in CASES]
)
@pytest.mark.parametrize("version", [V1, V2])
def test_codes_of_the_end_are_those_of_the_table(
    client: KafkaClient, partition: TopicPartition, case: str, version: TransactionVersion
) -> None:
    codes = end_codes(client, partition, case, version, lambda each: poll_until(lambda: aborted(client, each)))

    assert codes == CASES[case][1][version]


@pytest.mark.parametrize("version", [V1, V2])
def test_unknown_id_is_not_open(client: KafkaClient, version: TransactionVersion) -> None:
    ended = client.coordinators.end_transactions({"nobody's": ProducerIdAndEpoch(7, 0)}, True, version, soon(client))

    assert (ended["nobody's"].error_code, ended["nobody's"].result) == (INVALID_MAPPING, NO_PRODUCER)


@pytest.mark.parametrize("version", [V1, V2])
def test_only_the_second_version_raises_the_epoch(
    client: KafkaClient, partition: TopicPartition, version: TransactionVersion
) -> None:
    transactional_id = f"{partition.topic}/0/0"
    producers = opened(client, partition, version, transactional_id)
    (producer_id, epoch) = producers[transactional_id]
    ended = client.coordinators.end_transactions(producers, True, version, soon(client))[transactional_id]

    assert ended.result == (NO_PRODUCER if version is V1 else ProducerIdAndEpoch(producer_id, epoch + 1))


def test_cluster_has_finalized_the_second_version(client: KafkaClient) -> None:
    assert client.coordinators.transaction_version(soon(client)) is V2


@pytest.mark.parametrize("version", [V1, V2])
def test_transactions_are_listed_and_described_while_they_are_open(
    client: KafkaClient, partition: TopicPartition, version: TransactionVersion
) -> None:
    ids = [f"{partition.topic}/{number}/0" for number in range(12)]
    producers = opened(client, partition, version, *ids)
    listed = client.coordinators.list_transactions(soon(client))
    described = client.coordinators.describe_transactions(ids, soon(client))

    assert [each for each in listed if each in ids] == sorted(ids)
    assert [transaction.transactional_id for transaction in described] == ids
    assert {transaction.transactional_id: transaction.producer for transaction in described} == producers
    assert {(each.state, each.timeout_ms, each.partitions) for each in described} == {
        ("Ongoing", TIMEOUT_MS, (partition,))
    }
    assert all(each.started_ms is not None and each.started_ms > 1_700_000_000_000 for each in described)

    ended = client.coordinators.end_transactions(producers, True, version, soon(client))
    assert {each.error_code for each in ended.values()} == {0}
    assert not set(ids) & set(client.coordinators.list_transactions(soon(client)))
    poll_until(lambda: [each for each in client.coordinators.describe_transactions(ids, soon(client)) if is_over(each)])


def is_over(described: Any) -> bool:
    return described.state == "CompleteCommit" and described.started_ms is not None and not described.partitions


def test_id_without_a_transaction_is_described_an_unknown_not(client: KafkaClient, partition: TopicPartition) -> None:
    transactional_id = f"{partition.topic}/0/0"
    producer = client.coordinators.fence([transactional_id], TIMEOUT_MS, soon(client))[transactional_id]
    (described,) = client.coordinators.describe_transactions([transactional_id, "nobody's"], soon(client))

    assert (described.transactional_id, described.state, described.producer) == (transactional_id, "Empty", producer)
    assert (described.started_ms, described.partitions) == (None, ())


@pytest.mark.parametrize("version", [V1, V2])
def test_another_attempt_fences_it(client: KafkaClient, partition: TopicPartition, version: TransactionVersion) -> None:
    transactional_id = f"{partition.topic}/0/0"
    producer = opened(client, partition, version, transactional_id)[transactional_id]
    next_producer = client.coordinators.fence([transactional_id], TIMEOUT_MS, soon(client))[transactional_id]

    assert next_producer.producer_id == producer.producer_id
    assert next_producer.epoch > producer.epoch
    assert write(client, partition, transactional_id, producer, version, base_sequence=1).error_code == FENCED_PRODUCE
    with pytest.raises(FencedError, match=transactional_id):
        client.coordinators.add_partitions(transactional_id, producer, [partition], soon(client))


def test_timeout_above_the_limit_of_the_brokers_is_refused(client: KafkaClient, partition: TopicPartition) -> None:
    with pytest.raises(BrokerError, match=r"at most transaction\.max\.timeout\.ms"):
        client.coordinators.fence([f"{partition.topic}/0/0"], 16 * 60_000, soon(client))


def test_records_of_version_1_need_their_partition_added(client: KafkaClient, partition: TopicPartition) -> None:
    transactional_id = f"{partition.topic}/0/0"
    producer = client.coordinators.fence([transactional_id], TIMEOUT_MS, soon(client))[transactional_id]

    assert write(client, partition, transactional_id, producer, V1).error_code in (48, 120)
