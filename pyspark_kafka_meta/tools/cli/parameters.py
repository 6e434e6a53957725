"""The options that commands share, and their translation to options of the source.

The file of `--config` is a properties file, as for `--command-config` of Kafka's tools. It is read as
`java.util.Properties` reads it, but only `=` ends a name: a line with a colon or a blank alone is a mistake, which
`javaproperties` would read as an option.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import (
    DECISIONS_TOPIC,
    PARTS,
    ChangesOptions,
    ClientOptions,
    FetchOptions,
    ProducerOptions,
    RegistryOptions,
    SecurityOptions,
    TypedValuesOptions,
    option_names,
)
from pyspark_kafka_meta.options.parsers import parse_duration_ms
from pyspark_kafka_meta.options.unknown_options import NAME, CaseInsensitiveMap
from pyspark_kafka_meta.tools.console import note
from pyspark_kafka_meta.tools.demo import DemoCluster
from pyspark_kafka_meta.tools.event_sources import folder_of_application
from pyspark_kafka_meta.tools.exporter import PORTS
from pyspark_kafka_meta.value_checks import INT32_MAX, INT64_MAX

E = TypeVar("E", bound=StrEnum)
N = TypeVar("N", int, float)
READING = (ClientOptions, SecurityOptions, FetchOptions)
OF_QUERIES = (*READING, TypedValuesOptions, RegistryOptions, ChangesOptions)
OF_WRITES = (*OF_QUERIES, ProducerOptions)
_LINE = re.compile(r"\s*[#!].*|(?:[^\\\n]|\\[\s\S]?)+")
_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\n[ \t]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def member(values: Iterable[E]) -> Callable[[str], E]:
    """A parser of the values of an enumeration, or of several."""
    named = {str(value): value for value in values}

    def parse(text: str) -> E:
        if text not in named:
            raise typer.BadParameter(f"{text} is none of {', '.join(named)}")
        return named[text]

    return parse


def within(least: float, most: float) -> Callable[[N | None], N | None]:
    """A check that a number is between these, both included."""

    def check(number: N | None) -> N | None:
        if number is not None and not least <= number <= most:
            raise typer.BadParameter(f"{number} is not between {least:,} and {most:,}")
        return number

    return check


def flag(name: str, text: str) -> Any:
    """An option without a value."""
    return typer.Option(name, metavar="", help=text)


Servers = Annotated[
    str | None, typer.Option(metavar="HOST:PORT,...", help="Brokers, separated by commas; --config may set them.")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="A kafka.* option of the source; may be given several times."),
]
QueryOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option of the query; may be given several times."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        exists=True, dir_okay=False, metavar="FILE", help="File of such options, one per line; the place for secrets."
    ),
]
EventsPath = Annotated[str | None, typer.Option("--path", metavar="FOLDER", help="The eventsPath of the events.")]
Application = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Only this Spark application: its id, or in the default folders its name while it runs."
    ),
]
AllApplications = Annotated[
    bool, flag("--all-applications", "All applications in the default folders, not only the latest.")
]
EventsTopic = Annotated[
    str | None, typer.Option("--events-topic", metavar="TOPIC", help="The eventsTopic of the events.")
]
IncidentsSince = Annotated[str | None, typer.Option(metavar="10h", help="Only incidents that ended after this.")]
Until = Annotated[str | None, typer.Option(metavar="9h", help="Only events before this, as if it were now.")]
ToOptions = Annotated[
    list[str] | None, typer.Option("--to-option", metavar="NAME=VALUE", help="As --option, of the cluster at --to.")
]
ToConfig = Annotated[
    Path | None, typer.Option(exists=True, dir_okay=False, metavar="FILE", help="As --config, of the cluster at --to.")
]
StoppedCheckpoint = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT", help="checkpointLocation of a stopped query, a local folder.")
]
TimeoutMs = Annotated[
    int,
    typer.Option(
        callback=within(1, INT32_MAX),
        metavar="MS",
        help="How long brokers may take to respond; overrides kafka.default.api.timeout.ms.",
    ),
]
Checkpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint",
        metavar="FOLDER",
        help="checkpointLocation of a query, for its lag: a path or a URI; may be given several times.",
    ),
]
WatchSeconds = Annotated[
    float | None, typer.Option("--watch", callback=within(0.1, 86_400), metavar="SECONDS", help="Repeat every SECONDS.")
]
Count = Annotated[
    int | None, typer.Option(callback=within(1, INT32_MAX), metavar="COUNT", help="Stop --watch after COUNT times.")
]
DecisionsTopic = Annotated[
    str | None, typer.Option(metavar="TOPIC", help=f"The decisionsTopic of the queries; {DECISIONS_TOPIC} by default.")
]
StartedCluster = Annotated[
    DemoCluster | None,
    typer.Option(
        parser=member(DemoCluster), metavar="KIND", help="Cluster to start: embedded brokers, the default, or kafka."
    ),
]
Host = Annotated[
    str, typer.Option(metavar="HOST", help="Address to listen on; this machine alone by default.", show_default=False)
]
Port = Annotated[int, typer.Option(callback=within(*PORTS), metavar="PORT", help="Port; 0 for a free port.")]
JsonOrPipe = Annotated[bool, flag("--json", "Print JSON lines, the default without a terminal.")]


def cluster_options(
    servers: str | None, options: Sequence[str] | None, config: Path | None, parts: Sequence[type] = READING
) -> dict[str, str]:
    """The `kafka.*` options, and those of `parts` of the table that the command uses in the file. The command line goes
    before the file. Raises OptionError: the file or an option cannot be read. The text contains no values, which may be
    secret."""
    found = {} if config is None else _in_file(config, parts)
    try:
        found |= {_full_name(name): value for name, value in map(split_pair, options or ())}
    except ValueError:
        raise OptionError("--option must be NAME=VALUE") from None
    return found if servers is None else {**found, "kafka.bootstrap.servers": servers}


def events_options(
    path: str | None, topic: str | None, cluster: Mapping[str, str], uses_brokers: bool = False, others: str = ""
) -> dict[str, str]:
    """The options of the table `refresh_events`. Raises OptionError: both places are given, or options of a cluster
    without a use.

    Args:
        cluster: the `kafka.*` options.
        uses_brokers: whether `cluster` has another use than to read the topic.
        others: options with such a use, for the error text.
    """
    if path is not None and topic is not None:
        raise OptionError("--path and --events-topic exclude each other")
    if topic is not None:
        return {**cluster, "eventsTopic": topic}
    if cluster and not uses_brokers:
        raise OptionError(f"--bootstrap-servers, --option and --config need --events-topic{others}")
    return {} if path is None else {"eventsPath": path}


def of_application(options: dict[str, str], application: str | None) -> tuple[dict[str, str], str | None]:
    """The options of the table `refresh_events`, and the id of the application to choose from its events: None if the
    options name the folder of `application` alone."""
    folder = None if options or application is None else folder_of_application(application)
    return (options, application) if folder is None else ({"eventsPath": str(folder)}, None)


def check_checkpoints(checkpoints: Sequence[str] | None, cluster: Mapping[str, str]) -> None:
    """Raises OptionError: checkpoints without `cluster`, the `kafka.*` options."""
    if checkpoints and not cluster:
        raise OptionError("--checkpoint needs --bootstrap-servers")


def since_ms(text: str, now_ms: int, option: str = "--since") -> int:
    """The start of the period `text` before `now_ms`, or a local time, in ms since 1970 UTC. Raises OptionError, with
    the name of the option."""
    try:
        if "-" in text:
            return int(datetime.fromisoformat(text).timestamp() * 1000)
        if text.strip().isdecimal():  # a number without a unit is probably meant as minutes
            raise ValueError
        return now_ms - parse_duration_ms(text)
    except ValueError:
        raise OptionError(f"{option} must be a time like 10m, 30s or 2h, or 2030-01-31T12:00") from None


def period_ms(since: str | None, until: str | None, now_ms: int) -> tuple[int, int]:
    """The times of --since and --until, ms since 1970 UTC: by default all events. Raises OptionError."""
    earliest_ms = 0 if since is None else since_ms(since, now_ms)
    latest_ms = INT64_MAX if until is None else since_ms(until, now_ms, "--until")
    if earliest_ms >= latest_ms:
        raise OptionError("--since must be before --until")
    return earliest_ms, latest_ms


def _in_file(config: Path, parts: Sequence[type]) -> dict[str, str]:
    """The options in the file. Options of Kafka's other tools are ignored."""
    try:
        pairs = list(parse_properties(config.read_text()))
    except OSError as error:
        raise OptionError(f"{config} cannot be read ({error.strerror}): correct --config") from None
    except UnicodeDecodeError:
        raise OptionError(f"{config} must be a text file of lines NAME=VALUE") from None
    except ValueError as error:
        raise OptionError(f"line {error} of {config} is not NAME=VALUE") from None
    known = option_names(*parts)
    others = {name for name, _ in pairs if _full_name(name) not in known and NAME.fullmatch(name)}
    if others:
        note(f"ignored unknown options in {config}: {', '.join(sorted(others))}")
    return {_full_name(name): value for name, value in pairs if name not in others}


