"""A metadata cache of the command itself, which shows a refresh on demand. Its events are only printed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark_kafka_meta.events.origin import cli_origin
from pyspark_kafka_meta.events.publisher import EventPublisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.metadata.refresh_events import RefreshEvent
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.caches_from_events import Event


class _Screen:
    """A sink that keeps the events until they are shown."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, events: Sequence[RefreshEvent]) -> None:
        self.events += [event.to_dict() for event in events]

    def close(self) -> None:
        """Nothing is open."""


class OwnCache:
    """A client whose cache keeps its events until the next `refresh`."""

    def __init__(self, options: ClientOptions) -> None:
        self._screen = _Screen()
        self._client = KafkaClient(options, EventPublisher([self._screen], cli_origin()))

    def refresh(self, topics: Collection[str]) -> list[Event]:
        """Refresh the cache on demand, with these and all earlier topics. The first call also bootstraps the cache.

        Returns:
            The events since the last call.

        Raises:
            ConnectError: no broker responded in time.
        """
        cache, deadline = self._client.cache, self._client.api_deadline()
        cache.track(topics)
        if cache.snapshot.generation == 0:
            cache.refresh(RefreshReason.BOOTSTRAP, deadline)
        cache.refresh(RefreshReason.ON_DEMAND, deadline)
        self._client.publisher.flush()
        events, self._screen.events = self._screen.events, []
        return events

    def close(self) -> None:
        self._client.close()
