"""`KnownSchemas`: the schemas that a process knows of its registries, each fetched once.

Spark gives a Python worker tasks of any query, so the schemas are kept by the registry's URLs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from pyspark_kafka_meta.errors import UnknownSchemaError
from pyspark_kafka_meta.schema_registry.client import RegisteredSchema, RegistryClient

UNKNOWN_FOR_S = 60.0
"""How long an id counts as unknown. A registry that was restored, or that lags behind, knows the id later."""
MAX_UNKNOWN_IDS = 10_000

Urls = tuple[str, ...]


class KnownSchemas:
    """Thread-safe, because tasks may be threads: a second thread waits for the first one's request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            clock: seconds that never go back.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[tuple[Urls, int], RegisteredSchema] = {}
        self._unknown: dict[tuple[Urls, int], tuple[UnknownSchemaError, float]] = {}

    def add(self, urls: Urls, schemas: Iterable[RegisteredSchema]) -> None:
        with self._lock:
            self._known |= {(urls, schema.schema_id): schema for schema in schemas}

    def schema(self, urls: Urls, schema_id: int, client: RegistryClient) -> RegisteredSchema:
        """The schema of an id, which `client` fetches if it is not known.

        Raises:
            UnknownSchemaError: the registry does not have the id, or did not a short time ago.
            SchemaRegistryError: as `RegistryClient.schema`.
        """
        key = urls, schema_id
        with self._lock:
            if key in self._known:
                return self._known[key]
            error, until = self._unknown.get(key, (None, 0.0))
            if error is not None and self._clock() < until:
                raise UnknownSchemaError(str(error), error.code)
            try:
                self._known[key] = client.schema(schema_id)
            except UnknownSchemaError as unknown:
                if len(self._unknown) >= MAX_UNKNOWN_IDS:
                    self._unknown.clear()
                self._unknown[key] = unknown, self._clock() + UNKNOWN_FOR_S
                raise
            return self._known[key]


worker_schemas = KnownSchemas()
"""The schemas of this process."""
