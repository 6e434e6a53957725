"""`RegistryClient` against a registry in this process, which fails as scripted."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

import pytest

from pyspark_kafka_meta.client_facts import SchemaLookup
from pyspark_kafka_meta.errors import OptionError, SchemaRegistryError, UnknownSchemaError, ValueSchemaError
from pyspark_kafka_meta.options import RegistryOptions, Secret
from pyspark_kafka_meta.testing.mock_registry import MockRegistry
from pyspark_kafka_meta.typed.formats import SchemaText
from pyspark_kafka_meta.typed.registry import http as registry_http
from pyspark_kafka_meta.typed.registry.client import LOOKUPS_AT_ONCE, RegisteredSchema, RegistryClient
from pyspark_kafka_meta.typed.registry.http import MAX_ID, Asked, RegistryHttp
from tests.wire.token_endpoint import token_endpoint

PASSWORD = "kept-secret"
UNKNOWN_GUID = "00000000-0000-4000-8000-000000000007"


def options(*urls: str, **others: object) -> RegistryOptions:
    given = {**dict.fromkeys(RegistryOptions.__slots__), "timeout_ms": 20_000, **others}
    return RegistryOptions(**{**given, "urls": urls})  # type: ignore[arg-type]


def client(registry: MockRegistry, **others: object) -> RegistryClient:
    return RegistryClient(options(registry.url, **others))


def test_a_schema_comes_with_the_schemas_that_it_refers_to_in_order(registry: MockRegistry) -> None:
    registry.register("a", '"a"')
    registry.register("b", '"b"', references=[{"name": "a", "subject": "a", "version": 1}])
    to_both = [{"name": name, "subject": name, "version": 1} for name in ("b", "a")]
    schema_id = registry.register("t-value", '"c"', references=to_both)

    expected = RegisteredSchema(schema_id, "AVRO", SchemaText('"c"', ('"a"', '"b"')), registry.guid(schema_id))
    assert client(registry).schema(schema_id) == expected
    assert client(registry).version("t-value", "latest").registered == expected


def test_references_of_a_schema_are_of_its_context(registry: MockRegistry) -> None:
    registry.register(":.x:a", '"a"')
    references = [{"name": name, "subject": name, "version": 1} for name in ("a", ":.y:b")]
    registry.register(":.y:b", '"b"')
    registry.register(":.x:t", '"c"', references=references)

    for schema in (client(registry).version(":.x:t", 1).registered, client(registry).schema(3, subject=":.x:t")):
        assert (schema.context, schema.schema.references) == (".x", ('"a"', '"b"'))


def test_json_schemas_are_found_by_the_name_of_the_reference(registry: MockRegistry) -> None:
    registry.register("address", '{"type": "object"}', "JSON")
    references = [{"name": "address.json", "subject": "address", "version": 1}]
    registry.register("t", '{"$ref": "address.json"}', "JSON", references)

    schema = client(registry).version("t", 1).registered.schema
    assert schema.references == ('{"type": "object", "$id": "address.json"}',)


def test_references_that_go_round_in_circles_end(registry: MockRegistry) -> None:
    registry.register("a", '"a"', references=[{"name": "b", "subject": "b", "version": 1}])
    registry.register("b", '"b"', references=[{"name": "a", "subject": "a", "version": 1}])

    assert set(client(registry).schema(1).schema.references) == {'"a"', '"b"'}


def test_versions_of_a_subject(registry: MockRegistry) -> None:
    registry.register("t/1-value", '"int"')
    registry.register("t/1-value", '"long"')

    assert client(registry).versions("t/1-value") == [1, 2]
    assert client(registry).version("t/1-value", "latest").version == 2
    assert client(registry).version("t/1-value", 1).registered.schema.text == '"int"'
    assert client(registry).subjects() == ["t/1-value"]


def test_subjects_are_looked_up_at_the_same_time(registry: MockRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 topics after each other took 17 s at 50 ms."""
    monkeypatch.setattr(BaseHTTPRequestHandler, "protocol_version", "HTTP/1.1")
    opened: list[object] = []
    connect = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda *given: (opened.append(given), connect(*given))[1])
    subjects = [f"t{number}-value" for number in range(100)]
    for subject in subjects:
        registry.register(subject, f'"{subject}"')
    everyone = threading.Barrier(LOOKUPS_AT_ONCE)
    respond = registry._respond
    first = iter(range(LOOKUPS_AT_ONCE))

    def together(*given: Any) -> None:
        if next(first, None) is not None:
            everyone.wait(20)
        respond(*given)

    monkeypatch.setattr(registry, "_respond", together)
    found = (asks := client(registry)).each(subjects, lambda subject: asks.version(subject, "latest"))

    assert [version.subject for version in found] == subjects
    assert [version.registered.schema.text for version in found] == [f'"{subject}"' for subject in subjects]
    assert len(opened) == LOOKUPS_AT_ONCE


