"""TLS and SASL against scripted brokers: logins that work, and failures as errors that name their cause in time."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import logging
import os
import pickle
import re
import socket
import ssl
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.response import FetchResponse as FetchMessage
from kio.static.primitive import i32
from scramp import ScramMechanism

from pyspark_kafka_meta.errors import (
    AuthenticationError,
    ConnectError,
    KafkaMetaError,
    OptionError,
    RefusedRequestError,
    TlsError,
)
from pyspark_kafka_meta.kafka.network import connection, connection_diagnosis
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.network.security.tls import tls_context
from pyspark_kafka_meta.kafka.protocol.apis import METADATA, SASL_HANDSHAKE
from pyspark_kafka_meta.kafka.protocol.fetch import FetchPartition, FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.frame_codec import milliseconds
from pyspark_kafka_meta.kafka.protocol.metadata import MetadataRequest
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.model import Address, Broker, TopicPartition
from pyspark_kafka_meta.options import ClientOptions, SecurityOptions
from pyspark_kafka_meta.testing.listener_security import CertificateAuthority, Credentials
from tests.wire.scripted_broker import (
    Behaviour,
    agree_on_mechanism,
    authenticate,
    encrypted_key,
    frame,
    over_tls,
    parrot,
    present,
    read_request,
    scripted_broker,
    send_metadata,
    send_versions,
    serve_metadata,
)

AUTHORITY = CertificateAuthority()
STRANGER = CertificateAuthority("a stranger")
BROKER = AUTHORITY.issue("broker", ["127.0.0.1"])
ALICE = AUTHORITY.issue("alice")
PASSWORD = "canary-password"
PATIENCE_S, SHORT_S = 30.0, 0.5
"""Deadlines for peers that respond, and for silent peers."""
TRUSTING = {"security.protocol": "SSL", "ssl.truststore.certificates": AUTHORITY.certificate}
PLAIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": PASSWORD,
}
SCRAM = {**PLAIN, "sasl.mechanism": "SCRAM-SHA-256"}


class Tokens:
    """The class in `oauthTokenProvider` in these tests."""

    def token(self) -> str:
        return "canary.token"


OAUTH = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "oauthTokenProvider": f"{__name__}:Tokens",
}
EXTENDED_OAUTH = {**OAUTH, "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-1"}


def security(options: dict[str, str]) -> SecurityOptions:
    named = {name if name == "oauthTokenProvider" else f"kafka.{name}": text for name, text in options.items()}
    return ClientOptions.parse({"kafka.bootstrap.servers": "localhost:9092", **named}).security


def ask(address: Address, options: dict[str, str], times: int = 1, timeout_s: float = PATIENCE_S) -> None:
    """Request metadata over one connection."""
    network = KafkaNetwork(ConnectionSettings("test", 30_000, max_frame_bytes=1 << 20, security=security(options)))
    try:
        for _ in range(times):
            network.metadata(address, (), time.monotonic() + timeout_s)
    finally:
        network.close()


# --- TLS --------------------------------------------------------------------------------------------------------------


def pkcs12_file(path: Path, credentials: Credentials | None, trusted: str | None = None) -> str:
    """A store with a password, of a key and its certificate or of trusted certificates."""
    load = x509.load_pem_x509_certificate
    key = serialization.load_pem_private_key(credentials.key.encode(), None) if credentials else None
    certificate = load(credentials.certificate.encode()) if credentials else None
    others = [load(trusted.encode())] if trusted else None
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    path.write_bytes(pkcs12.serialize_key_and_certificates(b"store", key, certificate, others, encryption))  # type: ignore[arg-type]
    return str(path)


@pytest.fixture
def stores(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """The same authority, key and certificate, in each form that an option can have."""
    authority, alice = tmp_path / "authority.pem", tmp_path / "alice.pem"
    authority.write_text(f"Größer\n{AUTHORITY.certificate}")
    alice.write_text(encrypted_key(ALICE, PASSWORD) + ALICE.certificate)
    joined = {path: path.with_suffix(".line") for path in (authority, alice)}
    for path, line in joined.items():
        line.write_text(path.read_text().replace("\n", "   "))
    forms = {
        "PEM text": {
            "ssl.truststore.certificates": AUTHORITY.certificate,
            "ssl.keystore.key": ALICE.key,
            "ssl.keystore.certificate.chain": ALICE.certificate,
        },
        "PEM text in one line": {
            "ssl.truststore.certificates": AUTHORITY.certificate.replace("\n", "  "),
            "ssl.keystore.key": encrypted_key(ALICE, PASSWORD).replace("\n", " "),
            "ssl.keystore.certificate.chain": 2 * ALICE.certificate.replace("\n", " "),
            "ssl.key.password": PASSWORD,
        },
        "PEM files": {
            "ssl.truststore.location": str(authority),
            "ssl.keystore.location": str(alice),
            "ssl.key.password": PASSWORD,
        },
        "PEM files of one line": {
            "ssl.truststore.location": str(joined[authority]),
            "ssl.keystore.location": str(joined[alice]),
            "ssl.keystore.type": "PEM",
            "ssl.key.password": PASSWORD,
        },
        "PKCS12 files": {
            "ssl.truststore.location": pkcs12_file(tmp_path / "trust.p12", None, AUTHORITY.certificate),
            "ssl.truststore.password": PASSWORD,
            "ssl.keystore.location": pkcs12_file(tmp_path / "alice.p12", ALICE),
            "ssl.keystore.password": PASSWORD,
            "ssl.keystore.type": "PKCS12",
        },
    }
    return lambda form: {"security.protocol": "SSL", **forms[form]}


@pytest.mark.parametrize(
    "form", ["PEM text", "PEM text in one line", "PEM files", "PEM files of one line", "PKCS12 files"]
)
def test_both_sides_show_certificates(form: str, stores: Callable[[str], dict[str, str]]) -> None:
    with scripted_broker(over_tls(BROKER, serve_metadata, AUTHORITY.certificate)) as address:
        ask(address, stores(form))


@pytest.mark.parametrize("file", ["authority.pem", "alice.pem"])
def test_files_being_renewed_end_no_query(file: str, stores: Callable[[str], dict[str, str]], tmp_path: Path) -> None:
    with scripted_broker(over_tls(BROKER, serve_metadata, AUTHORITY.certificate)) as address:
        ask(address, stores("PEM files"))
        half = (tmp_path / file).read_text()
        (tmp_path / file).write_text(half[: len(half) // 2])
        ask(address, stores("PEM files"))


def test_a_temporary_folder_that_is_gone_ends_no_query_that_could_connect_before(
    stores: Callable[[str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted_broker(over_tls(BROKER, serve_metadata, AUTHORITY.certificate)) as address:
        ask(address, stores("PEM files"))
        monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
        ask(address, stores("PEM files"))
        with pytest.raises(OptionError, match=r"No such file or directory.*TMPDIR"):
            ask(address, {**stores("PEM files"), "ssl.endpoint.identification.algorithm": ""})


def test_a_key_from_the_options_never_lies_readable_on_a_disk(
    stores: Callable[[str], dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    seen = []

    def load(self: object, path: str, password: str) -> None:
        seen.append((Path(path).read_text(), Path(path).stat().st_mode & 0o777))

    monkeypatch.setattr("ssl.SSLContext.load_cert_chain", load)
    with pytest.raises(KafkaMetaError):
        ask(Address("127.0.0.1", 1), stores("PEM text"))

    ((text, mode),) = seen
    assert "BEGIN ENCRYPTED PRIVATE KEY" in text
    assert "BEGIN PRIVATE KEY" not in text
    assert mode == 0o600
    assert list((tmp_path / "temporary").iterdir()) == []


def test_an_absolute_host_name_is_verified_without_its_dot(monkeypatch: pytest.MonkeyPatch) -> None:
    named = AUTHORITY.issue("broker", ["broker.example"])
    with scripted_broker(over_tls(named, serve_metadata)) as address:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", address.port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        ask(Address("broker.example.", address.port), TRUSTING)


def test_the_host_name_is_not_checked_if_the_option_says_so() -> None:
    other = AUTHORITY.issue("broker", ["wrong.example"])
    with scripted_broker(over_tls(other, serve_metadata)) as address:
        ask(address, {**TRUSTING, "ssl.endpoint.identification.algorithm": ""})


def hang_up_on_garbage(peer: socket.socket) -> None:
    """As Kafka does if the size of a frame exceeds its limit."""
    if peer.recv(1, socket.MSG_PEEK) == b"\x16":
        peer.close()
    else:
        serve_metadata(peer)


EXPIRED = AUTHORITY.issue("broker", ["127.0.0.1"], timedelta(hours=-1))
TLS_FAILURES: dict[str, tuple[Behaviour, dict[str, str], type[KafkaMetaError], str]] = {
    "unknown authority": (
        over_tls(STRANGER.issue("broker", ["127.0.0.1"]), serve_metadata),
        TRUSTING,
        TlsError,
        "authority that is not trusted: put its certificate into kafka.ssl.truststore.location",
    ),
    "of another CA": (over_tls(BROKER, serve_metadata), {"security.protocol": "SSL"}, TlsError, "not trusted: "),
    "other host name": (
        over_tls(AUTHORITY.issue("broker", ["wrong.example"]), serve_metadata),
        TRUSTING,
        TlsError,
        "does not name this host",
    ),
    "expired": (over_tls(EXPIRED, serve_metadata), TRUSTING, TlsError, "has expired: renew it on the broker"),
    "plaintext port": (hang_up_on_garbage, TRUSTING, TlsError, "does not speak TLS: set kafka.security.protocol to"),
    "HTTP port": (lambda peer: peer.sendall(b"HTTP/1.1 400\r\n\r\n"), TRUSTING, TlsError, "does not speak TLS as exp"),
    "TLS port of another server": (
        over_tls(EXPIRED, serve_metadata),
        {},
        RefusedRequestError,
        "expect TLS: set kafka.security.protocol to SSL or SASL_SSL. Else the broker may refuse connections",
    ),
    "TLS port of another server, which wants certificates, for a login": (
        over_tls(EXPIRED, serve_metadata, AUTHORITY.certificate),
        PLAIN,
        RefusedRequestError,
        "expect TLS: set kafka.security.protocol to SSL or SASL_SSL. Else the broker may refuse connections",
    ),
    "TLS port": (
        lambda peer: peer.sendall(b"\x15\x03\x03\x00\x02\x02\x50"),
        {},
        TlsError,
        "speaks TLS: set kafka.security.protocol to SSL or SASL_SSL",
    ),
    "silent": (lambda peer: None, TRUSTING, ConnectError, "did not finish the TLS handshake in time"),
    "hangs up": (lambda peer: peer.close(), TRUSTING, ConnectError, "does this port speak TLS"),
    "silent after the handshake": (over_tls(BROKER, lambda peer: None), TRUSTING, ConnectError, "does not answer"),
    "no client certificate": (
        over_tls(BROKER, serve_metadata, AUTHORITY.certificate),
        TRUSTING,
        KafkaMetaError,
        "certificate required|broke the connection|closed the connection",
    ),
}


def allowed_s(name: str) -> float:
    """A short deadline for silent peers, a long one for peers that respond."""
    return SHORT_S if name.startswith("silent") else PATIENCE_S


@pytest.mark.parametrize("name", TLS_FAILURES)
def test_a_tls_failure_is_named_within_the_deadline(name: str) -> None:
    behave, options, kind, text = TLS_FAILURES[name]
    started = time.monotonic()
    with scripted_broker(behave) as address, pytest.raises(kind, match=text):
        ask(address, options, timeout_s=allowed_s(name))
    assert time.monotonic() - started < PATIENCE_S


def test_a_dripping_handshake_does_not_outlast_the_deadline() -> None:
    def drip(peer: socket.socket) -> None:
        peer.settimeout(0.05)
        for byte in b"\x16\x03\x03\x40\x00" + b"\0" * 1000:
            peer.sendall(bytes([byte]))
            try:
                while peer.recv(4096):
                    pass
            except TimeoutError:
                continue

    started = time.monotonic()
    with scripted_broker(drip) as address, pytest.raises(KafkaMetaError):
        ask(address, TRUSTING, timeout_s=SHORT_S)
    assert time.monotonic() - started < PATIENCE_S


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xfe\xed\xfe\xed\0\0\0\2", "names a JKS store.*keytool -importkeystore"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "certificates cannot be read"),
        (b"\x30\x03\x02\x01\x03", "cannot be opened.*kafka.ssl.truststore.password"),
        (None, "cannot be read.*on the driver and on every executor"),
    ],
)
def test_an_unusable_truststore_says_what_to_do(content: bytes | None, text: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "store").write_bytes(content)
    with pytest.raises(OptionError, match=text):
        ask(Address("127.0.0.1", 1), {"security.protocol": "SSL", "ssl.truststore.location": str(tmp_path / "store")})


@pytest.mark.parametrize("form", ["PKCS12", "PEM"])
def test_a_truststore_without_certificates_is_never_taken_for_the_systems(form: str, tmp_path: Path) -> None:
    path = tmp_path / "key alone"
    if form == "PKCS12":
        key = serialization.load_pem_private_key(ALICE.key.encode(), None)
        encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
        path.write_bytes(pkcs12.serialize_key_and_certificates(b"store", key, None, None, encryption))  # type: ignore[arg-type]
    else:
        path.write_text(ALICE.key)
    options = {"security.protocol": "SSL", "ssl.truststore.location": str(path), "ssl.truststore.password": PASSWORD}
    with pytest.raises(OptionError, match=r"holds no certificate|certificates cannot be read"):
        ask(Address("127.0.0.1", 1), options)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ssl.keystore.key": encrypted_key(ALICE, PASSWORD)}, "kafka.ssl.key.password"),
        ({"ssl.keystore.key": encrypted_key(ALICE, PASSWORD), "ssl.key.password": "wrong"}, "kafka.ssl.key.password"),
        ({"ssl.keystore.certificate.chain": "none"}, "certificates cannot be read"),
        ({"ssl.keystore.certificate.chain": BROKER.certificate}, "does not belong to its first certificate"),
    ],
)
def test_an_unusable_key_says_what_is_wrong_with_it(change: dict[str, str], text: str) -> None:
    own = {"ssl.keystore.key": ALICE.key, "ssl.keystore.certificate.chain": ALICE.certificate}
    with pytest.raises(OptionError, match=text):
        ask(Address("127.0.0.1", 1), {**TRUSTING, **own, **change})


def test_bytes_that_are_damaged_on_their_way_break_the_connection_and_nothing_else() -> None:
    """TLS reports them by an alert, as a refused certificate."""
    settings = ConnectionSettings(
        "test", connect_timeout_ms=30_000, max_frame_bytes=1 << 20, security=security(TRUSTING)
    )
    request = MetadataRequest(()).encode(12)
    with (
        scripted_broker(over_tls(BROKER, serve_metadata)) as address,
        contextlib.closing(connection.Connection(address, settings, time.monotonic() + PATIENCE_S)) as opened,
    ):
        opened.call(METADATA, request, time.monotonic() + PATIENCE_S)
        os.write(opened.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(ConnectError, match=r"broke the connection .*ALERT"):
            opened.call(METADATA, request, time.monotonic() + PATIENCE_S)


def test_tls_is_1_2_at_least() -> None:
    client = ClientOptions.parse({"kafka.bootstrap.servers": "broker:9093", "kafka.security.protocol": "SSL"})
    assert tls_context(client.security).minimum_version == ssl.TLSVersion.TLSv1_2


# --- SASL -------------------------------------------------------------------------------------------------------------


def logged_in(*responses: Callable[[bytes], bytes | None]) -> Behaviour:
    def behave(peer: socket.socket) -> None:
        send_versions(peer, metadata=12)
        agree_on_mechanism(peer)
        authenticate(peer, *responses)
        send_metadata(peer)

    return behave


def accept(_: bytes) -> bytes:
    return b""


def refuse(_: bytes) -> None:
    return None


def scram_credential(password: str) -> tuple[bytes, bytes, bytes, int]:
    """Salt, stored key, server key and iterations, as Kafka's ScramFormatter computes them: without SASLprep."""
    salt, iterations = b"salt" * 4, 4096
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    client_key, server_key = (hmac.digest(salted, key, "sha256") for key in (b"Client Key", b"Server Key"))
    return salt, hashlib.sha256(client_key).digest(), server_key, iterations


