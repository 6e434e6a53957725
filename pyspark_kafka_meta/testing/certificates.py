"""Creates certificates for test clusters: an authority, and the certificates of brokers and clients."""

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
    """A self-signed authority. `certificate`, PEM text, is for trust stores."""

    def __init__(self, name: str = "kafkameta test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = datetime.now(UTC)
        authority = x509.BasicConstraints(ca=True, path_length=None), _SIGNS_CERTIFICATES
        self.certificate = self._certificate(self._name, self._key, now, now + LIFETIME, *authority)

    def issue(self, common_name: str, hosts: Sequence[str] = (), lifetime: timedelta = LIFETIME) -> Credentials:
        """A key and a certificate.

        Args:
            hosts: names and IP addresses in the certificate.
            lifetime: from now on; the certificate has expired if it is not positive.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        until = datetime.now(UTC) + lifetime
        names = [x509.SubjectAlternativeName([_host(host) for host in hosts])] if hosts else []
        certificate = self._certificate(_name(common_name), key, until - 2 * LIFETIME, until, *names)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Credentials(private.decode(), certificate)

    def _certificate(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        since: datetime,
        until: datetime,
        *extensions: x509.ExtensionType,
    ) -> str:
        """PEM text. Python 3.13 and later require the ids of both keys, and the key usage of an authority."""
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(since).not_valid_after(until)
        own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        for extension in (own_id, issuer_id, *extensions):
            is_critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)  # by RFC 5280
            builder = builder.add_extension(extension, is_critical)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


_SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
