"""Reads `sasl.jaas.config`, the login of Kafka's Java clients: `PlainLoginModule required username="u" password="p";`

Follows Kafka's `JaasConfig`, which reads it with Java's `StreamTokenizer`. Errors repeat none of the text: it holds a
password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_kafka_meta.options.secret import Secret

_TOKEN = re.compile(
    r"""
    (?P<space> \s+ | //[^\n]* | /\*.*?\*/ ) |
    "(?P<double> (?:[^"\\\r\n]|\\.)* )" | '(?P<single> (?:[^'\\\r\n]|\\.)* )' |
    (?P<word> [\w.$-]+ ) | (?P<sign> [=;] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class _Module(NamedTuple):
    """A login module of Java's.

    Attributes:
        mechanism: how the names of its mechanisms begin.
        entries: those that are read here, and those that change nothing here.
        otherwise: said of any other entry.
    """

    mechanism: str
    entries: tuple[str, ...]
    otherwise: str


_EXTENSION = "extension_"
_ONLY_JAVA = "that only Java heeds, such as keyTab, principal or awsProfileName: leave them out;"
_MODULES = {
    "PlainLoginModule": _Module("PLAIN", ("username", "password"), "other than username and password"),
    "ScramLoginModule": _Module("SCRAM-", ("username", "password"), "other than username and password"),
    "OAuthBearerLoginModule": _Module(
        "OAUTHBEARER",
        ("clientId", "clientSecret", "scope"),
        f"other than clientId, clientSecret, scope and {_EXTENSION}...; the token endpoint is an option of its own",
    ),
    "IAMLoginModule": _Module(
        "AWS_MSK_IAM", (), f"{_ONLY_JAVA} credentials come from where AWS's tools look for them, such as AWS_PROFILE"
    ),
    "Krb5LoginModule": _Module(
        "GSSAPI",
        ("serviceName", "useTicketCache", "renewTGT", "doNotPrompt"),
        f"{_ONLY_JAVA} tickets come from kinit, or by the key tab that KRB5_CLIENT_KTNAME names",
    ),
}


@dataclass(frozen=True, slots=True)
class JaasLogin:
    """One login module by its class name without the package, and its options, every one of them hidden."""

    module: str
    options: tuple[tuple[str, Secret], ...]

    def get(self, name: str) -> Secret | None:
        return dict(self.options).get(name)

    @property
    def extensions(self) -> str:
        """Those of SASL, as name=value between commas."""
        found = ((name.removeprefix(_EXTENSION), value) for name, value in self.options if name.startswith(_EXTENSION))
        return ",".join(f"{name}={value.reveal()}" for name, value in found)


def parse_jaas(text: str) -> JaasLogin:
    """The one login that `text` describes.

    Raises:
        ValueError: it is none; says where, not what.
    """
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[1].lower() not in ("required", "requisite", "sufficient", "optional"):
        raise ValueError('a login module, "required" and options must come first')
    if tokens[-1] != _END:
        raise ValueError("it must end with ';' and hold one login module")
    options: dict[str, Secret] = {}
    rest = tokens[2:-1]
    for name, sign, value in zip(rest[::3], rest[1::3], rest[2::3], strict=False):
        if sign != _EQUALS or {_EQUALS, _END} & {name, value}:
            raise ValueError(f'option {len(options) + 1} is not name="value"')
        options[name] = Secret(value)
    if len(rest) % 3:
        raise ValueError(f'option {len(options) + 1} is not name="value"')
    return JaasLogin(tokens[0].rpartition(".")[2], tuple(sorted(options.items())))


def misfit(login: JaasLogin, mechanism: str) -> str | None:
    """Why this login cannot be that of the mechanism, if it cannot. Repeats none of it."""
    module = _MODULES.get(login.module)
    if module is None or not mechanism.startswith(module.mechanism):
        return (
            f"The login module in 'kafka.sasl.jaas.config' is not one for {mechanism}: {', '.join(_MODULES)} are "
            "understood"
        )
    if login.get("tokenauth") is not None:
        return "Delegation tokens ('tokenauth' in 'kafka.sasl.jaas.config') are not supported"
    is_oauth = module.mechanism == "OAUTHBEARER"
    if any(name not in module.entries and not (is_oauth and name.startswith(_EXTENSION)) for name, _ in login.options):
        return f"The login in 'kafka.sasl.jaas.config' has entries {module.otherwise}"
    return None


def jaas_text(module: str, options: Mapping[str, str]) -> str:
    """What `parse_jaas` and Kafka read back."""
    quoted = (f'{name}="{value}"' for name, value in ((n, _escape(v)) for n, v in options.items()))
    return " ".join([module, "required", *quoted]) + ";"


_EQUALS, _END = "\0=", "\0;"  # unlike any word or quoted text


def _tokens(text: str) -> list[str]:
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"it cannot be read from character {position + 1} on: a quote or a comment is left open?")
        position = match.end()
        if match["sign"]:
            tokens.append("\0" + match["sign"])
        elif match["space"] is None:
            quoted = match["double"] if match["double"] is not None else match["single"]
            tokens.append(match["word"] if quoted is None else _unescape(quoted))
    return tokens


def _unescape(quoted: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escaped: str = match[1]
        return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPES.get(escaped, escaped)

    return re.sub(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", plain, quoted, flags=re.DOTALL)


def _escape(value: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", value)
