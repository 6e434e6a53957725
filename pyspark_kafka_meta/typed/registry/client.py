"""`RegistryClient`: the requests of Confluent's schema registry API, which Apicurio and Karapace offer too."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote

from pyspark_kafka_meta.client_facts import LookupReason, SchemaLookup
from pyspark_kafka_meta.errors import KafkaMetaError, SchemaRegistryError, ValueSchemaError
from pyspark_kafka_meta.model import shortened
from pyspark_kafka_meta.options import RegistryOptions
from pyspark_kafka_meta.typed.formats import Schema, SchemaText, formats
from pyspark_kafka_meta.typed.registry.http import Asked, RegistryHttp

T = TypeVar("T")

MAX_REFERENCES = 100
"""More schemas than any schema refers to: their references go round in circles."""
LOOKUPS_AT_ONCE = 20
DEFAULT_KIND = "AVRO"
"""Of a schema for which the API says no `schemaType`."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of the registry; its id never means another schema.

    Attributes:
        schema_id: None if the registry was asked for the GUID.
        kind: its `schemaType`: AVRO, PROTOBUF or JSON.
        guid: the same in all registries; None before Confluent's version 8.0, and in others.
        context: of the id; see `context_of`.
    """

    schema_id: int | None
    kind: str
    schema: SchemaText
    guid: str | None = None
    context: str = ""


def context_of(subject: str | None) -> str:
    """`.staging` of `:.staging:orders-value`: a part of a registry with subjects and ids of its own. Empty for the
    default context."""
    qualified = re.match(r":(\.[^:]*):", subject or "")
    return qualified[1] if qualified else ""


@dataclass(frozen=True, slots=True)
class SubjectVersion:
    """A version of a subject."""

    subject: str
    version: int
    registered: RegisteredSchema


FinalAnswers = dict[tuple[str, str | None], Any]
"""Responses that stay the same, by path and body of their requests."""


class RegistryClient:
    """Sends requests one after the other, but in `each`. Not thread-safe.

    All methods raise SchemaRegistryError, those for a schema, subject or version UnknownSchemaError if there is none,
    and ValueSchemaError if it cannot be used.
    """

    def __init__(
        self,
        options: RegistryOptions,
        report: Callable[[SchemaLookup], None] = lambda _: None,
        answers: FinalAnswers | None = None,
        reason: LookupReason = LookupReason.QUERY_SCHEMA,
    ) -> None:
        """
        Args:
            report: called after each request.
            reason: of the requests that register no schema.
            answers: of earlier clients of this registry, which are not asked for again; takes further ones.
        """
        self._options = options
        self._http = RegistryHttp(options)
        self._report, self._reporting = report, threading.Lock()
        self._answers = answers
        self._reason = reason

    def within(self, timeout_ms: int) -> RegistryClient:
        """This client, with this timeout if its own is longer."""
        options = replace(self._options, timeout_ms=min(timeout_ms, self._options.timeout_ms))
        return RegistryClient(options, self._report, self._answers, self._reason)

    def subjects(self) -> list[str]:
        """The names of all subjects that this user may see."""
        return _list(self._get("/subjects", Asked("for the subjects")), str)

    def schema(self, key: int | str, kind: str | None = None, subject: str | None = None) -> RegisteredSchema:
        """The schema of an id or a GUID, with the schemas that it refers to. Raises ValueSchemaError: it has another
        kind, and what it refers to was not asked for; or it cannot be used.

        Args:
            kind: of `RegisteredSchema`; None for any.
            subject: whose context has the id; None for the default one.
        """
        if isinstance(key, int):
            asked = Asked(f"for schema id {key}", schema_id=key)
            query = "" if subject is None else f"?subject={_quoted(subject)}"
            found = self._registered(f"/schemas/ids/{key}{query}", asked, kind, context_of(subject))[1]
            return replace(found, schema_id=key)
        asked = Asked(f"for schema GUID {key}", schema_guid=key)
        return replace(self._registered(f"/schemas/guids/{key}", asked, kind)[1], guid=key)

    def versions(self, subject: str) -> list[int]:
        """The versions of a subject, in order, without deleted versions."""
        asked = Asked(f"for the versions of subject {shortened(subject)}", subject=subject)
        return sorted(_list(self._get(f"/subjects/{_quoted(subject)}/versions", asked), int))

    def version(self, subject: str, version: int | str) -> SubjectVersion:
        """A version of a subject, a number or "latest"."""
        what = f"for version {version} of subject {shortened(subject)}"
        asked = Asked(what, subject=subject, is_final=isinstance(version, int))
        path = f"/subjects/{_quoted(subject)}/versions/{version}"
        body, registered = self._registered(path, asked, context=context_of(subject))
        return SubjectVersion(subject, _field(body, "version", int), replace(registered, schema_id=_id(body)))

    def each(self, subjects: Sequence[str], look_up: Callable[[str], T]) -> list[T]:
        """What `look_up` returns for each subject. It calls this client in several threads at the same time."""
        with self._http.kept_connections(), ThreadPoolExecutor(LOOKUPS_AT_ONCE) as threads:
            return list(threads.map(look_up, subjects))

    def register(self, subject: str, kind: str, schema: str) -> RegisteredSchema:
        """Register a schema without references as the subject's latest version, if it is none yet. Raises
        SchemaRegistryError: the schema is not compatible with the subject, with the registry's reason."""
        what = f"to register a schema in subject {shortened(subject)}"
        asked = Asked(what, subject=subject, is_final=True, is_registration=True)
        body = self._request("POST", f"/subjects/{_quoted(subject)}/versions", asked, _schema_body(kind, schema))
        return RegisteredSchema(_id(body), kind, SchemaText(schema), _guid(body))

    def registered(self, subject: str, kind: str, schema: str) -> RegisteredSchema:
        """A schema without references that the subject has. Raises UnknownSchemaError: the subject does not have the
        schema."""
        asked = Asked(f"whether subject {shortened(subject)} has the schema", subject=subject, is_final=True)
        body = self._request("POST", f"/subjects/{_quoted(subject)}", asked, _schema_body(kind, schema))
        return RegisteredSchema(_id(body), kind, SchemaText(schema), _guid(body))

    def incompatibilities(self, subject: str, kind: str, schema: str) -> list[str] | None:
        """Why the subject's latest version does not accept a schema, as the registry says; None if it accepts it."""
        asked = Asked(f"whether subject {shortened(subject)} accepts a schema", subject=subject)
        path = f"/compatibility/subjects/{_quoted(subject)}/versions/latest?verbose=true"
        body = self._request("POST", path, asked, _schema_body(kind, schema))
        if _field(body, "is_compatible", bool):
            return None
        return [self._http.harmless(message) for message in _list(body.get("messages") or ["no reason given"], str)]

    def _registered(
        self, path: str, asked: Asked, wanted: str | None = None, context: str = ""
    ) -> tuple[Mapping[str, Any], RegisteredSchema]:
        """The response, and its schema without an id."""
        body = _object(self._get(path, asked))
        kind = str(body.get("schemaType") or DEFAULT_KIND)
        if wanted is not None:
            require_kind(kind, wanted)
        format_ = formats().get(kind.lower(), Schema)
        if format_.registry_form:
            body = self._in_form(path, asked, format_.registry_form)
        references: dict[tuple[str, int], str] = {}
        self._add_references(body, format_, references, context)
        schema = format_.registered(_field(body, "schema", str), [*references.values()])
        return body, RegisteredSchema(None, kind, schema, _guid(body), context)

    def _in_form(self, path: str, asked: Asked, form: str) -> Mapping[str, Any]:
        """A schema in a form of its format. Karapace fails for an id whose schema imports others (its issue 1263), but
        not for the version of a subject that has the id."""
        asked_id = asked._replace(is_500_final=asked.schema_id is not None)
        try:
            return _object(self._get(f"{path}{'&' if '?' in path else '?'}{form}", asked_id))
        except SchemaRegistryError as error:
            if asked.schema_id is None or not str(error.code).startswith("500"):
                raise
            path_of_id, _, query = path.partition("?")
            places = _list(self._get(f"{path_of_id}/versions{'?' if query else ''}{query}", asked), dict)
            if not places:
                raise
        subject, version = _field(places[0], "subject", str), _field(places[0], "version", int)
        return _object(self._get(f"/subjects/{_quoted(subject)}/versions/{version}?{form}", asked))

    def _add_references(
        self, body: Mapping[str, Any], format_: type[Schema], found: dict[tuple[str, int], str], context: str
    ) -> None:
        """Add the schemas that a schema of this context refers to, each after those that it refers to itself."""
        for reference in _list(body.get("references") or [], dict):
            subject, version = _field(reference, "subject", str), _field(reference, "version", int)
            if context and not context_of(subject):
                subject = f":{context}:{subject}"
            if (subject, version) in found:
                continue
            if len(found) >= MAX_REFERENCES:
                raise ValueSchemaError(f"its schema refers to more than {MAX_REFERENCES} others: see {subject}")
            found[subject, version] = ""  # a schema that refers to itself ends here
            what = f"for version {version} of subject {shortened(subject)}"
            asked = Asked(what, subject=subject, is_final=True)
            form = f"&{format_.registry_form}" if format_.registry_form else ""
            path = f"/subjects/{_quoted(subject)}/versions/{version}?deleted=true{form}"
            referred = _object(self._get(path, asked))
            self._add_references(referred, format_, found, context)
            del found[subject, version]
            found[subject, version] = format_.referred(_field(referred, "schema", str), reference.get("name"))

    def _get(self, path: str, asked: Asked) -> Any:
        return self._request("GET", path, asked)

    def _request(self, method: str, path: str, asked: Asked, body: Mapping[str, Any] | None = None) -> Any:
        if self._answers is None or not asked.is_final:
            return self._reported(method, path, asked, body)
        key = path, None if body is None else json.dumps(body)
        if key in self._answers:
            return self._answers[key]
        content = self._reported(method, path, asked, body)
        if _found_id(content) is not None:
            self._answers[key] = content
        return content

    def _reported(self, method: str, path: str, asked: Asked, body: Mapping[str, Any] | None) -> Any:
        started = time.monotonic()
        content = error = None
        try:
            content = self._http.send(method, path, asked, body)
            return content
        except KafkaMetaError as failed:
            error = str(failed)
            raise
        finally:
            latency_ms = (time.monotonic() - started) * 1000
            schema_id = _found_id(content) if asked.schema_id is None else asked.schema_id
            reason = LookupReason.REGISTRATION if asked.is_registration else self._reason
            with self._reporting:
                self._report(SchemaLookup(reason, latency_ms, error, schema_id, asked.schema_guid, asked.subject))


