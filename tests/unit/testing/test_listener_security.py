"""Test certificates pass the strict checks of Python 3.13."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path

from pyspark_kafka_meta.testing.listener_security import CertificateAuthority


def test_certificates_pass_the_strict_checks(tmp_path: Path) -> None:
    authority = CertificateAuthority()
    broker = authority.issue("broker", ["127.0.0.1"])
    (tmp_path / "broker.pem").write_text(broker.key + broker.certificate)
    client_context = ssl.create_default_context(cadata=authority.certificate)
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(tmp_path / "broker.pem")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()

    assert client.version() == "TLSv1.3"
