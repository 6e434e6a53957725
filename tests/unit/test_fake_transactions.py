"""The fake cluster keeps transactions as brokers do (`tests/kafka/test_transaction_requests.py` has the codes)."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.produce import ProducedPartition
from pyspark_kafka_meta.kafka.records.batches import is_abort_marker, read_batch_headers
from pyspark_kafka_meta.model import ProducerIdAndEpoch, TransactionVersion
from tests.partitions import T0
from tests.transaction_cases import write
from tests.unit.scene import Scene

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
ID, TIMEOUT_MS = "orders/1/0", 60_000


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """All logs are empty."""
    return Scene(monkeypatch)


@pytest.fixture
def client(scene: Scene) -> KafkaClient:
    return scene.warm_client()


def begun(scene: Scene, client: KafkaClient) -> ProducerIdAndEpoch:
    return client.coordinators.fence([ID], TIMEOUT_MS, scene.clock() + 10)[ID]


def produced(client: KafkaClient, producer: ProducerIdAndEpoch, base_sequence: int = 0) -> ProducedPartition:
    return write(client, T0, ID, producer, V2, base_sequence)


def end(scene: Scene, client: KafkaClient, producer: ProducerIdAndEpoch, committed: bool) -> ProducerIdAndEpoch:
    ended = client.coordinators.end_transactions({ID: producer}, committed, V2, scene.clock() + 10)[ID]
    assert ended.error_code == 0
    return ended.result


def fetched(scene: Scene, read_committed: bool = True) -> FetchedPartition:
    entry = FetchPartition(T0, scene.cluster.topics["t"].topic_id, 0, 0, -1, 100_000)
    request = FetchRequest((entry,), 500, 1, 100_000, read_committed)
    leader = scene.cluster.partition(T0).leader_id
    scene.network.fetch.send(scene.cluster.brokers[leader], request, scene.clock() + 10)
    response = scene.network.fetch.receive([leader], scene.clock() + 10)
    assert isinstance(response, FetchResponse)
    return response.partitions[0]


def test_open_transaction_holds_back_readers_of_committed_records(scene: Scene, client: KafkaClient) -> None:
    scene.write(T0, "before")
    producer = begun(scene, client)
    assert produced(client, producer).base_offset == 1
    scene.write(T0, "after")

    assert fetched(scene).last_stable_offset == 1
    assert len(read_batch_headers(fetched(scene).records)) == 1
    assert len(read_batch_headers(fetched(scene, read_committed=False).records)) == 3
    end(scene, client, producer, committed=True)
    assert (fetched(scene).last_stable_offset, fetched(scene).aborted_transactions) == (4, ())


@pytest.mark.parametrize("committed", [True, False])
def test_end_writes_a_marker_that_tells_what_was_aborted(scene: Scene, client: KafkaClient, committed: bool) -> None:
    producer = begun(scene, client)
    produced(client, producer)
    end(scene, client, producer, committed)
    found = fetched(scene)
    records, marker = read_batch_headers(found.records)

    assert (records.is_transactional, records.is_control, records.producer_id) == (True, False, producer.producer_id)
    assert (marker.is_control, marker.producer_id) == (True, producer.producer_id)
    assert is_abort_marker(marker, found.records) is not committed
    assert found.aborted_transactions == (() if committed else ((producer.producer_id, 0),))
    assert fetched(scene, read_committed=False).aborted_transactions == ()


def test_next_transaction_of_the_producer_continues_in_the_next_epoch(scene: Scene, client: KafkaClient) -> None:
    producer = begun(scene, client)
    produced(client, producer)
    following = end(scene, client, producer, committed=True)

    assert produced(client, producer, 1).error_code == ErrorCode.invalid_producer_epoch
    assert produced(client, following).error_code == 0
    end(scene, client, following, committed=False)
    assert fetched(scene).aborted_transactions == ((producer.producer_id, 2),)


@pytest.mark.parametrize("again", [True, False])
def test_initialised_again_or_timed_out_aborts_what_is_open(scene: Scene, client: KafkaClient, again: bool) -> None:
    producer = begun(scene, client)
    produced(client, producer)
    if again:
        begun(scene, client)
    else:
        scene.cluster.coordinators.time_out(ID)

    assert fetched(scene).aborted_transactions == ((producer.producer_id, 0),)
    assert produced(client, producer, 1).error_code == ErrorCode.invalid_producer_epoch
    assert client.coordinators.list_transactions(scene.clock() + 10) == []
