"""`RegistryClient`: the requests of Confluent's schema registry API, over the standard library.

Apicurio and Karapace offer the same API. Each request has a deadline that its retries share, and each error is one
sentence that names the registry's URL and what was asked, never a login.
"""

from __future__ import annotations

import base64
import copy
import http.client
import json
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

from pyspark_kafka_meta.errors import (
    ConnectError,
    KafkaMetaError,
    OptionError,
    SchemaRegistryError,
    UnknownSchemaError,
)
from pyspark_kafka_meta.formats.value_formats import SchemaText
from pyspark_kafka_meta.kafka.network.security.tls import tls_context
from pyspark_kafka_meta.kafka.network.sockets import remaining_s, within
from pyspark_kafka_meta.model import shortened
from pyspark_kafka_meta.options import HIDDEN, RegistryOptions

ATTEMPT_TIMEOUT_S = 10.0
"""A registry that takes longer for one attempt, or than its share of the time left for all URLs, is asked again, or the
next URL."""
BACKOFF_S, BACKOFF_MAX_S = 0.2, 5.0
"""The wait before a retry doubles each time, with jitter of a half."""
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
MAX_REFERENCES = 100
"""More schemas than any schema refers to: their references go round in circles."""
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
AVRO, PROTOBUF = "AVRO", "PROTOBUF"
DESCRIPTOR_START = "\n"
"""Of a serialized FileDescriptorProto, whose first field is the name; never of Base64."""

_asked_last: dict[tuple[str, ...], int] = {}
"""The URL of a registry that was asked last in this process, by all its URLs: tasks and micro-batches have clients of
their own, and should not wait again for a URL that does not respond."""

_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_UNKNOWN = frozenset({40401, 40402, 40403})
"""No such subject, version or schema."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of the registry; its id never means another schema.

    Attributes:
        schema_id: None if the registry was asked for the GUID.
        kind: AVRO, PROTOBUF or JSON.
        schema: of Protobuf a FileDescriptorSet.
        guid: the same in all registries; None before Confluent's version 8.0, and in others.
    """

    schema_id: int | None
    kind: str
    schema: SchemaText
    guid: str | None = None


@dataclass(frozen=True, slots=True)
class SubjectVersion:
    """A version of a subject."""

    subject: str
    version: int
    registered: RegisteredSchema


@dataclass(frozen=True, slots=True)
class RegistryLookup:
    """A request of a client, with its retries.

    Attributes:
        schema_id: what was asked for, or found in the subject; else None.
        schema_guid, subject: what was asked for, else None.
        latency_ms: until the response, or until the client gave up.
        error: None if there was none.
        is_registration: whether it was to register a schema.
    """

    schema_id: int | None
    schema_guid: str | None
    subject: str | None
    latency_ms: float
    error: str | None
    is_registration: bool = False


FinalAnswers = dict[tuple[str, str | None], Any]
"""Responses that stay the same, by path and body of their requests."""


class _Asked(NamedTuple):
    """What a request is for.

    Attributes:
        what: after "asked" in errors.
        is_final: whether a schema in the response stays the same.
    """

    what: str
    schema_id: int | None = None
    schema_guid: str | None = None
    subject: str | None = None
    is_final: bool = False
    is_registration: bool = False


class _TryAgain(Exception):  # noqa: N818
    """An attempt failed in a way that may pass.

    Attributes:
        is_timeout: the last attempt has little time, so its timeout says less than an earlier error.
    """

    def __init__(self, error: SchemaRegistryError, is_timeout: bool = False) -> None:
        super().__init__(error)
        self.error = error
        self.is_timeout = is_timeout


def _ignore(lookup: RegistryLookup) -> None:
    """Report to nobody."""