def scram_broker(
    iterations: int = 4096,
    last: Callable[[bytes], bytes | None] | None = None,
    password: str = PASSWORD,
    received: list[str] | None = None,
) -> Behaviour:
    """Verifies the password by SCRAM-SHA-256. `last` replaces its proof. `received` collects its input."""
    messages = [] if received is None else received

    def behave(peer: socket.socket) -> None:
        server = ScramMechanism("SCRAM-SHA-256").make_server(lambda user: scram_credential(password))

        def first(message: bytes) -> bytes:
            messages.append(message.decode())
            server.set_client_first(message.decode())
            return re.sub(r"i=\d+", f"i={iterations}", server.get_server_first()).encode()

        def proof(message: bytes) -> bytes:
            messages.append(message.decode())
            server.set_client_final(message.decode())
            return str(server.get_server_final()).encode()

        logged_in(first, last or proof)(peer)

    return behave


def forged(_: bytes) -> bytes:
    return b"v=" + base64.b64encode(b"x" * 32)


def test_plain_sends_user_and_password() -> None:
    received: list[bytes] = []
    with scripted_broker(logged_in(lambda sent: received.append(sent) or b"")) as address:
        ask(address, PLAIN)
    assert received == [f"\0alice\0{PASSWORD}".encode()]


@pytest.mark.parametrize(
    ("user", "sent"), [("alice", "alice"), ("a,b=c", "a=2Cb=3Dc"), ("ümläut", "ümläut"), ("ªuser", "ªuser")]
)
def test_scram_proves_the_password_without_sending_it_and_takes_a_user_as_it_is(user: str, sent: str) -> None:
    received: list[str] = []
    with scripted_broker(scram_broker(received=received)) as address:
        ask(address, {**SCRAM, "sasl.username": user})
    assert f",n={sent}," in received[0]
    assert PASSWORD not in "".join(received)