@pytest.mark.usefixtures("quick_pauses")
def test_connection_that_was_closed_is_opened_again(registry: MockRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseHTTPRequestHandler, "protocol_version", "HTTP/1.1")
    registry.register("t-value", '"int"')
    http = RegistryHttp(options(registry.url))
    with http.kept_connections():
        for _ in range(2):
            assert http.send("GET", "/subjects/t-value/versions/1", Asked("for a version"), None)["version"] == 1
            registry.close_connections()


def test_one_subject_that_is_missing_is_named(registry: MockRegistry) -> None:
    registry.register("a", '"int"')
    with pytest.raises(UnknownSchemaError, match="version latest of subject b"):
        (asks := client(registry)).each(["a", "b", "a"], lambda subject: asks.version(subject, "latest"))


def test_a_schema_is_found_by_its_guid(registry: MockRegistry) -> None:
    registry.register("a", '"a"')
    schema_id = registry.register("t-value", '"b"', references=[{"name": "a", "subject": "a", "version": 1}])
    guid = registry.guid(schema_id)
    lookups: list[SchemaLookup] = []

    found = RegistryClient(options(registry.url), lookups.append).schema(guid)

    assert found == RegisteredSchema(None, "AVRO", SchemaText('"b"', ('"a"',)), guid)
    assert (lookups[0].schema_id, lookups[0].schema_guid, lookups[0].error) == (None, guid, None)
    with pytest.raises(UnknownSchemaError, match=f"was asked for schema GUID {UNKNOWN_GUID} and does not have it"):
        client(registry).schema(UNKNOWN_GUID)


def test_a_registry_without_guids_does_not_have_a_schema(registry: MockRegistry) -> None:
    """As Apicurio."""
    registry.has_guids = False
    assert client(registry).register("t-value", "AVRO", '"int"').guid is None

    with pytest.raises(UnknownSchemaError, match=r"has no GUIDs \(404\), as Confluent's has from version 8\.0 on"):
        client(registry).schema(UNKNOWN_GUID)


def test_protobuf_comes_as_descriptors(registry: MockRegistry) -> None:
    registry.register("t-value", "CgA=", kind="PROTOBUF")

    assert client(registry).schema(1).kind == "PROTOBUF"
    assert registry.requests[-1] == "GET /schemas/ids/1?format=serialized"


@pytest.mark.parametrize(
    ("descriptor", "problem"),
    [("\n\N{REPLACEMENT CHARACTER}\1shop.proto", "damaged the descriptor"), ("no Base64", "is no descriptor")],
)
def test_descriptor_that_is_none_is_an_unusable_schema(registry: MockRegistry, descriptor: str, problem: str) -> None:
    registry.register("t-value", descriptor, kind="PROTOBUF")
    with pytest.raises(ValueSchemaError, match=problem):
        client(registry).schema(1)


