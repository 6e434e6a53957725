"""`MockRegistry` and a real registry, Apicurio, give the client the same results; and the client over TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from pyspark_kafka_meta.errors import OptionError, SchemaRegistryError, UnknownSchemaError
from pyspark_kafka_meta.options import RegistryOptions, Secret
from pyspark_kafka_meta.options.option_table import default_options
from pyspark_kafka_meta.testing import LocalRegistry, MockRegistry
from pyspark_kafka_meta.testing.listener_security import CertificateAuthority
from pyspark_kafka_meta.typed.registry.client import RegistryClient
from tests.wire.scripted_broker import over_tls, scripted_broker
from tests.wire.token_endpoint import token_endpoint

INT = '{"type":"record","name":"A","fields":[{"name":"x","type":"int"}]}'
LONG = '{"type":"record","name":"A","fields":[{"name":"x","type":"long"}]}'
STRING = '{"type":"record","name":"A","fields":[{"name":"x","type":"string"}]}'


@pytest.fixture(scope="module", params=["mock", pytest.param("real", marks=pytest.mark.thorough)])
def registry(request: pytest.FixtureRequest) -> Iterator[MockRegistry | LocalRegistry]:
    with MockRegistry() if request.param == "mock" else LocalRegistry() as registry:
        yield registry


@pytest.fixture
def url(registry: MockRegistry | LocalRegistry) -> str:
    return registry.url


@pytest.fixture
def client(url: str) -> RegistryClient:
    return RegistryClient(replace(default_options(RegistryOptions), urls=(url,), timeout_ms=20_000))


def test_a_schema_is_registered_once_and_found_by_id_and_version(client: RegistryClient) -> None:
    first = client.register("a-value", "AVRO", INT)
    second = client.register("a-value", "AVRO", LONG)
    assert first.schema_id is not None and second.schema_id is not None

    assert client.register("a-value", "AVRO", INT) == first != second
    assert client.schema(first.schema_id) == first
    assert (first.kind, first.schema.text) == ("AVRO", INT)
    assert client.versions("a-value") == [1, 2]
    assert client.version("a-value", "latest").registered == client.schema(second.schema_id)
    assert client.version("a-value", 1).version == 1
    assert client.registered("a-value", "AVRO", LONG) == second
    assert "a-value" in client.subjects()


def test_subjects_with_the_same_schema_share_its_id(client: RegistryClient) -> None:
    assert client.register("b-value", "AVRO", INT) == client.register("c-value", "AVRO", INT)


def test_a_subject_may_have_any_name(client: RegistryClient) -> None:
    client.register("shop/é %-value", "AVRO", INT)

    assert client.versions("shop/é %-value") == [1]


@pytest.mark.parametrize(
    ("code", "ask"),
    [
        (40401, lambda client: client.versions("none-value")),
        (40402, lambda client: client.version("d-value", 7)),
        (40403, lambda client: client.schema(999_999)),
        (40403, lambda client: client.registered("d-value", "AVRO", LONG)),
    ],
)
def test_what_is_unknown_has_confluents_codes(client: RegistryClient, code: int, ask: object) -> None:
    client.register("d-value", "AVRO", INT)

    with pytest.raises(UnknownSchemaError) as caught:
        assert callable(ask) and ask(client)

    assert caught.value.code == code


def test_a_schema_that_its_subject_does_not_accept_is_refused(
    registry: MockRegistry | LocalRegistry, client: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.register("f-value", "AVRO", LONG)
    if isinstance(registry, MockRegistry):
        monkeypatch.setattr(registry, "incompatible", "TYPE_MISMATCH")
    else:
        body, headers = b'{"compatibility": "BACKWARD"}', {"Content-Type": "application/json"}
        urlopen(Request(f"{registry.url}/config/f-value", body, headers, method="PUT")).close()

    assert client.incompatibilities("f-value", "AVRO", STRING)
    with pytest.raises(SchemaRegistryError, match=r"asked to register a schema in subject f-value \(409"):
        client.register("f-value", "AVRO", STRING)
    assert client.versions("f-value") == [1]


def test_a_guid_leads_to_the_same_schema_if_the_registry_has_guids(client: RegistryClient) -> None:
    """Apicurio has none."""
    registered = client.register("e-value", "AVRO", INT)
    guid = registered.guid or "00000000-0000-4000-8000-000000000007"

    if registered.guid is not None:
        assert client.schema(guid) == replace(registered, schema_id=None)
    else:
        with pytest.raises(UnknownSchemaError, match=r"has no GUIDs \(404\)"):
            client.schema(guid)


def test_another_path_is_no_registry(url: str) -> None:
    client = RegistryClient(replace(default_options(RegistryOptions), urls=(f"{url}/other",), timeout_ms=20_000))

    with pytest.raises(SchemaRegistryError, match="is not the URL of a schema registry"):
        client.subjects()


AUTHORITY, STRANGER = CertificateAuthority(), CertificateAuthority("a stranger")
REGISTRY, CLIENT = AUTHORITY.issue("registry", ["127.0.0.1"]), AUTHORITY.issue("client")


def respond(peer: socket.socket) -> None:
    """Has one subject."""
    peer.recv(4096)
    peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\n["a-b"]')


def ask(port: int, scheme: str = "https", host: str = "127.0.0.1", **options: object) -> list[str]:
    given = replace(default_options(RegistryOptions), urls=(f"{scheme}://{host}:{port}",), timeout_ms=60_000)
    return RegistryClient(replace(given, **options)).subjects()  # type: ignore[arg-type]


def test_the_certificate_of_a_private_authority_is_accepted_if_it_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(AUTHORITY.certificate)
    with scripted_broker(over_tls(REGISTRY, respond)) as address:
        assert ask(address.port, truststore_location=str(tmp_path / "ca.pem")) == ["a-b"]
        with pytest.raises(
            SchemaRegistryError, match=r"certificate .* was refused .*schema\.registry\.ssl\.truststore"
        ):
            ask(address.port, truststore_certificates=STRANGER.certificate)
        with pytest.raises(SchemaRegistryError, match="was refused"):
            ask(address.port)


def test_the_authority_of_a_token_endpoint_is_trusted_as_the_registrys_is(tmp_path: Path) -> None:
    (tmp_path / "endpoint.pem").write_text(REGISTRY.key + REGISTRY.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "endpoint.pem")
    token = {"access_token": "a.b-c", "token_type": "Bearer", "expires_in": None}  # is not kept
    with (
        scripted_broker(over_tls(REGISTRY, respond)) as address,
        token_endpoint(200, token, context=context) as (url, requests),
    ):
        login: dict[str, Any] = {
            "token_issuer_url": url,
            "token_client_id": "me",
            "token_client_secret": Secret("canary-secret"),
        }
        refused = (
            r"^no token .*certificate of the token endpoint was refused .*'schema\.registry\.ssl\.truststore\.location'"
        )
        for truststore in ({}, {"truststore_certificates": STRANGER.certificate}):
            with pytest.raises(SchemaRegistryError, match=refused):
                ask(address.port, **login, **truststore)
        with pytest.raises(OptionError, match=r"'schema\.registry\.ssl\.truststore\.location' names a file"):
            ask(address.port, **login, truststore_location=str(tmp_path / "nowhere.pem"))
        assert requests == []
        assert ask(address.port, **login, truststore_certificates=AUTHORITY.certificate) == ["a-b"]


def test_a_certificate_of_another_host_is_refused() -> None:
    with (
        scripted_broker(over_tls(AUTHORITY.issue("other", ["10.0.0.1"]), respond)) as address,
        pytest.raises(SchemaRegistryError, match=r"was refused \(IP address mismatch"),
    ):
        ask(address.port, truststore_certificates=AUTHORITY.certificate)


def test_a_proxy_connects_to_the_registry_and_sees_its_name_alone() -> None:
    registry = over_tls(AUTHORITY.issue("registry", ["registry.example"]), respond)
    seen = b""

    def proxy(peer: socket.socket) -> None:
        nonlocal seen
        while b"\r\n\r\n" not in seen:
            seen += peer.recv(4096)
        peer.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        registry(peer)

    with scripted_broker(proxy) as address:
        given: dict[str, Any] = {
            "proxy_host": address.host,
            "proxy_port": address.port,
            "truststore_certificates": AUTHORITY.certificate,
        }
        assert ask(8443, host="registry.example", **given) == ["a-b"]
    assert seen.startswith(b"CONNECT registry.example:8443 HTTP/1.")


def test_a_proxy_that_refuses_is_named() -> None:
    def proxy(peer: socket.socket) -> None:
        peer.recv(4096)
        peer.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")

    with (
        scripted_broker(proxy) as address,
        pytest.raises(
            SchemaRegistryError, match=r"through the proxy 127\.0\.0\.1: .*407 Proxy Authentication Required"
        ),
    ):
        ask(8443, proxy_host=address.host, proxy_port=address.port, timeout_ms=2_000)  # it is asked again


def test_a_client_certificate_is_shown() -> None:
    own: dict[str, Any] = {"keystore_key": Secret(CLIENT.key), "keystore_certificate_chain": CLIENT.certificate}
    with scripted_broker(over_tls(REGISTRY, respond, AUTHORITY.certificate)) as address:
        assert ask(address.port, truststore_certificates=AUTHORITY.certificate, **own) == ["a-b"]
        with pytest.raises(SchemaRegistryError, match=r"no TLS connection|cannot reach"):
            ask(address.port, truststore_certificates=AUTHORITY.certificate, timeout_ms=2_000)


def test_a_registry_without_tls_is_told_from_one_with_it() -> None:
    with (
        scripted_broker(respond) as address,
        pytest.raises(SchemaRegistryError, match=r"no TLS connection .*\(wrong version number|\(record layer"),
    ):
        ask(address.port)
