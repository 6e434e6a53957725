"""The options that commands share, and what they amount to for the source.

A file for `--config` is a properties file, as Kafka's own tools take with `--command-config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from pyspark_kafka_meta.cli.properties_file import parse_properties, split_pair
from pyspark_kafka_meta.demo import DemoCluster
from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.monitor.console import note
from pyspark_kafka_meta.options.client_options import CLIENT_OPTIONS
from pyspark_kafka_meta.options.option_parsers import parse_duration_ms
from pyspark_kafka_meta.options.option_table import NAME
from pyspark_kafka_meta.options.table_options import OPTION_NAMES
from pyspark_kafka_meta.validators import INT32_MAX

Servers = Annotated[
    str | None, typer.Option(help="Brokers to ask, as host:port between commas; --config may name them.")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="A kafka.* option of the source; may be given several times."),
]
Config = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="File of such options, a line each: the place for secrets."),
]
EventsPath = Annotated[str | None, typer.Option("--path", help="The metricsPath of the events.")]
Application = Annotated[
    str | None, typer.Option(metavar="ID", help="Only readers of this application of Spark; planners know none.")
]
AllApplications = Annotated[
    bool,
    typer.Option("--all-applications", help="In the default folders, all applications and not only the latest."),
]
EventsTopic = Annotated[str | None, typer.Option("--topic", help="The metricsTopic of the events.")]
TimeoutMs = Annotated[
    int,
    typer.Option(
        min=1, max=INT32_MAX, help="How long brokers may take to answer, whatever kafka.default.api.timeout.ms says."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, one line each.")]
JsonOrPipe = Annotated[bool, typer.Option("--json", help="JSON, one line each, as without a terminal.")]


def cluster_options(servers: str | None, options: Sequence[str] | None, config: Path | None) -> dict[str, str]:
    """The `kafka.*` options; what is on the command line goes before what is in the file.

    Raises:
        OptionError: the file, or an option, cannot be read. It does not repeat what may be a secret.
    """
    found = {} if config is None else _in_file(config)
    try:
        found |= {_full_name(name): value for name, value in map(split_pair, options or ())}
    except ValueError:
        raise OptionError("--option must be NAME=VALUE") from None
    return found if servers is None else {**found, "kafka.bootstrap.servers": servers}


def events_options(
    path: str | None, topic: str | None, cluster: Mapping[str, str], asks_brokers: bool = False, others: str = ""
) -> dict[str, str]:
    """The options of the table `refresh_events`.

    Args:
        cluster: the `kafka.*` options.
        asks_brokers: whether those have another use than to read the topic.
        others: options that would give them one, as in the error's text.

    Raises:
        OptionError: two places are given, or options of a cluster that is not asked.
    """
    if path is not None and topic is not None:
        raise OptionError("--path and --topic name two places: give one of them")
    if topic is not None:
        return {**cluster, "metricsTopic": topic}
    if cluster and not asks_brokers:
        use = f"a --topic{others}: name one"
        raise OptionError(f"--bootstrap-servers, --option and --config are for {use}, or leave them out")
    return {} if path is None else {"metricsPath": path}


def check_demo(cluster: DemoCluster | None, topic: str | None, feed: bool, yours: Mapping[str, str]) -> None:
    """Whether the options of `demo` fit together.

    Args:
        yours: the `kafka.*` options of a cluster that is not the demo's own.

    Raises:
        OptionError: two clusters are named, or one of yours by halves.
    """
    if yours and cluster is not None:
        raise OptionError("--cluster starts one and --bootstrap-servers names yours: give one of them")
    if (topic is None) == ("kafka.bootstrap.servers" in yours) or (topic is None and (feed or yours)):
        raise OptionError("--bootstrap-servers and --topic go together; --feed, --option and --config are for them")


def since_ms(text: str, now_ms: int) -> int:
    """When it was, ms since 1970 UTC. Raises OptionError."""
    try:
        if text.strip().isdecimal():  # milliseconds, where minutes are meant
            raise ValueError
        return now_ms - parse_duration_ms(text)
    except ValueError:
        raise OptionError("--since must be a time like 10m, 30s or 2h") from None


def _in_file(config: Path) -> dict[str, str]:
    """The options in it. What else Kafka's tools have there, for a consumer's group or a producer, is ignored."""
    try:
        pairs = list(parse_properties(config.read_text()))
    except OSError as error:
        raise OptionError(f"{config} cannot be read ({error.strerror}): correct --config") from None
    except UnicodeDecodeError:
        raise OptionError(f"{config} must be a text file of lines NAME=VALUE") from None
    except ValueError as error:
        raise OptionError(f"line {error} of {config} is not NAME=VALUE") from None
    known = {option.name for option in CLIENT_OPTIONS.values()}
    others = {name for name, _ in pairs if _full_name(name) not in known and NAME.fullmatch(name)}
    if others:
        note(f"passed over in {config}, as no options of kafkameta: {', '.join(sorted(others))}")
    return {_full_name(name): value for name, value in pairs if name not in others}


def _full_name(name: str) -> str:
    """As documented, with the `kafka.` that Kafka's tools leave out."""
    full = name if name in OPTION_NAMES or name.lower().startswith("kafka.") else f"kafka.{name}"
    return OPTION_NAMES.get(full, full)
