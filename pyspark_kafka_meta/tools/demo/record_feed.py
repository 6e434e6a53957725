"""Produces records to the demo's topics in a thread, until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pyspark_kafka_meta.kafka.network.security.librdkafka_config import new_client
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tools.demo.clusters import REPLICAS, Cluster
from pyspark_kafka_meta.tools.shared.console import note

RECORDS_PER_S = 480
"""To the first topic."""
ROUNDS_PER_S = 10
STOP_TIMEOUT_S = 10
SETTINGS = {"client.id": "kafkameta-demo", "log_level": 0, "topic.metadata.refresh.interval.ms": 1_000}


def records_per_round(topics: Sequence[str]) -> dict[str, int]:
    """The records that each topic gets in a round. Topics that the demo adds have one partition, and get its share."""
    first = RECORDS_PER_S // ROUNDS_PER_S
    return {topic: first // len(REPLICAS) if number else first for number, topic in enumerate(topics)}


class RecordFeed:
    """Produces to each topic of the cluster inside `with`; keys spread the records over partitions. The constructor
    raises OptionError if no producer takes the cluster's security options.

    Attributes:
        produced: acknowledged records.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.produced = 0
        self._sent = 0
        self._failed = False
        self._cluster = cluster
        options = ClientOptions.parse(cluster.options)
        self._producer = new_client(Producer, options.bootstrap_servers, options.security, SETTINGS)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafkameta-demo-feed")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(1 / ROUNDS_PER_S):
            try:
                self._produce()
            except BufferError:
                pass  # the queue is full: the brokers take nothing just now
            except KafkaException as error:  # of a record that is not even queued
                self._report(error.args[0])
            self._producer.poll(0)
        self._producer.flush(STOP_TIMEOUT_S)

    def _produce(self) -> None:
        for topic, count in records_per_round(self._cluster.topics).items():
            for _ in range(count):
                key = str(self._sent)
                self._producer.produce(topic, value=f"click {key}", key=key, on_delivery=self._on_delivery)
                self._sent += 1

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.produced += 1
        else:
            self._report(error)

    def _report(self, error: KafkaError) -> None:
        """Only the first error: there may be hundreds a second."""
        if not self._failed:
            self._failed = True
            note(f"a record could not be produced; the demo continues: {error.str()}")
