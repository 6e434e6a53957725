"""The secured listener of a `LocalKafka`: certificates, the settings of brokers, and the options of clients.

Brokers also have a plaintext listener, for themselves and for tests that create topics, users and ACLs. Names as in
Kafka's `SocketServerConfigs`, `BrokerSecurityConfigs` and `StandardAuthorizer`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pyspark_kafka_meta.errors import ClusterError
from pyspark_kafka_meta.options import MECHANISMS
from pyspark_kafka_meta.options.jaas import jaas_text
from pyspark_kafka_meta.testing.kafka_config import HOST, KafkaRelease, Properties

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]

LIFETIME = timedelta(days=1)
"""Of a certificate."""


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


class ListenerSecurity:
    """Protocol, users and ACLs of the listener. Raises ClusterError: the release does not support SCRAM users.

    Args:
        mechanisms: of SASL. OAUTHBEARER accepts unsecured tokens (JWS without a signature).
        users: passwords by user. With SSL each user has a certificate, and clients need one.
        acls: whether clients need ACLs. Clients of the plaintext listener need none.
    """

    def __init__(
        self, protocol: Protocol, mechanisms: Sequence[str], users: Mapping[str, str], acls: bool, release: KafkaRelease
    ) -> None:
        self._release = release
        self.protocol = protocol
        self._mechanisms = tuple(mechanisms)
        self._users = dict(users)
        self._acls = acls
        self.authority = CertificateAuthority()
        if self.format_arguments() and not release.adds_scram_users:
            raise ClusterError(f"Kafka {release.version} cannot start with users of SCRAM: use PLAIN or Kafka 3.5.")

    @property
    def authorizer(self) -> Properties:
        """Settings of every node, including the controller."""
        if not self._acls:
            return {}
        return {"authorizer.class.name": self._release.authorizer, "super.users": "User:ANONYMOUS"}

    def broker_properties(self, port: int, plain_port: int, advertised_port: int, folder: Path) -> Properties:
        """Settings of a broker with its keys in `folder`."""
        if self.protocol == "PLAINTEXT":
            return self.authorizer
        names = ("CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", f"{self.protocol}:{self.protocol}")
        return {
            "listeners": f"{self.protocol}://{HOST}:{port},PLAINTEXT://{HOST}:{plain_port}",
            "advertised.listeners": f"{self.protocol}://{HOST}:{advertised_port},PLAINTEXT://{HOST}:{plain_port}",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join(names),
            **self.authorizer,
            **(self._tls(folder) if self.protocol.endswith("SSL") else {}),
            **(self._sasl() if self.protocol.startswith("SASL_") else {}),
        }

    def write_keys(self, folder: Path) -> None:
        """Write the key files of `broker_properties`."""
        broker = self.authority.issue("broker", [HOST])
        (folder / "broker.pem").write_text(broker.key + broker.certificate)
        (folder / "authority.pem").write_text(self.authority.certificate)

    def format_arguments(self) -> list[str]:
        """Arguments of Kafka's StorageTool that add the SCRAM users."""
        scram = [name for name in self._mechanisms if name.startswith("SCRAM-")]
        users = [f"{name}=[name={user},password={text}]" for name in scram for user, text in self._users.items()]
        return [argument for user in users for argument in ("--add-scram", user)]

    def client_options(self, user: str | None, mechanism: str | None) -> dict[str, str]:
        """Options of the source; `mechanism` None for the listener's first."""
        options: dict[str, str] = {"kafka.security.protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            options["kafka.ssl.truststore.certificates"] = self.authority.certificate
        if self.protocol.startswith("SASL_"):
            options["kafka.sasl.mechanism"] = mechanism or self._mechanisms[0]
        if user is not None and self.protocol == "SSL":
            credentials = self.authority.issue(user)
            options["kafka.ssl.keystore.key"] = credentials.key
            options["kafka.ssl.keystore.certificate.chain"] = credentials.certificate
        elif user is not None:
            options["kafka.sasl.username"] = user
            options["kafka.sasl.password"] = self._users[user]
        return options

    def _tls(self, folder: Path) -> Properties:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "authority.pem"),
            "ssl.client.auth": "required" if self.protocol == "SSL" and self._users else "none",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
        }

    def _sasl(self) -> Properties:
        listener = f"listener.name.{self.protocol.lower()}"
        options: dict[str, dict[str, str]] = {
            "PLAIN": {f"user_{user}": password for user, password in self._users.items()},
            "OAUTHBEARER": {"unsecuredLoginStringClaim_sub": "broker"},
        }
        modules = {name: MECHANISMS[name].login_module.java_class for name in self._mechanisms}
        logins = {
            f"{listener}.{name.lower()}.sasl.jaas.config": jaas_text(module, options.get(name, {}))
            for name, module in modules.items()
        }
        return {"sasl.enabled.mechanisms": ",".join(self._mechanisms), **logins}


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
