"""`History`: what clients do on a cluster with faults, all drawn from one seed. It is the same each time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from pyspark_kafka_meta.events.event import Event
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.options import ClientOptions
from tests.unit.fake_network import FakeClock, FakeNetwork
from tests.unit.histories.faults import Faults
from tests.unit.scene import RecordingPublisher

TICK_S = 20e-6
"""Between two looks at the clock."""


class History:
    """
    Attributes:
        given: options.
        events: of all clients.
        faults: their notes are for the reader of a failure.
    """

    clock: FakeClock
    given: dict[str, str]
    faults: Faults

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.events: list[Event] = []

    def _rng(self) -> random.Random:
        return random.Random(self.rng.random())

    def _new_client(
        self, options: ClientOptions, network: FakeNetwork, topic_filter: Callable[[str], bool] | None = None
    ) -> KafkaClient:
        return KafkaClient(
            options,
            RecordingPublisher(self.events),
            topic_filter,
            network=network,
            clock=self.clock,
            sleep=self.clock.sleep,
            rng=self._rng(),
        )

    def _told(self, about: str, notes: int) -> str:
        """The options, and the last notes."""
        told: Sequence[str] = [f"{at:10.3f} {text}" for at, text in self.faults.notes[-notes:]]
        return "\n".join([f"{self.given}, {about}", *told])
