"""Read trust stores and key stores. The content decides between PEM and PKCS#12; Java's own formats are refused.

Only trusted PEM text needs no cryptography, which the extra `stores` installs. Follows Kafka's
`DefaultSslEngineFactory`: a PEM key store holds the private key and its chain in one file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.extras import missing_extra
from pyspark_kafka_meta.options import Secret, SecurityOptions

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

_JAVA_STORES = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")  # first bytes of JKS and JCEKS files
_PEM_BLOCK = re.compile(r"(?P<begin>-----BEGIN [A-Z ]+-----)(?P<body>[A-Za-z0-9/+=\s]*)(?P<end>-----END [A-Z ]+-----)")


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """A private key and its certificate chain, the key's own certificate first."""

    key: PrivateKeyTypes
    chain: Sequence[x509.Certificate]

    def encrypted_pem(self, password: str) -> str:
        """The key, encrypted, and the chain as PEM text."""
        from cryptography.hazmat.primitives import serialization as to

        encryption = to.BestAvailableEncryption(password.encode())
        key = self.key.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, encryption)
        return key.decode() + certificates_pem(self.chain)


def certificates_pem(certificates: Sequence[x509.Certificate]) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)


def trusted_pem(security: SecurityOptions) -> str | None:
    """The trusted authorities as PEM text; None for the system's authorities. Raises OptionError: the store cannot be
    read or is empty."""
    if security.truststore_certificates:
        return _in_lines(security.truststore_certificates)
    if security.truststore_location is None:
        return None
    option = "kafka.ssl.truststore"
    data = _read(security.truststore_location, security.truststore_type, option)
    if _is_pem(data):
        return _in_lines(_text(data))
    _, certificate, others = _open_pkcs12(data, security.truststore_password, option)
    trusted = [trusted for trusted in (certificate, *others) if trusted is not None]
    if not trusted:  # an empty text would mean the system's authorities
        raise OptionError(
            f"The store of '{option}.location' holds no certificate: add the certificate of the brokers' authority, as "
            "PEM or PKCS#12"
        )
    return certificates_pem(trusted)


def client_identity(security: SecurityOptions) -> Identity | None:
    """The client's key and certificates; None without a key store. Raises OptionError: the store cannot be read or is
    incomplete."""
    option = "kafka.ssl.keystore"
    if security.keystore_key and security.keystore_certificate_chain:
        text = f"{security.keystore_key.reveal()}\n{security.keystore_certificate_chain}"
        return _from_pem(text, security.key_password)
    if security.keystore_location is None:
        return None
    data = _read(security.keystore_location, security.keystore_type, option)
    if _is_pem(data):
        return _from_pem(_text(data), security.key_password)
    key, certificate, others = _open_pkcs12(data, security.keystore_password, option)
    if key is None or certificate is None:
        raise OptionError(f"Option '{option}.location' names a store without a private key and its certificate")
    return Identity(key, [certificate, *others])


def _in_lines(text: str) -> str:
    """PEM text with its line breaks restored. Properties files with continued lines have spaces instead, which Kafka's
    `DefaultSslEngineFactory.PemParser` accepts."""

    def lines(block: re.Match[str]) -> str:
        body = "".join(block["body"].split())
        columns = (body[at : at + 64] for at in range(0, len(body), 64))  # textwrap is slow
        return "\n".join(["", block["begin"], *columns, block["end"], ""])  # a comment may be on the same line

    return _PEM_BLOCK.sub(lines, text)


def _text(data: bytes) -> str:
    return data.decode("ascii", errors="ignore")  # comments between the blocks may not be ASCII


def _from_pem(text: str, password: Secret | None) -> Identity:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ModuleNotFoundError:
        raise OptionError(missing_extra("A client certificate", "cryptography")) from None
    data = _in_lines(text).encode()
    try:
        key = load_pem_private_key(data, password.reveal().encode() if password else None)
    except (ValueError, TypeError):  # TypeError: a password without need, or no password
        raise OptionError(
            "The client's private key cannot be read: it must be PEM text, and 'kafka.ssl.key.password' its password "
            "if it is encrypted"
        ) from None
    try:
        return Identity(key, x509.load_pem_x509_certificates(data))
    except ValueError:
        raise OptionError("The client's certificates cannot be read: they must be PEM text, beside the key") from None


def _read(location: str, kind: str | None, option: str) -> bytes:
    """The bytes of the file, whose type matches `kind` if it is given."""
    try:
        data = Path(location).read_bytes()
    except OSError as error:
        raise OptionError(
            f"Option '{option}.location' names a file that cannot be read ({error.strerror}): it must exist "
            "on the driver and on every executor"
        ) from None
    if data.startswith(_JAVA_STORES):
        raise OptionError(
            f"Option '{option}.location' names a JKS store, which only Java reads. Convert it: keytool "
            "-importkeystore -srckeystore old.jks -destkeystore new.p12 -deststoretype PKCS12"
        )
    if kind is not None and (kind == "PEM") != _is_pem(data):
        raise OptionError(f"Option '{option}.type' says {kind}, and the file of '{option}.location' is something else")
    return data


def _is_pem(data: bytes) -> bool:
    return b"-----BEGIN " in data


def _open_pkcs12(
    data: bytes, password: Secret | None, option: str
) -> tuple[PrivateKeyTypes | None, x509.Certificate | None, list[x509.Certificate]]:
    try:
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_key_and_certificates
    except ModuleNotFoundError:
        raise OptionError(missing_extra("A PKCS#12 store", "cryptography")) from None
    try:
        return load_key_and_certificates(data, password.reveal().encode() if password else None)
    except ValueError:
        raise OptionError(
            f"The store of '{option}.location' cannot be opened: it must be PEM or PKCS#12, and '{option}.password' "
            "its password"
        ) from None