def test_an_id_that_is_too_high_for_the_registry_is_unknown(registry: MockRegistry) -> None:
    for schema_id in (MAX_ID, MAX_ID + 1):
        registry.respond(404, "")
        with pytest.raises(SchemaRegistryError) as caught:
            client(registry).schema(schema_id)
        assert isinstance(caught.value, UnknownSchemaError) == (schema_id > MAX_ID)


def test_registering_a_schema(registry: MockRegistry) -> None:
    asks = client(registry)

    assert asks.register("t-value", "AVRO", '"int"') == asks.schema(1)
    assert asks.registered("t-value", "AVRO", '"int"') == asks.schema(1)
    assert asks.incompatibilities("t-value", "AVRO", '"string"') is None
    registry.incompatible = "reader type: STRING not compatible with writer type: INT"
    assert asks.incompatibilities("t-value", "AVRO", '"string"') == [registry.incompatible]
    with pytest.raises(SchemaRegistryError, match=r"to register a schema in subject t-value \(409: .*not compatible"):
        asks.register("t-value", "AVRO", '"string"')
    with pytest.raises(UnknownSchemaError):
        asks.registered("t-value", "AVRO", '"string"')


SCRIPTS: list[tuple[str, Callable[[MockRegistry], None], str]] = [
    ("refused login", lambda registry: registry.respond(401), r"refused the login \(401\): set or correct"),
    ("forbidden", lambda registry: registry.respond(403), r"did not allow this user \(403\) when asked for schema id"),
    ("not a registry", lambda registry: registry.respond(404), r"is not the URL of a schema registry"),
    ("garbage", lambda registry: registry.respond(200, "<html>"), r"something else than the JSON"),
    ("other JSON", lambda registry: registry.respond(200, "[1]"), r"JSON of another form"),
    ("references", lambda registry: registry.respond(200, '{"schema": "1", "references": 5}'), r"JSON of another form"),
    ("no schema", lambda registry: registry.respond(200, "{}"), r"without a valid 'schema'"),
    ("failing", lambda registry: registry.respond(500, "{}", 100), r"failed when asked for schema id 7 \(500: "),
    ("overloaded", lambda registry: registry.respond(429, "{}", 100), r"refused the request .*\(429: "),
    ("moved", lambda registry: registry.respond(302), r"redirects to another address \(302\)"),
    ("closing", lambda registry: registry.close_connections(100), r"cannot reach|did not respond with HTTP"),
    ("away", lambda registry: registry.stop(), r"cannot reach the .* registry at .*: Connection refused; check the"),
]


@pytest.mark.usefixtures("quick_pauses")
@pytest.mark.parametrize(("script", "sentence"), [case[1:] for case in SCRIPTS], ids=[case[0] for case in SCRIPTS])
def test_each_fault_is_one_sentence_that_names_the_url(
    registry: MockRegistry, script: Callable[[MockRegistry], None], sentence: str
) -> None:
    script(registry)

    started = time.monotonic()
    with pytest.raises(SchemaRegistryError, match=sentence) as caught:
        client(registry, timeout_ms=5_000, user_info=Secret(f"me:{PASSWORD}")).schema(7)

    assert time.monotonic() - started < 45
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, UnknownSchemaError)


def test_text_is_no_list_of_subjects(registry: MockRegistry) -> None:
    registry.respond(200, '"OK"')
    with pytest.raises(SchemaRegistryError, match="JSON of another form"):
        client(registry).subjects()


def test_a_registry_that_is_slow_is_left_at_the_deadline(registry: MockRegistry) -> None:
    registry.delay_s = 30.0

    started = time.monotonic()
    with pytest.raises(SchemaRegistryError, match="in time when asked for schema id 7: see its load"):
        client(registry, timeout_ms=1_000).schema(7)

    assert time.monotonic() - started < 20


@pytest.mark.parametrize(("code", "status"), [(40401, 404), (40402, 404), (40403, 404)])
def test_what_the_registry_does_not_have_is_an_error_of_its_own(registry: MockRegistry, code: int, status: int) -> None:
    registry.respond(status, f'{{"error_code": {code}, "message": "not found"}}')

    with pytest.raises(UnknownSchemaError) as caught:
        client(registry).schema(7)

    assert caught.value.code == code


