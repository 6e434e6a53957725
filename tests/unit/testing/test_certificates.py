"""Certificates for tests are taken where Python is strict about them, as it is from 3.13 on."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path

from pyspark_kafka_meta.testing.certificates import CertificateAuthority


def test_certificates_stand_the_strict_check(tmp_path: Path) -> None:
    authority = CertificateAuthority()
    broker = authority.issue("broker", ["127.0.0.1"])
    (tmp_path / "broker.pem").write_text(broker.key + broker.certificate)
    ours = ssl.create_default_context(cadata=authority.certificate)
    ours.verify_flags |= ssl.VERIFY_X509_STRICT
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(tmp_path / "broker.pem")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ours.wrap_bio(back, there, server_hostname="127.0.0.1")
    server = theirs.wrap_bio(there, back, server_side=True)
    for side in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()

    assert client.version() == "TLSv1.3"
