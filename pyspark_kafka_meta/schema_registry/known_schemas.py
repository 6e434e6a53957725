"""The schemas that a process knows of its registries: `KnownSchemas` by id, each fetched once, and `KnownVersions`.

Spark gives a Python worker tasks of any query, so the schemas are kept by the registry. A login belongs to it: one URL
of Confluent Cloud leads to the registries of many environments, each with the ids of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyspark_kafka_meta.errors import SchemaRegistryError, UnknownSchemaError
from pyspark_kafka_meta.options import RegistryOptions
from pyspark_kafka_meta.schema_registry.client import RegisteredSchema, RegistryClient, SubjectVersion

logger = logging.getLogger(__name__)

UNKNOWN_FOR_S = 60.0
"""How long an id is remembered as unknown."""
ASK_AGAIN_S = 0.5
"""After this time the registry is asked for an unknown id again, then each time that the time since the first request
has doubled: a registry that lags behind, or was restored, knows the id later."""
MAX_UNKNOWN_IDS = 100
"""Of a registry at the same time. With more, values have other frames or none, and each may name another id: then the
registry is not asked for every record. Tasks carry the ids of the query's own subjects."""

KNOWN_TIMEOUT_MS = 5_000
"""For a version of a subject, if an earlier answer is known."""


class _Unknown(NamedTuple):
    """An id that the registry did not have.

    Attributes:
        since_s, again_at_s: when it was asked for it first, and may be asked again.
    """

    error: UnknownSchemaError
    since_s: float
    again_at_s: float


class KnownSchemas:
    """Thread-safe, because tasks may be threads: a second thread waits for the first one's request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            clock: seconds that never go back.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[tuple[RegistryOptions, int | str], RegisteredSchema] = {}
        self._unknown: dict[RegistryOptions, dict[int | str, _Unknown]] = {}

    def add(self, registry: RegistryOptions, schemas: Iterable[RegisteredSchema]) -> None:
        """Add schemas by their ids and GUIDs."""
        with self._lock:
            for schema in schemas:
                self._known |= {(registry, key): schema for key in (schema.schema_id, schema.guid) if key is not None}

    def schema(
        self, registry: RegistryOptions, key: int | str, client: RegistryClient, *, asks_again: bool = False
    ) -> RegisteredSchema:
        """The schema of an id or GUID, which `client` fetches if it is not known.

        Args:
            asks_again: whether the registry is asked although it did not have the id a short time ago.

        Raises:
            UnknownSchemaError: the registry does not have the id, or did not a short time ago, or so many others.
            SchemaRegistryError: as `RegistryClient.schema`.
        """
        with self._lock:
            known = self._known.get((registry, key))
            if known is None:
                known = self._known[registry, key] = self._asked(registry, key, client, asks_again)
            return known

    def _asked(
        self, registry: RegistryOptions, key: int | str, client: RegistryClient, asks_again: bool
    ) -> RegisteredSchema:
        now_s = self._clock()
        unknown = self._unknown[registry] = {
            key: each for key, each in self._unknown.get(registry, {}).items() if now_s < each.since_s + UNKNOWN_FOR_S
        }
        before = unknown.get(key)
        if before is not None and now_s < before.again_at_s and not asks_again:
            raise UnknownSchemaError(str(before.error), before.error.code)
        if before is None and len(unknown) >= MAX_UNKNOWN_IDS:
            kind = "id" if isinstance(key, int) else "GUID"
            raise UnknownSchemaError(
                f"the schema registry was not asked for schema {kind} {key}, because it did not have "
                f"{MAX_UNKNOWN_IDS} other ids in the last {UNKNOWN_FOR_S:.0f} s"
            )
        try:
            return client.schema(key)
        except UnknownSchemaError as error:
            now_s = self._clock()
            since_s = now_s if before is None else before.since_s
            unknown[key] = _Unknown(error, since_s, now_s + max(ASK_AGAIN_S, now_s - since_s))
            raise


worker_schemas = KnownSchemas()
"""The schemas of this process."""


class KnownVersions:
    """The versions of subjects that a process has written with, for a registry that fails.

    Confluent's serializers ask for the latest version once (`latest.cache.ttl.sec` -1). This sink asks before each
    micro-batch, so that it follows the subject, but goes on without an answer.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[RegistryOptions, str, int | str], SubjectVersion] = {}

    def version(
        self, registry: RegistryOptions, subject: str, version: int | str, client: RegistryClient
    ) -> SubjectVersion:
        """A version of a subject, a number or "latest"; that of an earlier call if the registry fails.

        Raises:
            UnknownSchemaError: the registry does not have the version.
            SchemaRegistryError: as `RegistryClient.version`, if there was no earlier call.
        """
        key = registry, subject, version
        known = self._known.get(key)
        try:
            asked = client if known is None else client.within(KNOWN_TIMEOUT_MS)
            self._known[key] = asked.version(subject, version)
        except UnknownSchemaError:
            raise
        except SchemaRegistryError as error:
            if known is None:
                raise
            logger.warning("%s; rows are written with version %d as before", error, known.version)
        return self._known[key]


driver_versions = KnownVersions()
"""Of this process. Spark keeps the one that plans the micro-batches of a sink, but not for an idle minute."""
