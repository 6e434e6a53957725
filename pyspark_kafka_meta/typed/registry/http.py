"""`RegistryHttp`: requests to a schema registry over the standard library, with retries. An error is one sentence that
names the registry's URL and what was asked, never a login.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import sleep
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

from pyspark_kafka_meta.errors import (
    AuthenticationError,
    ConnectError,
    OptionError,
    SchemaRegistryError,
    UnknownSchemaError,
)
from pyspark_kafka_meta.kafka.network.security.oauth_tokens import bearer_token, forget_token
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
MAX_ID = 2**31 - 1
"""A higher one, of a frame of 8 bytes, is no id in the paths of some registries."""
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"

_asked_last: dict[tuple[str, ...], int] = {}
"""The URL of a registry that was asked last in this process, by all its URLs: tasks and micro-batches have clients of
their own, and should not wait again for a URL that does not respond. Forgotten if the URL refuses a request: nothing
else would lead away from one that is not of the registry."""

_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_UNKNOWN = frozenset({40401, 40402, 40403})
"""No such subject, version or schema."""


class Asked(NamedTuple):
    """What a request is for.

    Attributes:
        what: after "asked" in errors.
        is_final: whether a schema in the response stays the same.
        is_500_final: whether a status of 500 will not pass.
    """

    what: str
    schema_id: int | None = None
    schema_guid: str | None = None
    subject: str | None = None
    is_final: bool = False
    is_registration: bool = False
    is_500_final: bool = False


class _Request(NamedTuple):
    """`body` is sent as JSON; None for no body."""

    method: str
    path: str
    asked: Asked
    body: Mapping[str, Any] | None


class _TryAgain(Exception):  # noqa: N818
    """An attempt failed in a way that may pass, or may not be the way of another URL.

    Attributes:
        is_timeout: the last attempt has little time, so its timeout says less than an earlier error.
        is_final: for this URL.
        after_s: at least so long the registry wants to be left alone.
    """

    def __init__(
        self, error: SchemaRegistryError, *, is_timeout: bool = False, is_final: bool = False, after_s: float = 0.0
    ) -> None:
        super().__init__(error)
        self.error = error
        self.is_timeout = is_timeout
        self.is_final = is_final
        self.after_s = after_s


class _Response(NamedTuple):
    """`after_s` is of Retry-After; else 0."""

    status: int
    data: bytes
    after_s: float


class RegistryHttp:
    """Sends requests, each over a connection of its own, but inside `kept_connections`. Thread-safe."""

    def __init__(self, options: RegistryOptions) -> None:
        assert options.urls is not None
        self._options = options
        self._urls = options.urls
        self._kept: dict[tuple[str, str], list[http.client.HTTPConnection]] | None = None
        self._headers = _headers(options)
        names = ("user_info", "bearer_token", "token_client_secret")
        given = {name: getattr(options, name) for name in names}
        self._secrets = {name: secret.reveal() for name, secret in given.items() if secret is not None}
        self._oauth = options.oauth

    @contextmanager
    def kept_connections(self) -> Iterator[None]:
        """Inside, requests share connections, each of which is in use by one thread at a time."""
        kept = self._kept = {}
        try:
            yield
        finally:
            self._kept = None
            for connections in kept.values():
                for connection in connections:
                    connection.close()

    def send(self, method: str, path: str, asked: Asked, body: Mapping[str, Any] | None) -> Any:
        """The content of the response. The request and its retries share the timeout of the options.

        Raises:
            UnknownSchemaError: the registry has no such subject, version or schema.
            SchemaRegistryError: it refused the request, or did not respond in time.
        """
        request, deadline = _Request(method, path, asked, body), time.monotonic() + self._options.timeout_ms / 1000
        first, failures = _asked_last.get(self._urls, 0), 0
        error: SchemaRegistryError | None = None
        given_up: set[int] = set()
        while True:
            untried, now = len(self._urls) - failures % len(self._urls), time.monotonic()
            index = _asked_last[self._urls] = (first + failures) % len(self._urls)
            try:
                share_s = min((deadline - now) / untried, ATTEMPT_TIMEOUT_S)
                return self._attempt(self._urls[index], request, now + share_s)
            except UnknownSchemaError:
                raise
            except SchemaRegistryError:
                _asked_last.pop(self._urls, None)
                raise
            except _TryAgain as failed:
                error = error if error is not None and failed.is_timeout else failed.error
                if failed.is_final:
                    given_up.add(index)
                if len(given_up) == len(self._urls):
                    _asked_last.pop(self._urls, None)
                    raise error from None
                rounds, position = divmod(failures, len(self._urls))
                failures += 1
                pause_s = 0.0
                if position == len(self._urls) - 1:
                    pause_s = min(BACKOFF_S * 2**rounds, BACKOFF_MAX_S) * random.uniform(0.5, 1)
                    pause_s = max(pause_s, failed.after_s)
                if time.monotonic() + pause_s >= deadline:
                    raise error from None
            sleep(pause_s)

    def _attempt(self, url: str, request: _Request, deadline: float) -> Any:
        """The body of the response. If the registry refuses a token, which may have expired, another is tried once."""
        token = self._token(deadline)
        response = self._response(url, request, deadline, token)
        if response.status == 401 and self._oauth is not None and token is not None:
            forget_token(self._oauth, token)
            response = self._response(url, request, deadline, self._token(deadline))
        return self._content(url, request.asked, response)

    def _token(self, deadline: float) -> str | None:
        if self._oauth is None:
            return None
        try:
            token = bearer_token(self._oauth, "", deadline)
        except ConnectError as error:
            raise _TryAgain(SchemaRegistryError(f"no token for the schema registry: {error}")) from None
        except AuthenticationError as error:
            raise SchemaRegistryError(f"no token for the schema registry: {_with_own_names(error)}") from None
        except OptionError as error:
            raise OptionError(_with_own_names(error)) from None
        self._secrets["token"] = token
        return token

    def _response(self, url: str, request: _Request, deadline: float, token: str | None) -> _Response:
        headers = self._headers if token is None else {**self._headers, "Authorization": f"Bearer {token}"}
        try:
            return within(deadline, lambda: self._exchange(url, request, headers, deadline))
        except OptionError as error:
            raise OptionError(_with_own_names(error)) from None
        except (OSError, UnicodeError, ConnectError, http.client.HTTPException) as error:
            text = self._trouble(url, request.asked, error)
            is_timeout, is_final = isinstance(error, TimeoutError), isinstance(error, ssl.SSLError)
            raise _TryAgain(SchemaRegistryError(text), is_timeout=is_timeout, is_final=is_final) from None

    def _trouble(self, url: str, asked: Asked, error: Exception) -> str:
        """Why there is no response."""
        match error:
            case TimeoutError():
                return (
                    f"the schema registry at {url} did not respond in time when asked {asked.what}: see its load, or "
                    "raise 'schema.registry.timeout.ms'"
                )
            case ssl.SSLCertVerificationError():
                return (
                    f"the certificate of the schema registry at {url} was refused ({error.verify_message}): correct "
                    "the schema.registry.ssl.truststore options, or the certificate"
                )
            case ssl.SSLError():
                reason = (error.reason or "no reason given").replace("_", " ").lower()
                return (
                    f"no TLS connection to the schema registry at {url} ({reason}): check the URL, and the client "
                    "certificate in schema.registry.ssl.keystore options"
                )
            case http.client.HTTPException() if not isinstance(error, OSError):
                return f"the schema registry at {url} did not respond with HTTP when asked {asked.what}: check the URL"
        # UnicodeError: not a host name
        proxy = "" if self._options.proxy_host is None else f" through the proxy {self._options.proxy_host}"
        cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return (
            f"cannot reach the schema registry at {url}{proxy}: {cause}; check the URL, firewalls on the way, "
            "and that the registry is up"
        )

    def _exchange(self, url: str, request: _Request, headers: Mapping[str, str], deadline: float) -> _Response:
        parts = urlsplit(f"{url}{request.path}")
        kept = [] if self._kept is None else self._kept.setdefault((parts.scheme, parts.netloc), [])
        try:
            connection = kept.pop()
        except IndexError:
            connection = self._connection(parts, remaining_s(deadline))
        is_proxied = self._options.proxy_host is not None and parts.scheme == "http"
        target = urlunsplit(parts if is_proxied else parts._replace(scheme="", netloc=""))
        try:
            data = None if request.body is None else json.dumps(request.body).encode()
            if connection.sock is not None:  # it was kept
                connection.sock.settimeout(remaining_s(deadline))
            connection.request(request.method, target, data, headers)
            response = connection.getresponse()
            content = response.read(MAX_RESPONSE_BYTES + 1)
            if response.length and len(content) <= MAX_RESPONSE_BYTES:
                raise http.client.IncompleteRead(content, response.length)  # as read() without a limit does
        except BaseException:
            connection.close()
            raise
        if self._kept is None or not response.isclosed():
            connection.close()
        else:
            kept.append(connection)
        return _Response(response.status, content, _seconds(response.getheader("Retry-After")))

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

    def _content(self, url: str, asked: Asked, response: _Response) -> Any:
        """What the response means."""
        status, data, after_s = response
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
            raise _TryAgain(error, is_final=asked.is_500_final and status == 500, after_s=after_s)
        raise error

    def _error(self, url: str, asked: Asked, status: int, content: Mapping[str, Any]) -> SchemaRegistryError:
        code = content.get("error_code")
        code = code if type(code) is int else status
        message = self.harmless(str(content.get("message") or http.client.responses.get(status, "no reason given")))
        at, is_404 = f"the schema registry at {url}", status == 404
        verb = "failed" if status >= 500 else "refused the request"
        rules: tuple[tuple[bool, type[SchemaRegistryError], str], ...] = (
            (
                status == 401,
                SchemaRegistryError,
                f"{at} refused the login (401): set or correct 'schema.registry.basic.auth.user.info' or the "
                "schema.registry.bearer.auth options",
            ),
            (
                status == 403,
                SchemaRegistryError,
                f"{at} did not allow this user (403) when asked {asked.what}: allow it there, or use another login",
            ),
            (
                code in _UNKNOWN,
                UnknownSchemaError,
                f"{at} was asked {asked.what} and does not have it ({code}: {message})",
            ),
            (
                is_404 and asked.schema_guid is not None,
                UnknownSchemaError,
                f"{at} was asked {asked.what} and has no GUIDs (404), as Confluent's has from version 8.0 on",
            ),
            (
                is_404 and asked.schema_id is not None and asked.schema_id > MAX_ID,
                UnknownSchemaError,
                f"{at} has no schema id as high as {asked.schema_id}",
            ),
            (
                is_404,
                SchemaRegistryError,
                f"{url} is not the URL of a schema registry with Confluent's API (404): correct "
                "'schema.registry.url'; Apicurio's ends with /apis/ccompat/v7",
            ),
            (
                300 <= status < 400,
                SchemaRegistryError,
                f"{url} redirects to another address ({status}), which a login must not follow: set "
                "'schema.registry.url' to that address",
            ),
            (True, SchemaRegistryError, f"{at} {verb} when asked {asked.what} ({code}: {message})"),
        )
        return next(kind(text, code) for holds, kind, text in rules if holds)

    def harmless(self, message: str) -> str:
        """A text of the registry for an error: of one line, and without the login."""
        for secret in self._secrets.values():
            password = secret.partition(":")[2] or secret
            for form in (secret, password, base64.b64encode(secret.encode()).decode()):
                message = message.replace(form, HIDDEN)
        return shortened("".join(character if character.isprintable() else " " for character in message))


def _headers(options: RegistryOptions) -> dict[str, str]:
    headers = {"Accept": f"{CONTENT_TYPE}, application/json", "Content-Type": CONTENT_TYPE}
    clouds = {"target-sr-cluster": options.logical_cluster, "Confluent-Identity-Pool-Id": options.identity_pool_id}
    headers |= {name: value for name, value in clouds.items() if value is not None}
    if options.user_info is not None:
        login = base64.b64encode(options.user_info.reveal().encode()).decode()
        return {**headers, "Authorization": f"Basic {login}"}
    if options.bearer_token is not None:
        return {**headers, "Authorization": f"Bearer {options.bearer_token.reveal()}"}
    return headers


def _seconds(retry_after: str | None) -> float:
    """Registries say seconds; dates are not read."""
    return float(retry_after) if retry_after is not None and re.fullmatch("[0-9]{1,9}", retry_after) else 0.0


def _with_own_names(error: Exception) -> str:
    """The text of an error that names options of brokers."""
    text = str(error).replace("kafka.https.ca.location", "schema.registry.ssl.truststore.location")
    return text.replace("kafka.ssl.", "schema.registry.ssl.")