@pytest.mark.parametrize("password", ["x²y", "cafe\u0301", "a\u00a0b", "a\u00adb", "🐍"])
def test_scram_takes_a_password_as_it_is(password: str) -> None:
    """SASLprep of RFC 5802, which Kafka omits, would change or refuse these passwords."""
    with scripted_broker(scram_broker(password=password)) as address:
        ask(address, {**SCRAM, "sasl.password": password})


def test_oauthbearer_shows_the_token_of_the_users_class() -> None:
    received: list[bytes] = []
    with scripted_broker(logged_in(lambda sent: received.append(sent) or b"")) as address:
        ask(address, OAUTH)
        ask(address, EXTENDED_OAUTH)
    token = b"n,,\x01auth=Bearer canary.token"
    assert received == [token + b"\x01\x01", token + b"\x01identityPoolId=pool-1\x01logicalCluster=lkc-1\x01\x01"]


def test_a_login_inside_tls() -> None:
    with scripted_broker(over_tls(BROKER, logged_in(accept))) as address:
        ask(address, {**PLAIN, **TRUSTING, "security.protocol": "SASL_SSL"})


@pytest.mark.parametrize(("share", "logins"), [(0.0, 3), (1.0, 1)])
def test_a_session_is_renewed_before_it_ends(share: float, logins: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOGIN_AGAIN_AT", (share, share))
    received: list[bytes] = []

    def behave(peer: socket.socket) -> None:
        send_versions(peer, metadata=12)
        for question in range(3):
            if question < logins:
                agree_on_mechanism(peer)
                received.extend(authenticate(peer, accept, lifetime_ms=60_000))
            if question > 0:
                send_metadata(peer)

    with scripted_broker(behave) as address:
        ask(address, PLAIN, times=2)
    assert len(received) == logins


def test_a_fetch_whose_renewed_login_is_refused_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOGIN_AGAIN_AT", (0.0, 0.0))
    connections: list[socket.socket] = []
    none = FetchMessage(throttle_time=milliseconds(0), error_code=ErrorCode.none, session_id=i32(0), responses=())

    def behave(peer: socket.socket) -> None:
        connections.append(peer)
        send_versions(peer)
        agree_on_mechanism(peer)
        authenticate(peer, accept, lifetime_ms=60_000)
        agree_on_mechanism(peer)
        authenticate(peer, accept, lifetime_ms=60_000)
        _, _, correlation_id = read_request(peer)
        peer.sendall(frame(none, correlation_id))
        agree_on_mechanism(peer)
        authenticate(peer, refuse)

    settings = ConnectionSettings("test", connect_timeout_ms=30_000, max_frame_bytes=1 << 20, security=security(PLAIN))
    request = FetchRequest((FetchPartition(TopicPartition("t", 0), uuid4(), 0, 0, -1, 100),), 0, 1, 100, False)
    network, responses = KafkaNetwork(settings), []
    with scripted_broker(behave) as address:
        for _ in range(2):
            network.fetch.send(Broker(1, address), request, time.monotonic() + PATIENCE_S)
            responses.append(network.fetch.receive([1], time.monotonic() + PATIENCE_S))
    network.close()

    assert isinstance(responses[0], FetchResponse)
    assert isinstance(responses[1], RequestFailure) and isinstance(responses[1].error, AuthenticationError)
    assert len(connections) == 1


def disagree(error: ErrorCode) -> Behaviour:
    def behave(peer: socket.socket) -> None:
        send_versions(peer, metadata=12)
        agree_on_mechanism(peer, ("GSSAPI", "X\n\x1b[31m"), error)

    return behave


def refuse_token(peer: socket.socket) -> None:
    logged_in(lambda _: b'{"status":"invalid_token"}', refuse)(peer)


SASL_FAILURES: dict[str, tuple[Behaviour, dict[str, str], str]] = {
    "wrong password": (logged_in(refuse), PLAIN, r"refused the PLAIN login \(no\): check the credentials"),
    "mechanism not offered": (
        disagree(ErrorCode.unsupported_sasl_mechanism),
        PLAIN,
        r"offers no SASL mechanism PLAIN: set kafka.sasl.mechanism to one of GSSAPI, X\\n\\x1b\[31m",
    ),
    "no login wanted": (
        disagree(ErrorCode.illegal_sasl_state),
        PLAIN,
        "expects no SASL login on this port: set kafka.security.protocol to PLAINTEXT$",
    ),
    "few iterations": (scram_broker(iterations=4095), SCRAM, "must not be < 4096"),
    "many iterations": (scram_broker(iterations=9_999_999), SCRAM, "requests 9,999,999 iterations of SCRAM-SHA-256"),
    "forged broker": (scram_broker(last=forged), SCRAM, "does not prove that it knows the password"),
    "SCRAM garbage": (logged_in(lambda _: b"\xff\xfe"), SCRAM, "broker's part of SCRAM-SHA-256 is wrong"),
    "token refused": (refuse_token, OAUTH, r'refused the OAUTHBEARER login \({"status":"invalid_token"}\)'),
    "provider missing": (
        logged_in(accept),
        {**OAUTH, "oauthTokenProvider": f"{__name__}:Nobody"},
        r"returned no token \(AttributeError\)",
    ),
}


@pytest.mark.parametrize("name", SASL_FAILURES)
def test_a_failed_login_is_an_authentication_error_of_one_attempt(name: str) -> None:
    behave, options, text = SASL_FAILURES[name]
    attempts = []

    def counted(peer: socket.socket) -> None:
        attempts.append(peer)
        behave(peer)

    started = time.monotonic()
    with scripted_broker(counted) as address, pytest.raises(AuthenticationError, match=text):
        ask(address, options)
    assert len(attempts) == (2 if name == "token refused" else 1), "a refused token is replaced once"
    assert time.monotonic() - started < PATIENCE_S


def test_a_new_token_follows_a_refused_token() -> None:
    logins: list[bytes] = []

    def behave(peer: socket.socket) -> None:
        logins.append(b"")
        (refuse_token if len(logins) == 1 else logged_in(accept))(peer)

    with scripted_broker(behave) as address:
        ask(address, OAUTH)
    assert len(logins) == 2


def test_a_new_token_follows_a_token_that_a_renewed_login_has_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOGIN_AGAIN_AT", (0.0, 0.0))
    connections: list[socket.socket] = []

    def behave(peer: socket.socket) -> None:
        connections.append(peer)
        if len(connections) == 1:
            send_versions(peer, metadata=12)
            for _ in range(2):
                agree_on_mechanism(peer)
                authenticate(peer, accept, lifetime_ms=60_000)
            send_metadata(peer)
            agree_on_mechanism(peer)
            authenticate(peer, lambda _: b'{"status":"invalid_token"}', refuse)
        else:
            logged_in(accept)(peer)

    with scripted_broker(behave) as address:
        ask(address, OAUTH, times=2)
    assert len(connections) == 2


def test_a_port_that_wants_a_login_says_so_to_who_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_diagnosis, "PROBE_S", PATIENCE_S)

    def behave(peer: socket.socket) -> None:
        send_versions(peer, metadata=12)
        if peer.recv(6, socket.MSG_PEEK | socket.MSG_WAITALL)[4:] == SASL_HANDSHAKE.key.to_bytes(2, "big"):
            agree_on_mechanism(peer)
        peer.shutdown(socket.SHUT_RDWR)

    with (
        scripted_broker(behave) as address,
        pytest.raises(AuthenticationError, match=r"requires a SASL login: .* to SASL_PLAINTEXT, "),
    ):
        ask(address, {})


