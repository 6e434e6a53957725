"""The table that a query reads, and the options of each table; any other option is an error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pyspark_kafka_meta.options import checks
from pyspark_kafka_meta.options.case_insensitive import CaseInsensitiveMap
from pyspark_kafka_meta.options.client import ClientOptions
from pyspark_kafka_meta.options.definitions import (
    Option,
    choice,
    documented_names,
    parse_options,
    table_of,
    whole,
    with_effect,
)
from pyspark_kafka_meta.options.fetch import FetchOptions
from pyspark_kafka_meta.options.security import SecurityOptions
from pyspark_kafka_meta.options.source import OPTIONS, WRITE_ONLY, SourceOptions
from pyspark_kafka_meta.options.start_specs import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec
from pyspark_kafka_meta.options.transactions import TRANSACTION_OPTIONS


class Table(StrEnum):
    RECORDS = "records"
    REFRESH_EVENTS = "refresh_events"
    CACHES = "caches"
    BROKERS = "brokers"
    PARTITIONS = "partitions"
    TRANSACTIONS = "transactions"


@dataclass(frozen=True, slots=True)
class _TableOptions:
    table: Table = choice(  # noqa: RUF009
        "table",
        {table.value: table for table in Table},
        "Table to read: records, or a side table: refresh_events, caches, brokers, partitions or transactions.",
    )
    max_files_per_trigger: int = whole(
        "maxFilesPerTrigger", "1000", "Maximum event files per micro-batch, for table refresh_events.", low=1
    )


_TABLE_OPTIONS = table_of(_TableOptions)
ALL_OPTIONS: Mapping[str, Option] = {**_TABLE_OPTIONS, **OPTIONS}
"""The options of all tables by field."""
OPTION_NAMES = documented_names(ALL_OPTIONS)
_DECISIONS_TOPIC = TRANSACTION_OPTIONS["decisions_topic"]
"""An option of writing, and of the table of transactions."""
_NAMES = CaseInsensitiveMap({**OPTION_NAMES, **WRITE_ONLY})
_FILE_OPTIONS = {
    name: ALL_OPTIONS[name] for name in ("metrics_path", "metrics_topic", "starting_offsets", "max_files_per_trigger")
}
"""With `metricsTopic`, for a hint about a misspelt name."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of a table of the live cluster.

    Attributes:
        topics: None for all topics that are not internal.
        decisions_topic: of the sinks.
    """

    client: ClientOptions
    fetch: FetchOptions
    topics: tuple[str, ...] | None
    decisions_topic: str

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ClusterOptions:
        """Raises OptionError: one line for each missing, unknown or invalid option."""
        options = CaseInsensitiveMap(options)
        topics = options.get("subscribe")
        client = ClientOptions.parse(options.without("subscribe", _DECISIONS_TOPIC.name))
        return cls(
            client,
            FetchOptions.parse(options),
            None if topics is None else OPTIONS["topics"].value(topics),
            _DECISIONS_TOPIC.value(options.get(_DECISIONS_TOPIC.name, str(_DECISIONS_TOPIC.default))),
        )


@dataclass(frozen=True, slots=True)
class EventsOptions:
    """The options of a table of refresh events.

    Attributes:
        topic: options of the topic with the events; None if events are in files.
        path: folder of the files; None for the default folders of this machine.
        starts_latest: whether a new stream skips existing files.
        max_files: maximum number of files per micro-batch.
    """

    topic: SourceOptions | None = None
    path: str | None = None
    starts_latest: bool = False
    max_files: int = 1

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> EventsOptions:
        """Raises OptionError: one line for each missing, unknown or invalid option."""
        options = CaseInsensitiveMap(options)
        if "metricsTopic" in options:
            return cls(topic=_topic_options(options))
        parsed, problems = parse_options(options, _FILE_OPTIONS)
        starting = parsed.get("starting_offsets")
        is_latest = starting == OffsetsSpec(LATEST_OFFSET)
        if starting is not None and not is_latest and starting != OffsetsSpec(EARLIEST_OFFSET):
            problems.append("Option 'startingOffsets' must be earliest or latest for event files")
        checks.raise_problems(problems)
        return cls(None, parsed["metrics_path"], is_latest, parsed["max_files_per_trigger"])


def choose_table(options: Mapping[str, str]) -> tuple[Table, dict[str, str]]:
    """The table that a query reads, and the options that it uses or that are unknown.

    Raises:
        OptionError: the table is unknown.
    """
    options = CaseInsensitiveMap(options)
    table: Table = _TABLE_OPTIONS["table"].value(options.get("table", Table.RECORDS))
    used, source = _used_options(table, options)
    others = CaseInsensitiveMap(_NAMES.without("table", *used))
    return table, with_effect(options, others, f"in {source}").without("table")


def _used_options(table: Table, given: Collection[str]) -> tuple[Collection[str], str]:
    """The names of the options that a table uses, and the table with its source for an error text."""
    client, name = [*_names(ClientOptions), *_names(FetchOptions), *_names(SecurityOptions)], f"table {table}"
    match table:
        case Table.RECORDS:
            return [option.name for option in OPTIONS.values()], "a read"
        case Table.BROKERS:
            return client, name
        case Table.PARTITIONS:
            return [*client, "subscribe"], name
        case Table.TRANSACTIONS:
            return [*client, _DECISIONS_TOPIC.name], name
    streamed = ["startingOffsets"] if table is Table.REFRESH_EVENTS else []
    if "metricsTopic" in given:
        limit = ["maxOffsetsPerTrigger"] if streamed else []
        return [*client, "metricsTopic", "metricsBootstrapServers", *streamed, *limit], f"{name} from a topic"
    return ["metricsPath", *streamed, *(["maxFilesPerTrigger"] if streamed else [])], f"{name} from files"


def _topic_options(given: CaseInsensitiveMap[str]) -> SourceOptions:
    """The options of the metrics topic. Reading it makes no events, and expired events are no failure."""
    servers = given.get("metricsBootstrapServers")
    if servers is not None:
        OPTIONS["metrics_bootstrap_servers"].value(servers)  # an error names this option
    options = {
        "startingOffsets": "earliest",
        **given.without("metricsTopic", "metricsBootstrapServers", "metricsPath"),
        "subscribe": OPTIONS["metrics_topic"].value(given["metricsTopic"]),
        **({"kafka.bootstrap.servers": servers} if servers is not None else {}),
    }
    return replace(SourceOptions.parse(options), metrics=None, fail_on_data_loss=False)


def _names(options_type: type) -> list[str]:
    return [option.name for option in table_of(options_type).values()]
