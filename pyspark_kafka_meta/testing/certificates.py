"""Certificates for test clusters, made when needed: an authority, and what it signs for brokers and clients."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFETIME = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Credentials:
    """A private key and its certificate, as PEM text."""

    key: str
    certificate: str


class CertificateAuthority:
    """An authority of its own. Its certificate, for trust stores, is `certificate`, PEM text."""

    def __init__(self, name: str = "kafkameta test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = datetime.now(UTC)
        builder = _builder(self._name, self._name, self._key, now, now + LIFETIME)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = _pem(builder.sign(self._key, hashes.SHA256()))

    def issue(self, common_name: str, hosts: Sequence[str] = (), lifetime: timedelta = LIFETIME) -> Credentials:
        """A key and a certificate.

        Args:
            hosts: names and IP addresses that the certificate is good for.
            lifetime: from now on; one that is not positive has passed already.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        until = datetime.now(UTC) + lifetime
        builder = _builder(_name(common_name), self._name, key, until - 2 * LIFETIME, until)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(one) for one in hosts]), critical=False)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Credentials(private.decode(), _pem(builder.sign(self._key, hashes.SHA256())))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, since: datetime, until: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return builder.serial_number(x509.random_serial_number()).not_valid_before(since).not_valid_after(until)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