def require_kind(kind: str, wanted: str) -> None:
    """Raises ValueSchemaError if the kind of a schema is another one."""
    if kind != wanted:
        raise ValueSchemaError(f"its schema is {kind}, not {wanted}")


def _schema_body(kind: str, schema: str) -> dict[str, str]:
    return {"schema": schema} if kind == DEFAULT_KIND else {"schema": schema, "schemaType": kind}


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _object(content: Any) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise SchemaRegistryError("the schema registry responded with JSON of another form than Confluent's API")
    return content


def _field(content: Any, name: str, kind: type) -> Any:
    value = _object(content).get(name)
    if type(value) is not kind:
        raise SchemaRegistryError(
            f"the schema registry responded without a valid '{name}': check that 'schema.registry.url' is of a "
            "registry with Confluent's API"
        )
    return value


def _id(content: Any) -> int:
    schema_id: int = _field(content, "id", int)
    return schema_id


def _found_id(content: Any) -> int | None:
    schema_id = content.get("id") if isinstance(content, dict) else None
    return schema_id if type(schema_id) is int else None


def _guid(content: Mapping[str, Any]) -> str | None:
    guid = content.get("guid")
    return guid if isinstance(guid, str) else None


def _list(content: Any, kind: type) -> list[Any]:
    if not isinstance(content, list) or not all(type(value) is kind for value in content):
        raise SchemaRegistryError("the schema registry responded with JSON of another form than Confluent's API")
    return content
