"""TLS over a connected socket: context, handshake with a deadline, errors that name the cause.

TLS 1.2 or later. Authorities are always checked, the host name unless an option disables the check.
"""

from __future__ import annotations

import logging
import secrets
import socket
import ssl
import tempfile
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, OptionError, TlsError
from pyspark_kafka_meta.kafka.network.sockets import TOO_MANY_CONNECTIONS, remaining_s
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import SecurityOptions

if TYPE_CHECKING:
    from pyspark_kafka_meta.kafka.network.security.key_stores import Identity

logger = logging.getLogger(__name__)

ALERT_RECORD = b"\x15\x03"
"""First bytes of a TLS alert, the response of a TLS port to a client without TLS. No frame has such a size."""

_UNKNOWN_AUTHORITY = (
    "comes from an authority that is not trusted: put its certificate into kafka.ssl.truststore.location or "
    "kafka.ssl.truststore.certificates"
)
_OTHER_HOST = (
    "does not name this host: connect to a name in it (kafka.bootstrap.servers, and the brokers' advertised.listeners)"
)
_WEAK_KEY = "has a key that OpenSSL refuses as too short: issue it with an RSA key of 2048 bits or more, or an EC key"
_WEAK_AUTHORITY_KEY = (
    "comes from an authority whose key OpenSSL refuses as too short: use an authority with an RSA key of 2048 bits or "
    "more, or an EC key"
)
_WEAK_SIGNATURE = "is signed with a hash that OpenSSL refuses as too weak, such as SHA-1: issue it with SHA-256"
_CAUSES = {
    # 7: a trusted authority has the same name and another key.
    **dict.fromkeys((2, 7, 18, 19, 20, 21), _UNKNOWN_AUTHORITY),
    9: "is not valid yet: check the clocks of both hosts",
    10: "has expired: renew it on the broker",
    **dict.fromkeys((62, 64), _OTHER_HOST),
    66: _WEAK_KEY,
    67: _WEAK_AUTHORITY_KEY,
    68: _WEAK_SIGNATURE,
}
"""By OpenSSL's verification code (X509_V_ERR_...)."""
_OWN_CAUSES = {
    "EE_KEY_TOO_SMALL": _WEAK_KEY,
    "CA_KEY_TOO_SMALL": _WEAK_AUTHORITY_KEY,
    "CA_MD_TOO_WEAK": _WEAK_SIGNATURE,
}
"""By OpenSSL's reason to refuse a certificate of this client."""

_last_contexts: dict[SecurityOptions, ssl.SSLContext] = {}


def tls_context(security: SecurityOptions) -> ssl.SSLContext:
    """A new context for each connection, so that renewed files are used. If they are unusable, perhaps because another
    process is writing them, the last context. Raises OptionError: a store, key or certificate is unusable, and there is
    no last context."""
    try:
        _last_contexts[security] = _new_context(security)
    except OptionError as error:
        if security not in _last_contexts:
            raise
        logger.warning("%s; new connections use the last usable content", error)
    return _last_contexts[security]


def _new_context(security: SecurityOptions) -> ssl.SSLContext:
    # Each new worker waits for its imports: readers without TLS do not need this library.
    from pyspark_kafka_meta.kafka.network.security.key_stores import client_identity, trusted_pem

    trusted = trusted_pem(security)
    try:
        context = ssl.create_default_context(cadata=trusted)
    except (ssl.SSLError, ValueError):
        raise OptionError("The truststore's certificates cannot be read: they must be PEM text or PKCS#12") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = security.checks_host_name
    # As Java: every certificate in the truststore is trusted, intermediate authorities too, and RFC 5280 is not checked
    # strictly, as Python does since 3.13.
    context.verify_flags = (context.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN) & ~ssl.VERIFY_X509_STRICT
    identity = client_identity(security)
    if identity is not None:
        _present(context, identity)
    return context


def _present(context: ssl.SSLContext, identity: Identity) -> None:
    """Python reads keys only from files: the file is encrypted with a random password."""
    password = secrets.token_urlsafe()
    try:
        with tempfile.NamedTemporaryFile(prefix="kafkameta-", suffix=".pem") as file:
            file.write(identity.encrypted_pem(password).encode())
            file.flush()
            context.load_cert_chain(file.name, password=password)
    except ssl.SSLError as error:
        if error.reason in _OWN_CAUSES:
            raise OptionError(f"The client's certificate {_OWN_CAUSES[error.reason]}") from None
        raise OptionError("The client's private key does not belong to its first certificate") from None
    except OSError as error:
        raise OptionError(
            f"The client's private key cannot be passed to OpenSSL in a temporary file ({error.strerror}): make "
            "room in the temporary folder, or set TMPDIR to another"
        ) from None


def handshake(connection: socket.socket, address: Address, context: ssl.SSLContext, deadline: float) -> ssl.SSLSocket:
    """The encrypted connection, which owns the socket.

    Raises:
        TlsError: a side does not trust or understand the other.
        ConnectError: the peer did not respond or closed the connection.
    """
    connection.settimeout(remaining_s(deadline))
    encrypted: socket.socket = connection
    try:
        host = address.host.removesuffix(".")  # of an absolute DNS name, which no certificate contains
        encrypted = context.wrap_socket(connection, server_hostname=host, do_handshake_on_connect=False)
        encrypted.do_handshake()
    except TimeoutError:
        encrypted.close()
        raise ConnectError(
            f"{address} accepts connections but did not finish the TLS handshake in time: is it a Kafka broker?"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: no certificate can contain the host name
        encrypted.close()
        raise failure(address, error) from None
    return encrypted


def failure(address: Address, error: Exception) -> KafkaMetaError:
    """The typed error of a TLS error, of the handshake or later."""
    if isinstance(error, ssl.SSLCertVerificationError):
        cause = _CAUSES.get(error.verify_code, f"was refused ({error.verify_message})")
        return TlsError(f"the certificate of {address} {cause}")
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        reason = (error.reason or "no reason given").replace("_", " ").lower()
        if "alert" in reason:
            return TlsError(
                f"{address} refused the TLS connection ({reason}): if it requires a client certificate, "
                "set kafka.ssl.keystore.location or kafka.ssl.keystore.key to a certificate that it trusts"
            )
        return TlsError(f"{address} does not speak TLS as expected ({reason}): check kafka.security.protocol")
    return ConnectError(
        f"{address} closed the connection in the TLS handshake: does this port speak TLS? If so, {TOO_MANY_CONNECTIONS}"
    )