@pytest.mark.parametrize(("url", "host"), [("http://h", "h"), ("http://[2001:db8::5]", "2001:db8::5")])
def test_any_host_is_asked(registry: MockRegistry, monkeypatch: pytest.MonkeyPatch, url: str, host: str) -> None:
    asked: list[tuple[str, int]] = []
    connect, served = socket.create_connection, urlsplit(registry.url)

    def connected(address: tuple[str, int], *_: object) -> socket.socket:
        asked.append(address)
        return connect((served.hostname or "", served.port or 0))

    monkeypatch.setattr(socket, "create_connection", connected)

    assert RegistryClient(options(url)).subjects() == []
    assert (asked, registry.requests) == ([(host, 80)], ["GET /subjects"])


def test_a_name_that_no_host_can_have_is_one_sentence() -> None:
    with pytest.raises(SchemaRegistryError, match=r"cannot reach the schema registry at http://a\.\.b"):
        RegistryClient(options("http://a..b", timeout_ms=1)).subjects()


@pytest.mark.usefixtures("quick_pauses")
def test_a_registry_that_is_away_for_a_while_is_asked_again(registry: MockRegistry) -> None:
    registry.register("t-value", '"int"')
    registry.respond(503, times=2)
    registry.close_connections(1)

    assert client(registry, timeout_ms=20_000).schema(1).schema.text == '"int"'
    assert len(registry.requests) == 4


