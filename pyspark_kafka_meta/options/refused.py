"""Security options of Kafka's and librdkafka's clients that mean nothing here, and what to use in their place."""

from __future__ import annotations

_JAVA = "names a Java class, and there is no Java here"
_KERBEROS = (
    "is not needed: tickets come from the cache or keytab that the environment names (KRB5CCNAME, KRB5_CLIENT_KTNAME)"
)
_TOKENS = "is not needed: a token is asked for at each login and before a session ends"

INSTEAD = {
    "ssl.ca.location": "kafka.ssl.truststore.location",
    "ssl.ca.pem": "kafka.ssl.truststore.certificates",
    "ssl.certificate.location": "kafka.ssl.keystore.location",
    "ssl.certificate.pem": "kafka.ssl.keystore.certificate.chain",
    "ssl.key.location": "kafka.ssl.keystore.location",
    "ssl.key.pem": "kafka.ssl.keystore.key",
    "enable.ssl.certificate.verification": "kafka.ssl.truststore.location",
    "sasl.mechanisms": "kafka.sasl.mechanism",
    "sasl.oauthbearer.client.id": "kafka.sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "kafka.sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.config": "kafka.sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.method": "kafka.sasl.oauthbearer.token.endpoint.url",
}
"""By the name without `kafka.`: librdkafka's."""

WHY_NOT = {
    "sasl.client.callback.handler.class": _JAVA,
    "sasl.login.callback.handler.class": f"{_JAVA}. For OAUTHBEARER there is 'oauthTokenProvider'",
    "sasl.login.class": _JAVA,
    "security.providers": _JAVA,
    "ssl.engine.factory.class": _JAVA,
    "ssl.provider": _JAVA,
    "ssl.keymanager.algorithm": _JAVA,
    "ssl.trustmanager.algorithm": _JAVA,
    "ssl.secure.random.implementation": _JAVA,
    "ssl.cipher.suites": "is left to OpenSSL's policy on this machine",
    "ssl.protocol": "is not needed: the newest that both sides know is used, TLS 1.2 at least",
    "ssl.enabled.protocols": "is not needed: the newest that both sides know is used, TLS 1.2 at least",
    "sasl.kerberos.kinit.cmd": _KERBEROS,
    "sasl.kerberos.min.time.before.relogin": _KERBEROS,
    "sasl.kerberos.ticket.renew.jitter": _KERBEROS,
    "sasl.kerberos.ticket.renew.window.factor": _KERBEROS,
    "sasl.login.connect.timeout.ms": "is kafka.socket.connection.setup.timeout.ms here",
    "sasl.login.read.timeout.ms": "is kafka.socket.connection.setup.timeout.ms here",
    "sasl.login.refresh.buffer.seconds": _TOKENS,
    "sasl.login.refresh.min.period.seconds": _TOKENS,
    "sasl.login.refresh.window.factor": _TOKENS,
    "sasl.login.refresh.window.jitter": _TOKENS,
    "sasl.login.retry.backoff.ms": "is kafka.retry.backoff.ms here",
    "sasl.login.retry.backoff.max.ms": "is kafka.retry.backoff.max.ms here",
}
"""By the name without `kafka.`: those of Kafka's Java clients, with what goes after the name in a sentence."""
