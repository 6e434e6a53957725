"""What `kafkameta doctor` checks, a module each: this machine, brokers, topics, registry, values, executors. The
findings of all checks: verdict, description, fix.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pyspark_kafka_meta.errors import (
    AuthenticationError,
    ConnectError,
    KafkaMetaError,
    OptionError,
    ProtocolError,
    RequestTimeoutError,
    SchemaRegistryError,
    TlsError,
    UnknownSchemaError,
    UnsupportedBrokerError,
    ValueSchemaError,
)

FIXES: dict[type[KafkaMetaError], str] = {
    ConnectError: "check the name, the port and firewalls on the way, and that the broker is up",
    TlsError: "correct kafka.security.protocol, the kafka.ssl.* options or the broker's certificate, as the error says",
    AuthenticationError: "correct the kafka.sasl.* options, or create this user on the brokers",
    RequestTimeoutError: "see this broker's load and log, or give it more time with --timeout-ms",
    ProtocolError: "check that a Kafka broker listens at this address",
    UnsupportedBrokerError: "use brokers of Apache Kafka 2.7 or later",
    UnknownSchemaError: "register the schema, or correct the topic, the version or the subject name strategy",
    SchemaRegistryError: "do what the error says, or see the registry's log",
    ValueSchemaError: "choose another schema with valueSchemaVersion or valueSchema, or leave the column bytes",
    OptionError: "correct the option",
}


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    """Reads and writes work, but slowly, with missing features or at risk."""
    FAIL = "fail"
    """Reads or writes would fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `fix` is empty only if the verdict is `OK`."""

    check: str
    verdict: Verdict
    what: str
    fix: str = ""


Section = tuple[str, Iterable[Finding]]
"""A title and its findings."""


def ok(check: str, what: str) -> Finding:
    return Finding(check, Verdict.OK, what)


def warn(check: str, what: str, fix: str) -> Finding:
    return Finding(check, Verdict.WARN, what, fix)


def fail(check: str, what: str, fix: str) -> Finding:
    return Finding(check, Verdict.FAIL, what, fix)


def failure(check: str, error: KafkaMetaError, other_fix: str = "see the log of this broker") -> Finding:
    """The finding on an error of this package; `other_fix` for those without one of their own."""
    fixes = [fix for kind, fix in FIXES.items() if isinstance(error, kind)]
    return fail(check, str(error), fixes[0] if fixes else other_fix)
