"""What a check found: a verdict, a sentence, and what to do. Values alone."""

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
    TlsError,
    UnsupportedBrokerError,
)

_FIXES: dict[type[KafkaMetaError], str] = {
    ConnectError: "check the name, the port and firewalls on the way, and that the broker is up",
    TlsError: "correct kafka.security.protocol, the kafka.ssl.* options or the broker's certificate, as that says",
    AuthenticationError: "correct the kafka.sasl.* options, or make this user known to the brokers",
    RequestTimeoutError: "look at this broker's load and log, or give it more time with --timeout-ms",
    ProtocolError: "check that a Kafka broker listens there, and nothing else",
    UnsupportedBrokerError: "use brokers of Apache Kafka 2.7 or later",
    OptionError: "correct the option",
}
_OTHER_FIX = "look at the log of this broker"


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    """Reads work, with something missing, slow or at risk."""
    FAIL = "fail"
    """Reads would fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: what was looked at.
        what: what was seen there.
        fix: what to do about it; empty only where the verdict is `OK`.
    """

    check: str
    verdict: Verdict
    what: str
    fix: str = ""


Section = tuple[str, Iterable[Finding]]
"""A title, and the findings below it."""


def ok(check: str, what: str) -> Finding:
    return Finding(check, Verdict.OK, what)


def warn(check: str, what: str, fix: str) -> Finding:
    return Finding(check, Verdict.WARN, what, fix)


def fail(check: str, what: str, fix: str) -> Finding:
    return Finding(check, Verdict.FAIL, what, fix)


def failure(check: str, error: KafkaMetaError) -> Finding:
    """What an error of ours means."""
    fixes = [fix for kind, fix in _FIXES.items() if isinstance(error, kind)]
    return fail(check, str(error), fixes[0] if fixes else _OTHER_FIX)