def test_a_broker_that_hangs_up_on_everything_is_looked_into_once() -> None:
    connections = []

    def behave(peer: socket.socket) -> None:
        connections.append(peer)
        send_versions(peer, metadata=12)
        read_request(peer)
        peer.shutdown(socket.SHUT_RDWR)

    with scripted_broker(behave) as address, pytest.raises(ConnectError, match="closed the connection"):
        ask(address, {})
    assert len(connections) == 2


def test_a_broker_that_is_silent_during_the_login_is_left_in_time() -> None:
    with (
        scripted_broker(lambda peer: send_versions(peer)) as address,
        pytest.raises(ConnectError, match="does not answer"),
    ):
        ask(address, PLAIN, timeout_s=SHORT_S)


# --- secrets ----------------------------------------------------------------------------------------------------------

CANARIES = {
    "ssl.truststore.password": "canary-1",
    "ssl.keystore.password": "canary-2",
    "ssl.keystore.key": ALICE.key.replace("-----BEGIN", "canary-3\n-----BEGIN"),
    "ssl.keystore.certificate.chain": ALICE.certificate,
    "ssl.key.password": "canary-4",
}


@pytest.mark.parametrize(
    ("options", "secret"), [(PLAIN, PASSWORD), (OAUTH, Tokens().token()), (EXTENDED_OAUTH, Tokens().token())]
)
def test_repeated_login_is_not_told(options: dict[str, str], secret: str, caplog: pytest.LogCaptureFixture) -> None:
    message = r"[hidden]? \x1b[31m\r\nFATAL forged line"
    with scripted_broker(parrot(secret)) as address, pytest.raises(AuthenticationError, match=re.escape(message)):
        ask(address, options)
    assert secret not in caplog.text