class RegistryClient:
    """Sends requests one after the other, each over a connection of its own. Not thread-safe.

    All methods raise SchemaRegistryError, those for a schema, subject or version UnknownSchemaError if there is none.
    """

    def __init__(
        self,
        options: RegistryOptions,
        report: Callable[[RegistryLookup], None] = _ignore,
        answers: FinalAnswers | None = None,
    ) -> None:
        """
        Args:
            report: called after each request.
            answers: of earlier clients of this registry, which are not asked for again; takes further ones.
        """
        assert options.urls is not None
        self._options = options
        self._report = report
        self._answers = answers
        self._urls = options.urls
        self._headers = _headers(options)
        self._secrets = [secret.reveal() for secret in (options.user_info, options.bearer_token) if secret is not None]

    def within(self, timeout_ms: int) -> RegistryClient:
        """This client, with this timeout if its own is longer."""
        client = copy.copy(self)
        client._options = replace(self._options, timeout_ms=min(timeout_ms, self._options.timeout_ms))
        return client

    def subjects(self) -> list[str]:
        """The names of all subjects that this user may see."""
        return _list(self._get("/subjects", _Asked("for the subjects")), str)

    def schema(self, key: int | str) -> RegisteredSchema:
        """The schema of an id or a GUID, with the schemas that it refers to."""
        if isinstance(key, int):
            asked = _Asked(f"for schema id {key}", schema_id=key)
            return replace(self._registered(f"/schemas/ids/{key}", asked)[1], schema_id=key)
        asked = _Asked(f"for schema GUID {key}", schema_guid=key)
        return replace(self._registered(f"/schemas/guids/{key}", asked)[1], guid=key)

    def versions(self, subject: str) -> list[int]:
        """The versions of a subject, in order, without deleted versions."""
        asked = _Asked(f"for the versions of subject {shortened(subject)}", subject=subject)
        return sorted(_list(self._get(f"/subjects/{_quoted(subject)}/versions", asked), int))

    def version(self, subject: str, version: int | str) -> SubjectVersion:
        """A version of a subject, a number or "latest"."""
        what = f"for version {version} of subject {shortened(subject)}"
        asked = _Asked(what, subject=subject, is_final=isinstance(version, int))
        body, registered = self._registered(f"/subjects/{_quoted(subject)}/versions/{version}", asked)
        return SubjectVersion(subject, _field(body, "version", int), replace(registered, schema_id=_id(body)))

    def register(self, subject: str, kind: str, schema: str) -> RegisteredSchema:
        """Register a schema without references as the subject's latest version, if it is none yet.

        Raises:
            SchemaRegistryError: the schema is not compatible with the subject, with the registry's reason.
        """
        what = f"to register a schema in subject {shortened(subject)}"
        asked = _Asked(what, subject=subject, is_final=True, is_registration=True)
        body = self._request("POST", f"/subjects/{_quoted(subject)}/versions", asked, _schema_body(kind, schema))
        return RegisteredSchema(_id(body), kind, SchemaText(schema), _guid(body))

    def registered(self, subject: str, kind: str, schema: str) -> RegisteredSchema:
        """A schema without references that the subject has.

        Raises:
            UnknownSchemaError: the subject does not have the schema.
        """
        asked = _Asked(f"whether subject {shortened(subject)} has the schema", subject=subject, is_final=True)
        body = self._request("POST", f"/subjects/{_quoted(subject)}", asked, _schema_body(kind, schema))
        return RegisteredSchema(_id(body), kind, SchemaText(schema), _guid(body))

    def incompatibilities(self, subject: str, kind: str, schema: str) -> list[str] | None:
        """Why the subject's latest version does not accept a schema, as the registry says; None if it accepts it."""
        asked = _Asked(f"whether subject {shortened(subject)} accepts a schema", subject=subject)
        path = f"/compatibility/subjects/{_quoted(subject)}/versions/latest?verbose=true"
        body = self._request("POST", path, asked, _schema_body(kind, schema))
        if _field(body, "is_compatible", bool):
            return None
        return [self._harmless(message) for message in _list(body.get("messages") or ["no reason given"], str)]

    def _registered(self, path: str, asked: _Asked) -> tuple[Mapping[str, Any], RegisteredSchema]:
        """The response, and its schema without an id."""
        body = _object(self._get(path, asked))
        kind = str(body.get("schemaType") or AVRO)
        if kind == PROTOBUF:
            body = _object(self._get(f"{path}?format=serialized", asked))
        references: dict[tuple[str, int], str] = {}
        self._add_references(body, kind, references)
        schema = SchemaText(_field(body, "schema", str), tuple(references.values()))
        if kind == PROTOBUF:
            schema = SchemaText(_descriptor_set([*schema.references, schema.text]))
        return body, RegisteredSchema(None, kind, schema, _guid(body))

    def _add_references(self, body: Mapping[str, Any], kind: str, found: dict[tuple[str, int], str]) -> None:
        """Add the schemas that a schema refers to, each after those that it refers to itself."""
        for reference in _list(body.get("references") or [], dict):
            subject, version = _field(reference, "subject", str), _field(reference, "version", int)
            if (subject, version) in found:
                continue
            if len(found) >= MAX_REFERENCES:
                raise SchemaRegistryError(f"a schema refers to more than {MAX_REFERENCES} others: see {subject}")
            found[subject, version] = ""  # a schema that refers to itself ends here
            what = f"for version {version} of subject {shortened(subject)}"
            asked = _Asked(what, subject=subject, is_final=True)
            form = "&format=serialized" if kind == PROTOBUF else ""
            path = f"/subjects/{_quoted(subject)}/versions/{version}?deleted=true{form}"
            referred = _object(self._get(path, asked))
            self._add_references(referred, kind, found)
            del found[subject, version]
            found[subject, version] = _field(referred, "schema", str)

    def _get(self, path: str, asked: _Asked) -> Any:
        return self._request("GET", path, asked)

    def _request(self, method: str, path: str, asked: _Asked, body: Mapping[str, Any] | None = None) -> Any:
        if self._answers is None or not asked.is_final:
            return self._reported(method, path, asked, body)
        key = path, None if body is None else json.dumps(body)
        if key in self._answers:
            return self._answers[key]
        content = self._reported(method, path, asked, body)
        if _found_id(content) is not None:
            self._answers[key] = content
        return content

    def _reported(self, method: str, path: str, asked: _Asked, body: Mapping[str, Any] | None) -> Any:
        started = time.monotonic()
        content = error = None
        try:
            content = self._retried(method, path, asked, body, started + self._options.timeout_ms / 1000)
            return content
        except KafkaMetaError as failed:
            error = str(failed)
            raise
        finally:
            latency_ms = round((time.monotonic() - started) * 1000, 3)
            schema_id = _found_id(content) if asked.schema_id is None else asked.schema_id
            lookup = RegistryLookup(
                schema_id, asked.schema_guid, asked.subject, latency_ms, error, asked.is_registration
            )
            self._report(lookup)

    def _retried(self, method: str, path: str, asked: _Asked, body: Mapping[str, Any] | None, deadline: float) -> Any:
        first, failures = _asked_last.get(self._urls, 0), 0
        error: SchemaRegistryError | None = None
        while True:
            untried, now = len(self._urls) - failures % len(self._urls), time.monotonic()
            index = _asked_last[self._urls] = (first + failures) % len(self._urls)
            try:
                share_s = min((deadline - now) / untried, ATTEMPT_TIMEOUT_S)
                return self._attempt(self._urls[index], method, path, asked, body, now + share_s)
            except _TryAgain as failed:
                error = error if error is not None and failed.is_timeout else failed.error
                rounds, position = divmod(failures, len(self._urls))
                failures += 1
                pause_s = 0.0
                if position == len(self._urls) - 1:
                    pause_s = min(BACKOFF_S * 2**rounds, BACKOFF_MAX_S) * random.uniform(0.5, 1)
                if time.monotonic() + pause_s >= deadline:
                    raise error from None
            time.sleep(pause_s)

    def _attempt(
        self, url: str, method: str, path: str, asked: _Asked, body: Mapping[str, Any] | None, deadline: float
    ) -> Any:
        """The body of the response."""
        try:
            status, data = within(deadline, lambda: self._exchange(method, f"{url}{path}", body, deadline))
        except TimeoutError:
            raise _TryAgain(
                SchemaRegistryError(
                    f"the schema registry at {url} did not respond in time when asked {asked.what}: see its load, or "
                    "raise 'schema.registry.timeout.ms'"
                ),
                is_timeout=True,
            ) from None
        except OptionError as error:
            raise OptionError(str(error).replace("kafka.ssl.", "schema.registry.ssl.")) from None
        except ssl.SSLCertVerificationError as error:
            raise SchemaRegistryError(
                f"the certificate of the schema registry at {url} was refused ({error.verify_message}): correct the "
                "schema.registry.ssl.truststore options, or the certificate"
            ) from None
        except ssl.SSLError as error:
            reason = (error.reason or "no reason given").replace("_", " ").lower()
            raise SchemaRegistryError(
                f"no TLS connection to the schema registry at {url} ({reason}): check the URL, and the client "
                "certificate in schema.registry.ssl.keystore options"
            ) from None
        except (OSError, UnicodeError, ConnectError) as error:  # UnicodeError: not a host name
            proxy = "" if self._options.proxy_host is None else f" through the proxy {self._options.proxy_host}"
            raise _TryAgain(
                SchemaRegistryError(
                    f"cannot reach the schema registry at {url}{proxy}: {_cause(error)}; check the URL, firewalls on "
                    "the way, and that the registry is up"
                )
            ) from None
        except http.client.HTTPException:
            raise _TryAgain(
                SchemaRegistryError(
                    f"the schema registry at {url} did not respond with HTTP when asked {asked.what}: check the URL"
                )
            ) from None
        return self._content(url, asked, status, data)

    def _exchange(self, method: str, url: str, body: Mapping[str, Any] | None, deadline: float) -> tuple[int, bytes]:
        parts = urlsplit(url)
        connection = self._connection(parts, remaining_s(deadline))
        is_proxied = self._options.proxy_host is not None and parts.scheme == "http"
        target = url if is_proxied else urlunsplit(parts._replace(scheme="", netloc=""))
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, target, data, self._headers)
            response = connection.getresponse()
            content = response.read(MAX_RESPONSE_BYTES + 1)
            if response.length and len(content) <= MAX_RESPONSE_BYTES:
                raise http.client.IncompleteRead(content, response.length)  # as read() without a limit does
            return response.status, content
        finally:
            connection.close()

    def _connection(self, parts: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
        assert parts.hostname is not None
        default = http.client.HTTP_PORT if parts.scheme == "http" else http.client.HTTPS_PORT
        registry = parts.hostname, parts.port or default  # without a port, the end of an IPv6 address would be taken
        proxy_host = self._options.proxy_host
        host, port = registry if proxy_host is None else (proxy_host, self._options.proxy_port)
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        context = tls_context(self._options.security)
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        if proxy_host is not None:
            connection.set_tunnel(*registry)
        return connection

    def _content(self, url: str, asked: _Asked, status: int, data: bytes) -> Any:
        """What the response means."""
        try:
            content = json.loads(data) if len(data) <= MAX_RESPONSE_BYTES else None
        except (ValueError, RecursionError):
            content = None
        if 200 <= status < 300:
            if content is None:
                raise SchemaRegistryError(
                    f"{url} responded with something else than the JSON of a schema registry when asked {asked.what}: "
                    "check the URL; Apicurio's ends with /apis/ccompat/v7",
                    status,
                )
            return content
        error = self._error(url, asked, status, content if isinstance(content, dict) else {})
        if status in _RETRIED:
            raise _TryAgain(error)
        raise error

    def _error(self, url: str, asked: _Asked, status: int, content: Mapping[str, Any]) -> SchemaRegistryError:
        code = content.get("error_code")
        code = code if type(code) is int else status
        message = self._harmless(str(content.get("message") or http.client.responses.get(status, "no reason given")))
        if status == 401:
            return SchemaRegistryError(
                f"the schema registry at {url} refused the login (401): set or correct "
                "'schema.registry.basic.auth.user.info' or 'schema.registry.bearer.auth.token'",
                code,
            )
        if status == 403:
            return SchemaRegistryError(
                f"the schema registry at {url} did not allow this user (403) when asked {asked.what}: allow it there, "
                "or use another login",
                code,
            )
        if code in _UNKNOWN:
            return UnknownSchemaError(
                f"the schema registry at {url} was asked {asked.what} and does not have it ({code}: {message})", code
            )
        if status == 404 and asked.schema_guid is not None:
            return UnknownSchemaError(
                f"the schema registry at {url} was asked {asked.what} and has no GUIDs (404), as Confluent's has from "
                "version 8.0 on",
                code,
            )
        if status == 404:
            return SchemaRegistryError(
                f"{url} is not the URL of a schema registry with Confluent's API (404): correct 'schema.registry.url'; "
                "Apicurio's ends with /apis/ccompat/v7",
                code,
            )
        if 300 <= status < 400:
            return SchemaRegistryError(
                f"{url} redirects to another address ({status}), which a login must not follow: set "
                "'schema.registry.url' to that address",
                code,
            )
        verb = "failed" if status >= 500 else "refused the request"
        return SchemaRegistryError(
            f"the schema registry at {url} {verb} when asked {asked.what} ({code}: {message})", code
        )

    def _harmless(self, message: str) -> str:
        """A text of the registry for an error: of one line, and without the login."""
        for secret in self._secrets:
            password = secret.partition(":")[2] or secret
            for form in (secret, password, base64.b64encode(secret.encode()).decode()):
                message = message.replace(form, HIDDEN)
        return shortened("".join(character if character.isprintable() else " " for character in message))


def _headers(options: RegistryOptions) -> dict[str, str]:
    headers = {"Accept": f"{CONTENT_TYPE}, application/json", "Content-Type": CONTENT_TYPE}
    if options.user_info is not None:
        login = base64.b64encode(options.user_info.reveal().encode()).decode()
        return {**headers, "Authorization": f"Basic {login}"}
    if options.bearer_token is not None:
        return {**headers, "Authorization": f"Bearer {options.bearer_token.reveal()}"}
    return headers


def _descriptor_set(files: Sequence[str]) -> str:
    """A FileDescriptorSet in Base64, of FileDescriptorProtos in Base64, or as Apicurio sends them: as text."""
    from pyspark_kafka_meta.formats.protobuf_schema import descriptor_set

    try:
        return base64.b64encode(
            descriptor_set(
                [
                    file.encode() if file.startswith(DESCRIPTOR_START) else base64.b64decode(file, validate=True)
                    for file in files
                ]
            )
        ).decode()
    except ValueError:
        raise SchemaRegistryError(
            "the schema registry responded with a Protobuf schema that is no descriptor"
        ) from None


def _schema_body(kind: str, schema: str) -> dict[str, str]:
    return {"schema": schema} if kind == AVRO else {"schema": schema, "schemaType": kind}


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _cause(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


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
    if not isinstance(content, Sequence) or not all(type(value) is kind for value in content):
        raise SchemaRegistryError("the schema registry responded with JSON of another form than Confluent's API")
    return list(content)
