"""A metadata cache of the command's own, to see a refresh on demand happen. Its events go nowhere but to the screen."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection
from dataclasses import replace

from pyspark_kafka_meta.metadata.cache import MetadataCache
from pyspark_kafka_meta.metadata.events import Origin, RefreshEvent, RefreshReason
from pyspark_kafka_meta.metadata.policy import PolicySettings
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.reading.client import connection_settings
from pyspark_kafka_meta.tables.folding import Event
from pyspark_kafka_meta.wire.brokers import KafkaWire


class OwnCache:
    """Keeps its events until they are asked for."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._events: list[RefreshEvent] = []
        self._wire = KafkaWire(connection_settings(options))
        self._cache = MetadataCache(
            self._wire,
            options.bootstrap_servers,
            PolicySettings(options.metadata_max_age_ms, options.retry_backoff_ms, options.retry_backoff_max_ms),
            request_timeout_ms=options.request_timeout_ms,
            publish=self._events.append,
        )

    def refresh(self, topics: Collection[str]) -> list[Event]:
        """Ask for these topics and all of before, on demand; a cache that knows nothing yet learns them first.

        Returns:
            The events since the last call.

        Raises:
            ConnectError: no broker answered in time.
        """
        deadline = time.monotonic() + self._options.default_api_timeout_ms / 1000
        self._cache.track(topics)
        if self._cache.snapshot.generation == 0:
            self._cache.refresh(RefreshReason.BOOTSTRAP, deadline)
        self._cache.refresh(RefreshReason.ON_DEMAND, deadline)
        origin = Origin(role="cli", host=socket.gethostname(), pid=os.getpid())
        events: list[Event] = [replace(event, origin=origin).to_dict() for event in self._events]
        self._events.clear()
        return events

    def close(self) -> None:
        self._wire.close()
