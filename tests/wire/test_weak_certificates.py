"""Certificates with keys or signatures that OpenSSL refuses as too weak."""

from __future__ import annotations

import socket
import ssl
import time
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from pyspark_kafka_meta.errors import OptionError, TlsError
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.security.tls import tls_context
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.testing.listener_security import Credentials
from tests.wire.scripted_broker import present, scripted_broker


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
CASES = [(SHORT_KEY, SHORT_KEY.certificate, LONGER_KEY), (SHA1, SHA1_AUTHORITY, NEWER_HASH)]


def options(trusted: str, **more: str) -> ClientOptions:
    tls = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.certificates": trusted}
    return ClientOptions.parse({"kafka.bootstrap.servers": "h:1", **tls, **more})


@pytest.mark.parametrize(("weak", "trusted", "text"), CASES)
def test_a_weak_certificate_of_a_broker_names_the_cause(weak: Credentials, trusted: str, text: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    present(context, weak)

    def behave(peer: socket.socket) -> None:
        with context.wrap_socket(peer, server_side=True) as encrypted:
            encrypted.recv(1)

    settings = ConnectionSettings.of(options(trusted))
    with scripted_broker(behave) as address, pytest.raises(TlsError, match=text):
        Connection(address, settings, time.monotonic() + 60)


@pytest.mark.parametrize(("weak", "trusted", "text"), [CASES[0]])
def test_a_weak_certificate_of_the_client_names_the_cause(weak: Credentials, trusted: str, text: str) -> None:
    own = {"kafka.ssl.keystore.key": weak.key, "kafka.ssl.keystore.certificate.chain": weak.certificate}
    with pytest.raises(OptionError, match=f"The client's certificate has {text}"):
        tls_context(options(trusted, **own).security)