def test_no_failure_shows_any_secret(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """Not even if the broker repeats the login."""
    caplog.set_level(logging.DEBUG)
    texts = []
    failures: dict[str, Any] = {**TLS_FAILURES, **SASL_FAILURES}
    scripts = [(behave, options, allowed_s(name)) for name, (behave, options, *_) in failures.items()]
    for behave, options, timeout_s in [
        *scripts,
        (parrot(PASSWORD), PLAIN, PATIENCE_S),
        (parrot(PASSWORD), {**PLAIN, **TRUSTING, "security.protocol": "SASL_SSL"}, PATIENCE_S),
    ]:
        secured = {**CANARIES, **options} if options.get("security.protocol", "").endswith("SSL") else options
        with scripted_broker(behave) as address:
            try:
                ask(address, secured, timeout_s=timeout_s)
            except KafkaMetaError as error:
                travelled = pickle.loads(pickle.dumps(error))
                texts += [*traceback.format_exception(error), repr(error), repr(error.args), repr(travelled)]
        texts.append(repr(security(secured)))
    output = capfd.readouterr()

    assert len(texts) > 20
    everything = "\n".join([*texts, caplog.text, *map(repr, caplog.records), output.out, output.err])
    assert "canary" not in everything
    assert ALICE.key.splitlines()[1] not in everything


def short_key() -> Credentials:
    """A key of 1024 bits and a certificate that it signed itself."""
    key, day = rsa.generate_private_key(65537, 1024), timedelta(days=1)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    since, until = datetime.now(UTC) - day, datetime.now(UTC) + day
    builder = builder.serial_number(1).not_valid_before(since).not_valid_after(until)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Credentials(private.decode(), certificate)


SHORT_KEY = short_key()
# `cryptography` signs with SHA-1 no more: from `openssl x509 -req -sha1`, valid for 100 years.
SHA1_AUTHORITY = """-----BEGIN CERTIFICATE-----
MIIBmjCCAT+gAwIBAgIUM53tIHWOlYhp30rrlMQ8/9+glt4wCgYIKoZIzj0EAwIw
GTEXMBUGA1UEAwwOdGVzdCBhdXRob3JpdHkwIBcNMjYxMTI2MTQwMjM3WhgPMjEy
NjExMDIxNDAyMzdaMBkxFzAVBgNVBAMMDnRlc3QgYXV0aG9yaXR5MFkwEwYHKoZI
zj0CAQYIKoZIzj0DAQcDQgAEokYIo+DAFVNj1UcfdOv9SUYAgOJHwwkTccuRBcCa
XOxAr7WMl05QxTzz7HO0Hk5SA5Sq7xaCXJRp0tKK/iZaZaNjMGEwHQYDVR0OBBYE
FDziQBe6VZQ5NuY8PkeVVtBjOVNWMB8GA1UdIwQYMBaAFDziQBe6VZQ5NuY8PkeV
VtBjOVNWMA8GA1UdEwEB/wQFMAMBAf8wDgYDVR0PAQH/BAQDAgIEMAoGCCqGSM49
BAMCA0kAMEYCIQCFpL6Ae00Y6NCVaI3+7+ouNofZoZsElSyb+eTlujQ2CQIhAKuJ
WCJpk+h8ByB/+nKhknBOG8v6LhW06EMOeuFSkYim
-----END CERTIFICATE-----
"""
SHA1 = Credentials(
    """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgTKy3PS4fE2AZOHHm
u4ra5tXWA7j6H/+9G16UNqVpPP6hRANCAAQOwSFlzoBUvq2Au3Z8xMD7CmRNcOaC
+1u52QxMHIztrvCLH5J5QTIWqcG5RyRGGZI9i0jhjHFTi1Cq+V5y62Sh
-----END PRIVATE KEY-----
""",
    """-----BEGIN CERTIFICATE-----
MIIBbTCCAROgAwIBAgIBAjAJBgcqhkjOPQQBMBkxFzAVBgNVBAMMDnRlc3QgYXV0
aG9yaXR5MCAXDTI2MTEyNjE0MDIzN1oYDzIxMjYxMTAyMTQwMjM3WjARMQ8wDQYD
VQQDDAZicm9rZXIwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQOwSFlzoBUvq2A
u3Z8xMD7CmRNcOaC+1u52QxMHIztrvCLH5J5QTIWqcG5RyRGGZI9i0jhjHFTi1Cq
+V5y62Sho1MwUTAPBgNVHREECDAGhwR/AAABMB0GA1UdDgQWBBTfNQpScqXSB4uI
AwwUljBRT3Zj2jAfBgNVHSMEGDAWgBQ84kAXulWUOTbmPD5HlVbQYzlTVjAJBgcq
hkjOPQQBA0kAMEYCIQD3PBcI/wkzRxRHXWzNIaXcsBut0J9ps3VRvAqcXJbo1AIh
ALY72MGdy+HON2n0pgeA7eNYdmlFC6V5A4uPYl6KDMrs
-----END CERTIFICATE-----
""",
)
LONGER_KEY = "a key that OpenSSL refuses as too short: issue it with an RSA key of 2048 bits or more, or an EC key"
NEWER_HASH = "signed with a hash that OpenSSL refuses as too weak, such as SHA-1: issue it with SHA-256"
WEAK = [(SHORT_KEY, SHORT_KEY.certificate, LONGER_KEY), (SHA1, SHA1_AUTHORITY, NEWER_HASH)]


def trusting(trusted: str, **more: str) -> ClientOptions:
    tls = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.certificates": trusted}
    return ClientOptions.parse({"kafka.bootstrap.servers": "h:1", **tls, **more})


@pytest.mark.parametrize(("weak", "trusted", "text"), WEAK)
def test_a_weak_certificate_of_a_broker_names_the_cause(weak: Credentials, trusted: str, text: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    present(context, weak)

    def behave(peer: socket.socket) -> None:
        with context.wrap_socket(peer, server_side=True) as encrypted:
            encrypted.recv(1)

    settings = ConnectionSettings.of(trusting(trusted))
    with scripted_broker(behave) as address, pytest.raises(TlsError, match=text):
        Connection(address, settings, time.monotonic() + 60)


@pytest.mark.parametrize(("weak", "trusted", "text"), WEAK[:1])
def test_a_weak_certificate_of_the_client_names_the_cause(weak: Credentials, trusted: str, text: str) -> None:
    own = {"kafka.ssl.keystore.key": weak.key, "kafka.ssl.keystore.certificate.chain": weak.certificate}
    with pytest.raises(OptionError, match=f"The client's certificate has {text}"):
        tls_context(trusting(trusted, **own).security)
