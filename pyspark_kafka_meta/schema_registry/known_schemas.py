"""`KnownSchemas`: the schemas that a process knows of its registries, each fetched once.

Spark gives a Python worker tasks of any query, so the schemas are kept by the registry. A login belongs to it: one URL
of Confluent Cloud leads to the registries of many environments, each with the ids of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from pyspark_kafka_meta.errors import UnknownSchemaError
from pyspark_kafka_meta.options import RegistryOptions
from pyspark_kafka_meta.schema_registry.client import RegisteredSchema, RegistryClient

UNKNOWN_FOR_S = 60.0
"""How long an id counts as unknown. A registry that was restored, or that lags behind, knows the id later."""
MAX_UNKNOWN_IDS = 100
"""Of a registry in this time. With more, values have other frames or none, and each may name another id: then the
registry is not asked for every record. Tasks carry the ids of the query's own subjects."""


class KnownSchemas:
    """Thread-safe, because tasks may be threads: a second thread waits for the first one's request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            clock: seconds that never go back.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[tuple[RegistryOptions, int], RegisteredSchema] = {}
        self._unknown: dict[RegistryOptions, dict[int, tuple[UnknownSchemaError, float]]] = {}

    def add(self, registry: RegistryOptions, schemas: Iterable[RegisteredSchema]) -> None:
        with self._lock:
            self._known |= {(registry, schema.schema_id): schema for schema in schemas}

    def schema(self, registry: RegistryOptions, schema_id: int, client: RegistryClient) -> RegisteredSchema:
        """The schema of an id, which `client` fetches if it is not known.

        Raises:
            UnknownSchemaError: the registry does not have the id, or did not a short time ago, or so many others.
            SchemaRegistryError: as `RegistryClient.schema`.
        """
        key = registry, schema_id
        with self._lock:
            if key in self._known:
                return self._known[key]
            unknown = self._unknown_of(registry)
            if schema_id in unknown:
                error, _ = unknown[schema_id]
                raise UnknownSchemaError(str(error), error.code)
            if len(unknown) >= MAX_UNKNOWN_IDS:
                raise UnknownSchemaError(
                    f"the schema registry was not asked for schema id {schema_id}, because it did not have "
                    f"{MAX_UNKNOWN_IDS} other ids in the last {UNKNOWN_FOR_S:.0f} s"
                )
            try:
                self._known[key] = client.schema(schema_id)
            except UnknownSchemaError as missing:
                unknown[schema_id] = missing, self._clock() + UNKNOWN_FOR_S
                raise
            return self._known[key]

    def _unknown_of(self, registry: RegistryOptions) -> dict[int, tuple[UnknownSchemaError, float]]:
        """The errors by id, with the time until which they hold; forgets older errors."""
        now = self._clock()
        held = {schema_id: each for schema_id, each in self._unknown.get(registry, {}).items() if now < each[1]}
        self._unknown[registry] = held
        return held


worker_schemas = KnownSchemas()
"""The schemas of this process."""
