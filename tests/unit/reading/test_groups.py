"""A consumer group's offsets: a coordinator that is not there yet is waited for, a refusal is said."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from pyspark_kafka_meta.errors import BrokerError
from pyspark_kafka_meta.metadata.model import TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.reading import groups

OPTIONS = ClientOptions.parse({"kafka.bootstrap.servers": "b:9092"})
T0 = TopicPartition("t", 0)


class Admin:
    """Answers with these error codes, then well."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.asked = list(codes), 0

    def alter_consumer_group_offsets(self, requests: Any, request_timeout: float) -> dict[str, Future[Any]]:
        self.asked += 1
        future: Future[Any] = Future()
        if self.codes:
            future.set_exception(KafkaException(KafkaError(self.codes.pop(0))))
        else:
            future.set_result(SimpleNamespace(topic_partitions=requests[0].topic_partitions))
        return {requests[0].group_id: future}


def test_a_commit_waits_for_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(15, 16, 14)
    monkeypatch.setattr(groups, "_admin", lambda options: admin)
    monkeypatch.setattr(groups, "COORDINATOR_PAUSE_S", 0.0)
    groups.commit_offsets(OPTIONS, "g", {T0: 5})

    assert admin.asked == 4


def test_a_refused_commit_names_the_group_and_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(30)
    monkeypatch.setattr(groups, "_admin", lambda options: admin)

    with pytest.raises(
        BrokerError, match=r"offsets of consumer group g could not be committed: .*Check that the group"
    ):
        groups.commit_offsets(OPTIONS, "g", {T0: 5})
    assert admin.asked == 1
