"""The topic that createTopics creates."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import AuthorizationError, BrokerError, UnknownTopicError
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.write.topic_metadata import ask_partitions, create_if_missing
from tests.unit.write.writer_scene import WriterScene

NEW = {"topic": "new-topic", "createTopics": "true", "newTopicPartitions": "5"}


def test_a_missing_topic_is_created_with_the_partitions_of_the_options(scene: WriterScene) -> None:
    options = scene.sink_options(**NEW, newTopicConfig='{"retention.ms": -1}')
    client = scene.worker(options)
    create_if_missing(client, options)

    assert len(client.cache.snapshot.partitions("new-topic")) == 5


def test_a_topic_that_was_looked_up_in_vain_before_is_waited_for(scene: WriterScene) -> None:
    """As in a notebook, whose next write creates the topic. Brokers know it later than its controller."""
    options = scene.sink_options(**NEW)
    client = scene.worker(options)
    with pytest.raises(UnknownTopicError):
        ask_partitions(client, ["new-topic"], options.producer.max_block_ms)
    for node_id in scene.cluster.brokers:
        scene.network.cut_off(node_id)
    scene.clock.at(2, scene.network.catch_up)
    create_if_missing(client, options)

    assert client.cache.snapshot.partitions("new-topic")


def test_a_topic_that_exists_is_left_as_it_is(scene: WriterScene) -> None:
    options = scene.sink_options(createTopics="true", newTopicPartitions="5")
    create_if_missing(scene.worker(options), options)

    assert len(scene.cluster.topics["t"].partitions) == 3
    assert not scene.sent("CreateTopics")


def test_a_topic_that_another_query_creates_meanwhile_is_no_error(scene: WriterScene) -> None:
    options = scene.sink_options(**NEW)
    scene.network.admin_errors["CreateTopics"].append(ErrorCode.topic_already_exists)
    for node_id in scene.cluster.brokers:
        scene.network.cut_off(node_id)
    scene.clock.at(2, scene.network.catch_up)
    client = scene.worker(options)
    client.cache.refresh(RefreshReason.BOOTSTRAP, client.api_deadline())
    scene.cluster.create_topic("new-topic")
    create_if_missing(client, options)

    assert client.cache.snapshot.partitions("new-topic")


def test_a_refusal_says_what_to_do(scene: WriterScene) -> None:
    options = scene.sink_options(**NEW, newTopicReplicas="9")
    scene.network.admin_errors["CreateTopics"].append(ErrorCode.invalid_replication_factor)
    with pytest.raises(BrokerError, match=r"new-topic could not be created: INVALID_REPLICATION_FACTOR.*Correct the"):
        create_if_missing(scene.worker(options), options)


def test_who_may_create_but_not_write_is_told_the_right(scene: WriterScene) -> None:
    options = scene.sink_options(**NEW)
    scene.network.metadata_errors["new-topic"] = ErrorCode.topic_authorization_failed
    with pytest.raises(AuthorizationError, match=r"was created, but cannot be written: .* no ACL allows .* WRITE"):
        create_if_missing(scene.worker(options), options)