def test_descriptor_without_id_is_the_subjects_version(registry: MockRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Karapace's, for schemas that import others."""
    text = base64.b64encode(b"\x0a\x01a").decode()
    registry.register("o", text + "==", "PROTOBUF")
    schema_id = registry.register("t/x-value", text, "PROTOBUF")
    answer = registry._answer

    def karapaces(handler: BaseHTTPRequestHandler, body: bytes | None) -> object:
        is_serialized = handler.path.startswith("/schemas/") and "serialized" in handler.path
        return (500, b'{"error_code": 50001}', {}) if is_serialized else answer(handler, body)

    monkeypatch.setattr(registry, "_answer", karapaces)
    assert client(registry, timeout_ms=3_000).schema(schema_id).kind == "PROTOBUF"
    assert registry.requests[1:] == [
        f"GET /schemas/ids/{schema_id}?format=serialized",
        f"GET /schemas/ids/{schema_id}/versions",
        "GET /subjects/t%2Fx-value/versions/1?format=serialized",
    ]


class Tokens:
    """A provider whose first token has expired."""

    made = 0

    def token(self) -> str:
        Tokens.made += 1
        return "old" if Tokens.made == 1 else f"new{Tokens.made}"


def test_a_refused_token_is_replaced_once(registry: MockRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokens, "made", 0)
    headers = []
    respond = registry._respond

    def noted(handler: BaseHTTPRequestHandler, body: bytes | None) -> None:
        headers.append({name.lower(): value for name, value in handler.headers.items()})
        respond(handler, body)

    monkeypatch.setattr(registry, "_respond", noted)
    registry.register("t-value", '"int"')
    registry.login = "Bearer new2"
    asked = client(registry, token_provider=f"{__name__}:Tokens", logical_cluster="lsrc-1", identity_pool_id="pool-1")

    assert asked.schema(1).schema.text == '"int"'
    assert [each["authorization"] for each in headers] == ["Bearer old", "Bearer new2"]
    assert (headers[0]["target-sr-cluster"], headers[0]["confluent-identity-pool-id"]) == ("lsrc-1", "pool-1")
    with pytest.raises(SchemaRegistryError, match="refused the login"):
        asked.schema(1)
    assert len(headers) == 4


def test_a_token_endpoint_logs_in_at_the_registry(registry: MockRegistry) -> None:
    registry.register("t-value", '"int"')
    registry.login = "Bearer a.b-c"
    secret = Secret(PASSWORD)
    given = {"token_client_id": "me", "token_client_secret": secret}
    with token_endpoint(200, {"access_token": "a.b-c", "token_type": "Bearer", "expires_in": 60}) as (url, requests):
        asked = client(registry, token_issuer_url=url, **given)
        assert [asked.schema(1).schema.text for _ in range(2)] == ['"int"'] * 2
    assert len(requests) == 1
    with (
        token_endpoint(401, {"error": "invalid_client"}) as (url, _),
        pytest.raises(SchemaRegistryError, match=r"no token for the schema registry: .*invalid_client"),
    ):
        client(registry, token_issuer_url=url, **given).schema(1)


def test_a_registry_is_left_alone_as_long_as_it_wants(registry: MockRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(registry_http, "sleep", pauses.append)
    registry.register("t-value", '"int"')
    for retry_after in ("7", "Fri, 31 Dec 1999 23:59:59 GMT"):
        registry.respond(429, headers={"Retry-After": retry_after})

    assert client(registry).schema(1).schema.text == '"int"'
    assert pauses[0] == 7
    assert pauses[1] < 1
    registry.respond(503, headers={"Retry-After": "30"})
    with pytest.raises(SchemaRegistryError, match="503"):
        client(registry).schema(1)
    assert len(pauses) == 2


def test_error_says_more_than_the_last_timeout(registry: MockRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.respond(500)
    respond = registry._respond

    def respond_and_be_slow_later(handler: BaseHTTPRequestHandler, body: bytes | None) -> None:
        respond(handler, body)
        registry.delay_s = 30.0

    monkeypatch.setattr(registry, "_respond", respond_and_be_slow_later)
    with pytest.raises(SchemaRegistryError, match=r"failed when asked for schema id 7 \(500"):
        client(registry, timeout_ms=1_000).schema(7)


def test_another_url_is_asked_if_one_fails(registry: MockRegistry) -> None:
    registry.register("t-value", '"int"')
    with MockRegistry() as away:
        away.stop()
        asks = RegistryClient(options(away.url, registry.url, timeout_ms=60_000))

        started = time.monotonic()
        assert asks.schema(1).schema.text == '"int"'
        assert time.monotonic() - started < 20


def test_another_url_is_asked_if_one_has_no_tls(registry: MockRegistry) -> None:
    registry.register("t-value", '"int"')
    without_tls = registry.url.replace("http:", "https:")

    assert RegistryClient(options(without_tls, registry.url)).schema(1).schema.text == '"int"'
    with pytest.raises(SchemaRegistryError, match="no TLS connection"):
        RegistryClient(options(without_tls, without_tls + "/")).schema(1)


def test_a_registry_that_hangs_leaves_time_for_the_next_url(registry: MockRegistry) -> None:
    registry.register("t-value", '"int"')
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asks = RegistryClient(options(f"http://127.0.0.1:{silent.getsockname()[1]}", registry.url, timeout_ms=2_000))

        assert asks.schema(1).schema.text == '"int"'


def test_url_that_hangs_is_waited_for_once_in_a_process(registry: MockRegistry) -> None:
    registry.register("t-value", '"int"')
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = f"http://127.0.0.1:{silent.getsockname()[1]}", registry.url
        for _ in range(3):
            assert RegistryClient(options(*urls, timeout_ms=4_000)).schema(1).schema.text == '"int"'

        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_url_that_is_no_registry_is_not_kept_as_the_first(registry: MockRegistry) -> None:
    registry.register("t-value", '"int"')
    with MockRegistry() as other:
        urls = registry.url, f"{other.url}/wrong"
        registry.respond(503)
        with pytest.raises(SchemaRegistryError, match="is not the URL of a schema registry"):
            RegistryClient(options(*urls)).schema(1)

        assert RegistryClient(options(*urls)).schema(1).schema.text == '"int"'


def test_unknown_schema_is_no_reason_to_wait_again_for_a_url_that_hangs(registry: MockRegistry) -> None:
    with MockRegistry() as away:
        away.stop()
        urls = away.url, registry.url
        for _ in range(2):
            with pytest.raises(UnknownSchemaError):
                RegistryClient(options(*urls)).schema(1)
        away.start()
        with pytest.raises(UnknownSchemaError):
            RegistryClient(options(*urls)).schema(1)
        assert away.requests == []


def test_a_response_that_breaks_off_is_asked_for_again(registry: MockRegistry) -> None:
    """As of a registry that is restarted meanwhile."""

    def serve(listener: socket.socket) -> None:
        with listener.accept()[0] as peer:
            peer.recv(10_000)
            peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n["t')

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        asks = RegistryClient(options(f"http://127.0.0.1:{listener.getsockname()[1]}", registry.url))

        assert asks.subjects() == []
        thread.join(5)


def test_a_response_that_trickles_ends_at_the_deadline() -> None:
    def serve(listener: socket.socket) -> None:
        with listener.accept()[0] as peer:
            try:
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                for _ in range(800):
                    peer.sendall(b" ")
                    time.sleep(0.05)
            except OSError:
                return

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        started = time.monotonic()
        with pytest.raises(SchemaRegistryError, match="did not respond in time"):
            RegistryClient(options(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_ms=500)).subjects()
        assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("login", "header"),
    [
        ({"user_info": Secret(f"me:{PASSWORD}")}, "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()),
        ({"bearer_token": Secret(PASSWORD)}, f"Bearer {PASSWORD}"),
    ],
)
def test_a_login_is_sent_and_no_error_shows_it(registry: MockRegistry, login: dict[str, Secret], header: str) -> None:
    registry.login = header
    assert client(registry, **login).subjects() == []

    registry.respond(422, f'{{"error_code": 42201, "message": "bad {header} and {PASSWORD}"}}')
    with pytest.raises(SchemaRegistryError, match="42201") as caught:
        client(registry, **login).subjects()

    assert PASSWORD not in str(caught.value)
    assert header not in str(caught.value)


def test_a_wrong_truststore_is_named_by_the_option_of_the_registry(tmp_path: object) -> None:
    lookups: list[SchemaLookup] = []
    given = options("https://127.0.0.1:1", truststore_location=f"{tmp_path}/none.pem")
    with pytest.raises(OptionError, match=r"schema\.registry\.ssl\.truststore\.location"):
        RegistryClient(given, lookups.append).subjects()
    assert lookups[0].error is not None, "a request that was never sent did not succeed"


def test_a_proxy_is_asked_for_the_url_of_the_registry(registry: MockRegistry) -> None:
    registry.register("t-value", '"int"')
    host, port = urlsplit(registry.url).hostname, urlsplit(registry.url).port
    proxy: dict[str, object] = {"proxy_host": host, "proxy_port": port}

    assert RegistryClient(options("http://registry.invalid", **proxy)).subjects() == ["t-value"]
    assert registry.requests == ["GET http://registry.invalid/subjects"]


@pytest.mark.usefixtures("quick_pauses")
def test_a_proxy_that_is_away_is_named() -> None:
    with pytest.raises(
        SchemaRegistryError, match=r"at https://r\.invalid through the proxy 127\.0\.0\.1: Connection ref"
    ):
        RegistryClient(options("https://r.invalid", proxy_host="127.0.0.1", proxy_port=1, timeout_ms=3_000)).subjects()


def test_each_request_is_reported(registry: MockRegistry) -> None:
    registry.register("t-value", '"int"')
    lookups: list[SchemaLookup] = []
    asks = RegistryClient(options(registry.url), lookups.append)

    asks.schema(1)
    with pytest.raises(UnknownSchemaError):
        asks.versions("u-value")

    (first, second) = lookups
    assert (first.schema_id, first.schema_subject, first.error) == (1, None, None)
    assert (second.schema_id, second.schema_subject) == (None, "u-value")
    assert second.error is not None and "40401" in second.error
    assert first.latency_ms > 0
