"""The schemas that a process knows of its registries: `KnownSchemas` by id, each fetched once, and `KnownVersions`.

Spark gives a Python worker tasks of any query, so the schemas are kept by the registry. A login belongs to it: one URL
of Confluent Cloud leads to the registries of many environments, each with the ids of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from pyspark_kafka_meta.errors import SchemaRegistryError, UnknownSchemaError, ValueSchemaError
from pyspark_kafka_meta.options import RegistryOptions
from pyspark_kafka_meta.typed.registry.client import (
    RegisteredSchema,
    RegistryClient,
    SubjectVersion,
    context_of,
    require_kind,
)

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
PAUSE_FACTOR = 10
"""The driver of a stream can do without some answers. After a request that failed or was slow, it asks for them again
only after so many times as long as the request took, and so waits at most a tenth of its time."""


_Place: TypeAlias = tuple[RegistryOptions, str, int | str]
"""A registry, one of its contexts, and an id or GUID in it."""
_Asker: TypeAlias = tuple[RegistryOptions, bool]
"""A registry, and whether it is asked again: a query that goes on without schemas must not make another one fail."""


class _Unknown(NamedTuple):
    """An id that the registry did not have.

    Attributes:
        message, code: of the error. The error itself would keep the records of its task in memory, by its traceback.
        since_s, again_at_s: when it was asked for it first, and may be asked again.
    """

    message: str
    code: int | None
    since_s: float
    again_at_s: float


class KnownSchemas:
    """Thread-safe, because tasks may be threads. A thread waits only for another one's request for the same schema, and
    after `timeout_ms` asks itself: the other one may have been stopped, or be in the process that this one was forked
    from, or need many requests for a schema with references."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds that never go back."""
        self._clock = clock
        self._changed = threading.Condition()
        self._known: dict[_Place, RegisteredSchema] = {}
        self._refused: dict[tuple[_Place, str], str] = {}  # why, by kind: of another one, or not usable
        self._unknown: dict[_Asker, dict[_Place, _Unknown]] = {}
        self._asked: set[_Place] = set()

    def add(self, registry: RegistryOptions, schemas: Iterable[RegisteredSchema]) -> None:
        """Add schemas by their ids and GUIDs."""
        with self._changed:
            for schema in schemas:
                keys = [key for key in (schema.schema_id, schema.guid) if key is not None]
                self._known |= {(registry, schema.context, key): schema for key in keys}
            self._changed.notify_all()

    def schema(
        self,
        registry: RegistryOptions,
        key: int | str,
        kind: str,
        client: RegistryClient,
        *,
        asks_again: bool = False,
        subject: str | None = None,
    ) -> RegisteredSchema:
        """The schema of an id or GUID, which `client` fetches if it is not known, and no other thread asks for it.

        Args:
            kind, subject: as of `RegistryClient.schema`.
            asks_again: whether the registry is asked although it did not have the id a short time ago. What others
                did not find does not count then.

        Raises:
            UnknownSchemaError: the registry does not have the id, or did not a short time ago, or so many others.
            SchemaRegistryError, ValueSchemaError: as `RegistryClient.schema`.
        """
        place = registry, context_of(subject), key
        with self._changed:
            is_asked = place in self._asked
            self._changed.wait_for(lambda: place in self._known or place not in self._asked, registry.timeout_ms / 1000)
            if place in self._known:
                require_kind(self._known[place].kind, kind)
                return self._known[place]
            if (place, kind) in self._refused:
                raise ValueSchemaError(self._refused[place, kind])
            asker = registry, asks_again
            self._check_unknown(asker, place, asks_again and not is_asked)
            self._asked.add(place)
        return self._fetched(place, kind, asker, client, subject)

    def _check_unknown(self, asker: _Asker, place: _Place, asks_again: bool) -> None:
        """Raises UnknownSchemaError if the registry is not to be asked for the id now."""
        now_s = self._clock()
        unknown = self._unknown[asker] = {
            each: asked_for
            for each, asked_for in self._unknown.get(asker, {}).items()
            if now_s < asked_for.since_s + UNKNOWN_FOR_S
        }
        before = unknown.get(place)
        if before is not None and now_s < before.again_at_s and not asks_again:
            raise UnknownSchemaError(before.message, before.code)
        if before is None and len(unknown) >= MAX_UNKNOWN_IDS:
            raise UnknownSchemaError(
                f"the schema registry was not asked for schema {_named(place[2])}, because it did not have "
                f"{MAX_UNKNOWN_IDS} other ids in the last {UNKNOWN_FOR_S:.0f} s"
            )

    def _fetched(
        self, place: _Place, kind: str, asker: _Asker, client: RegistryClient, subject: str | None
    ) -> RegisteredSchema:
        """Asks without the lock: threads that need other schemas go on."""
        try:
            found = client.schema(place[2], kind, subject)
            with self._changed:
                self._known[place] = found
            return found
        except ValueSchemaError as error:
            with self._changed:
                self._refused[place, kind] = str(error)
            raise
        except UnknownSchemaError as error:
            with self._changed:
                now_s, before = self._clock(), self._unknown[asker].get(place)
                since_s = now_s if before is None else before.since_s
                again_at_s = now_s + max(ASK_AGAIN_S, now_s - since_s)
                self._unknown[asker][place] = _Unknown(str(error), error.code, since_s, again_at_s)
            raise
        finally:
            with self._changed:
                self._asked.discard(place)  # two threads may have asked
                self._changed.notify_all()


def _named(key: int | str) -> str:
    return f"id {key}" if isinstance(key, int) else f"GUID {key}"


worker_schemas = KnownSchemas()
"""The schemas of this process."""


class KnownVersions:
    """The versions of subjects that a process has written with, for a registry that fails.

    Confluent's serializers ask for the latest version once (`latest.cache.ttl.sec` -1). This sink asks before each
    micro-batch, so that it follows the subject, but goes on without an answer.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds that never go back."""
        self._clock = clock
        self._known: dict[tuple[RegistryOptions, str, int | str], SubjectVersion] = {}
        self._again_at_s: dict[tuple[RegistryOptions, str, int | str], float] = {}  # may fail for one subject alone

    def version(
        self, registry: RegistryOptions, subject: str, version: int | str, client: RegistryClient
    ) -> SubjectVersion:
        """A version of a subject, a number or "latest"; that of an earlier call if the registry fails, or did a short
        time ago for this version.

        Raises:
            UnknownSchemaError: the registry does not have the version.
            SchemaRegistryError: as `RegistryClient.version`, if there was no earlier call.
        """
        key = registry, subject, version
        known, asked_s = self._known.get(key), self._clock()
        if known is not None and asked_s < self._again_at_s.get(key, asked_s):
            return known
        try:
            asked = client if known is None else client.within(KNOWN_TIMEOUT_MS)
            self._known[key] = asked.version(subject, version)
        except UnknownSchemaError:
            raise
        except SchemaRegistryError as error:
            if known is None:
                raise
            now_s = self._clock()
            self._again_at_s[key] = now_s + PAUSE_FACTOR * (now_s - asked_s)
            logger.warning("%s; rows are written with version %d as before", error, known.version)
        return self._known[key]


driver_versions = KnownVersions()
"""Of this process. Spark keeps the one that plans the micro-batches of a sink, but not for an idle minute."""
