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
MAX_UNKNOWN_IDS = 100
"""Of a registry in this time. With more, values have other frames or none, and each may name another id: then the
registry is not asked for every record. Tasks carry the ids of the query's own subjects."""

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
            UnknownSchemaError: the registry does not have the id, or did not a short time ago, or so many others.
            SchemaRegistryError: as `RegistryClient.schema`.
        """
        key = urls, schema_id
        with self._lock:
            if key in self._known:
                return self._known[key]
            unknown = self._unknown_of(urls)
            if schema_id in unknown:
                raise UnknownSchemaError(str(unknown[schema_id]), unknown[schema_id].code)
            if len(unknown) >= MAX_UNKNOWN_IDS:
                raise UnknownSchemaError(
                    f"the schema registry was not asked for schema id {schema_id}, because it did not have "
                    f"{MAX_UNKNOWN_IDS} other ids in the last {UNKNOWN_FOR_S:.0f} s"
                )
            try:
                self._known[key] = client.schema(schema_id)
            except UnknownSchemaError as error:
                self._unknown[key] = error, self._clock() + UNKNOWN_FOR_S
                raise
            return self._known[key]

    def _unknown_of(self, urls: Urls) -> dict[int, UnknownSchemaError]:
        """The errors by id; forgets older errors."""
        now = self._clock()
        self._unknown = {key: (error, until) for key, (error, until) in self._unknown.items() if now < until}
        return {schema_id: error for (known_urls, schema_id), (error, _) in self._unknown.items() if known_urls == urls}


worker_schemas = KnownSchemas()
"""The schemas of this process."""
