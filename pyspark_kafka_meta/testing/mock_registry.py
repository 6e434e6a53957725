"""`MockRegistry`: a schema registry in this process, for tests of queries, with scripted faults.

It responds over HTTP as Confluent's schema registry, so that all processes of a Spark session on this machine reach it.
Confluent's own `mock://` lives in one process, and a Spark query has several.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

Reference = Mapping[str, Any]
"""Name, subject and version of a schema that another schema refers to, as in the API."""
_ports: set[int] = set()
"""That registries of this process have had. Processes keep the schemas of a registry by its URL, which no later one may
have."""


class _Version(NamedTuple):
    schema_id: int
    kind: str
    schema: str
    references: tuple[Reference, ...]


class _Refusal(Exception):  # noqa: N818
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class MockRegistry:
    """Runs inside `with`, on a free port of this machine.

        with MockRegistry() as registry:
            registry.register("clicks-value", '{"type": "record", "name": "Click", "fields": []}')
            rows = spark.read.format("kafkameta").option("schema.registry.url", registry.url)

    All schemas are compatible, unless `incompatible` says otherwise.

    Attributes:
        requests: method and path of each request, in order.
        login: the value of the header Authorization that requests need; None for no login.
        delay_s: before each response.
        incompatible: why no subject accepts another schema; None if each does.
        has_guids: whether schemas have GUIDs, as in Confluent's registry from version 8.0 on.
    """

    def __init__(self) -> None:
        """Starts no thread."""
        self.requests: list[str] = []
        self.login: str | None = None
        self.delay_s = 0.0
        self.incompatible: str | None = None
        self.has_guids = True
        self._subjects: dict[str, list[_Version]] = {}
        self._scripted: deque[tuple[int, bytes, Mapping[str, str]] | None] = deque()
        self._port = 0
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen, after a `stop` at the same port with the same schemas."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry._respond(self, None)

            def do_POST(self) -> None:
                registry._respond(self, self.rfile.read(int(self.headers["Content-Length"])))

            def log_message(self, *_: object) -> None:
                """Not to stderr."""

        self._server = _listen(self._port, Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: Sequence[Reference] = ()) -> int:
        """The id of the schema, as the subject's next version if it is new there."""
        versions = self._subjects.setdefault(subject, [])
        wanted = (kind, schema, tuple(references))
        known = [version for others in self._subjects.values() for version in others]
        new_id = max((version.schema_id for version in known), default=0) + 1
        schema_id = next((version.schema_id for version in known if version[1:] == wanted), new_id)
        if schema_id not in (version.schema_id for version in versions):
            versions.append(_Version(schema_id, *wanted))
        return schema_id

    def guid(self, schema_id: int) -> str:
        """The GUID of a schema, which serializers may write into a header."""
        return next(
            _guid(version)
            for versions in self._subjects.values()
            for version in versions
            if version.schema_id == schema_id
        )

    def respond(
        self, status: int, body: str = "{}", times: int = 1, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Respond to the next requests with this status, body and further headers."""
        self._scripted.extend([(status, body.encode(), headers)] * times)

    def close_connections(self, times: int = 1) -> None:
        """Close the connections of the next requests without a response."""
        self._scripted.extend([None] * times)

    def _respond(self, handler: BaseHTTPRequestHandler, body: bytes | None) -> None:
        self.requests.append(f"{handler.command} {handler.path}")
        time.sleep(self.delay_s)
        scripted = self._scripted.popleft() if self._scripted else self._answer(handler, body)
        if scripted is None:
            handler.close_connection = True
            return
        status, data, headers = scripted
        with suppress(OSError):  # the client did not wait
            handler.send_response(status)
            handler.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            handler.send_header("Content-Length", str(len(data)))
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(data)

    def _answer(self, handler: BaseHTTPRequestHandler, body: bytes | None) -> tuple[int, bytes, Mapping[str, str]]:
        try:
            if self.login is not None and handler.headers["Authorization"] != self.login:
                raise _Refusal(401, "Unauthorized")
            content = self._route(urlsplit(handler.path).path, None if body is None else json.loads(body))
            return 200, json.dumps(content).encode(), {}
        except _Refusal as refusal:
            message = json.dumps({"error_code": refusal.code, "message": str(refusal)})
            return int(str(refusal.code)[:3]), message.encode(), {}

    def _route(self, path: str, body: Mapping[str, Any] | None) -> Any:
        routes: tuple[tuple[str, bool, Callable[..., Any]], ...] = (
            ("/subjects", False, lambda: sorted(self._subjects)),
            (r"/schemas/ids/(\d+)", False, lambda key: self._found(key, lambda version: str(version.schema_id))),
            (r"/schemas/ids/(\d+)/versions", False, self._places),
            *([("/schemas/guids/([^/]+)", False, lambda key: self._found(key, _guid))] if self.has_guids else []),
            ("/subjects/([^/]+)/versions", False, lambda subject: [*range(1, len(self._versions(subject)) + 1)]),
            ("/subjects/([^/]+)/versions/([^/]+)", False, self._by_version),
            ("/subjects/([^/]+)/versions", True, lambda subject: self._register(subject, body or {})),
            ("/subjects/([^/]+)", True, lambda subject: self._registered(subject, body or {})),
            ("/compatibility/subjects/([^/]+)/versions/latest", True, self._compatibility),
        )
        for pattern, has_body, answer in routes:
            match = re.fullmatch(pattern, path)
            if match is not None and has_body == (body is not None):
                return answer(*map(unquote, match.groups()))
        raise _Refusal(404, "HTTP 404 Not Found")

    def _versions(self, subject: str) -> list[_Version]:
        if subject not in self._subjects:
            raise _Refusal(40401, f"Subject '{subject}' not found.")
        return self._subjects[subject]

    def _found(self, wanted: str, key: Callable[[_Version], str]) -> dict[str, Any]:
        for versions in self._subjects.values():
            for version in versions:
                if key(version) == wanted:
                    return self._content(version)
        raise _Refusal(40403, f"Schema {wanted} not found")

    def _places(self, schema_id: str) -> list[dict[str, Any]]:
        return [
            {"subject": subject, "version": number}
            for subject, versions in self._subjects.items()
            for number, version in enumerate(versions, 1)
            if str(version.schema_id) == schema_id
        ]

    def _by_version(self, subject: str, version: str) -> dict[str, Any]:
        versions = self._versions(subject)
        number = len(versions) if version == "latest" else int(version)
        if not 1 <= number <= len(versions):
            raise _Refusal(40402, f"Version {version} not found.")
        found = versions[number - 1]
        return {"subject": subject, "version": number, "id": found.schema_id, **self._content(found)}

    def _register(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.incompatible is not None and subject in self._subjects:
            raise _Refusal(409, f"Schema being registered is incompatible with an earlier schema: {self.incompatible}")
        schema_id = self.register(subject, *_posted(body))
        return {"id": schema_id, **({"guid": self.guid(schema_id)} if self.has_guids else {})}

    def _registered(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        for number, version in enumerate(self._versions(subject), 1):
            if (version.schema, version.kind, list(version.references)) == _posted(body):
                return {"subject": subject, "version": number, "id": version.schema_id, **self._content(version)}
        raise _Refusal(40403, "Schema not found")

    def _compatibility(self, subject: str) -> dict[str, Any]:
        self._versions(subject)
        if self.incompatible is None:
            return {"is_compatible": True}
        return {"is_compatible": False, "messages": [self.incompatible]}

    def _content(self, version: _Version) -> dict[str, Any]:
        guid = {"guid": _guid(version)} if self.has_guids else {}
        kind = {} if version.kind == "AVRO" else {"schemaType": version.kind}
        references = {"references": list(version.references)} if version.references else {}
        return {**guid, **kind, "schema": version.schema, **references}


def _posted(body: Mapping[str, Any]) -> tuple[str, str, list[Reference]]:
    """Text, kind and references of a schema that a serializer posts."""
    return body["schema"], body.get("schemaType") or "AVRO", body.get("references") or []


def _listen(port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """Listens at a port, or for 0 at a free one that no registry of this process has had."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    if port == 0 and server.server_port in _ports:
        server.server_close()
        return _listen(0, handler)
    _ports.add(server.server_port)
    return server


def _guid(version: _Version) -> str:
    """From what the schema is, as in Confluent's registry, so that it is the same in all registries."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(version[1:])))
