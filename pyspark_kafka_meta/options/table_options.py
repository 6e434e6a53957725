"""Which table a query reads, and which options each table takes; any other is refused by its name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pyspark_kafka_meta.options import option_checks
from pyspark_kafka_meta.options.case_insensitive import CaseInsensitiveMap
from pyspark_kafka_meta.options.client_options import ClientOptions
from pyspark_kafka_meta.options.option_table import Option, choice, documented_names, read, table_of, whole
from pyspark_kafka_meta.options.security_options import SecurityOptions
from pyspark_kafka_meta.options.source_options import OPTIONS, SourceOptions
from pyspark_kafka_meta.options.start_specs import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec


class Table(StrEnum):
    RECORDS = "records"
    REFRESH_EVENTS = "refresh_events"
    CACHES = "caches"
    BROKERS = "brokers"
    PARTITIONS = "partitions"


@dataclass(frozen=True, slots=True)
class _TableRows:
    table: Table = choice(  # noqa: RUF009
        "table",
        {table.value: table for table in Table},
        "Table to read: records, or a side table: refresh_events, caches, brokers or partitions.",
    )
    max_files_per_trigger: int = whole(
        "maxFilesPerTrigger", "1000", "Maximum event files per micro-batch, for table refresh_events.", low=1
    )


_ROWS = table_of(_TableRows)
ALL_OPTIONS: Mapping[str, Option] = {**_ROWS, **OPTIONS}
"""Those of all tables, by field."""
OPTION_NAMES = documented_names(ALL_OPTIONS)
_FILE_ROWS = {
    name: ALL_OPTIONS[name] for name in ("metrics_path", "metrics_topic", "starting_offsets", "max_files_per_trigger")
}
"""With `metricsTopic`, so that a misspelt one gets a hint."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of a table of the live cluster. `topics` is None for all that are not internal."""

    client: ClientOptions
    topics: tuple[str, ...] | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ClusterOptions:
        """Raises OptionError: one line for each option that is missing, unknown or unusable."""
        options = CaseInsensitiveMap(options)
        topics = options.get("subscribe")
        client = ClientOptions.parse(options.without("subscribe"))
        return cls(client, None if topics is None else OPTIONS["topics"].value(topics))


@dataclass(frozen=True, slots=True)
class EventsOptions:
    """The options of a table made of refresh events.

    Attributes:
        topic: how to read the topic that has them; None where they are in files.
        path: folder of the files; None for the default folders of this machine.
        starts_latest: whether a new stream of files passes over those that are there.
        max_files: most files in one micro-batch.
    """

    topic: SourceOptions | None = None
    path: str | None = None
    starts_latest: bool = False
    max_files: int = 1

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> EventsOptions:
        """Raises OptionError: one line for each option that is missing, unknown or unusable."""
        options = CaseInsensitiveMap(options)
        if "metricsTopic" in options:
            return cls(topic=_topic_options(options))
        parsed, problems = read(options, _FILE_ROWS)
        starting = parsed.get("starting_offsets")
        is_latest = starting == OffsetsSpec(LATEST_OFFSET)
        if starting is not None and not is_latest and starting != OffsetsSpec(EARLIEST_OFFSET):
            problems.append("Option 'startingOffsets' must be earliest or latest where event files are read")
        option_checks.refuse(problems)
        return cls(None, parsed["metrics_path"], is_latest, parsed["max_files_per_trigger"])


def choose_table(options: Mapping[str, str]) -> tuple[Table, dict[str, str]]:
    """The table that a query reads, and the other options.

    Raises:
        OptionError: there is no such table, or one line for each option that it does not take.
    """
    options = CaseInsensitiveMap(options)
    table: Table = _ROWS["table"].value(options.get("table", Table.RECORDS))
    taken, what = _taken(table, options)
    known = [OPTION_NAMES[name] for name in options if name in OPTION_NAMES]
    unused = [name for name in known if name not in {"table", *taken}]
    option_checks.refuse([f"Option '{name}' is not used by {what}: leave it out" for name in unused])
    return table, options.without("table")


def _taken(table: Table, given: Collection[str]) -> tuple[Collection[str], str]:
    """The names of the options that a table takes, and the table with the place that it is read from."""
    client, what = [*_names(ClientOptions), *_names(SecurityOptions)], f"table {table}"
    match table:
        case Table.RECORDS:
            return [one.name for one in OPTIONS.values()], what
        case Table.BROKERS:
            return client, what
        case Table.PARTITIONS:
            return [*client, "subscribe"], what
    streamed = ["startingOffsets"] if table is Table.REFRESH_EVENTS else []
    if "metricsTopic" in given:
        limit = ["maxOffsetsPerTrigger"] if streamed else []
        return [*client, "metricsTopic", "metricsBootstrapServers", *streamed, *limit], f"{what} out of a topic"
    return ["metricsPath", *streamed, *(["maxFilesPerTrigger"] if streamed else [])], f"{what} out of files"


def _topic_options(given: CaseInsensitiveMap[str]) -> SourceOptions:
    """How to read the metrics topic: as any topic, but reading it makes no events, and what retention took is no
    reason to fail."""
    servers = given.get("metricsBootstrapServers")
    if servers is not None:
        OPTIONS["metrics_bootstrap_servers"].value(servers)  # refused by its own name
    options = {
        "startingOffsets": "earliest",
        **given.without("metricsTopic", "metricsBootstrapServers", "metricsPath"),
        "subscribe": OPTIONS["metrics_topic"].value(given["metricsTopic"]),
        **({"kafka.bootstrap.servers": servers} if servers is not None else {}),
    }
    return replace(SourceOptions.parse(options), metrics=None, fail_on_data_loss=False)


def _names(rows: type) -> list[str]:
    return [one.name for one in table_of(rows).values()]