def _full_name(name: str) -> str:
    """The documented name, with the prefix `kafka.` that Kafka's tools omit."""
    names = CaseInsensitiveMap({name: name for name in option_names(*PARTS)})
    full = name if name in names or name.lower().startswith("kafka.") else f"kafka.{name}"
    return names.get(full, full)


def parse_properties(text: str) -> Iterator[tuple[str, str]]:
    """Names and values. A backslash at the end of a line continues it, except in comments; two stand for a backslash.
    Raises ValueError: a line is not NAME=VALUE; the text is its number."""
    for line in _LINE.finditer(text):
        if (pair := _CONTINUED.sub(r"\1", line[0]).lstrip()) and pair[0] not in "#!":
            try:
                name, value = split_pair(pair)
            except ValueError:
                raise ValueError(text.count("\n", 0, line.start()) + 1) from None
            yield name, _ESCAPE.sub(_unescaped, value.lstrip())


def split_pair(text: str) -> tuple[str, str]:
    """Name and value of NAME=VALUE. Raises ValueError, without the text, which may be a secret."""
    name, sign, value = text.partition("=")
    if not name.strip() or not sign:
        raise ValueError("not NAME=VALUE")
    return name.strip(), value


def _unescaped(found: re.Match[str]) -> str:
    escape = found[1]
    return chr(int(escape[1:], 16)) if len(escape) > 1 else _NAMED.get(escape, escape)
