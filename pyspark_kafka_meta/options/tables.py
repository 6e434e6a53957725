"""The table that a query reads, the options of side tables, and the warnings about options without effect."""
# ruff: noqa: RUF009 (the default of a field is an option, made by a function)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pyspark_kafka_meta.options.client import ClientOptions, EventsOptions, FetchOptions
from pyspark_kafka_meta.options.offsets import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec
from pyspark_kafka_meta.options.option_table import (
    CHECKPOINT_LOCATION,
    OPTIONS,
    GivenOptions,
    Query,
    Rows,
    Section,
    option_names,
    options_of,
    without_effectless,
)
from pyspark_kafka_meta.options.sink import SinkOptions, TransactionOptions
from pyspark_kafka_meta.options.source import STRATEGIES, SourceOptions
from pyspark_kafka_meta.options.unknown_options import CaseInsensitiveMap


class Table(StrEnum):
    RECORDS = "records"
    LATEST = "latest"
    REFRESH_EVENTS = "refresh_events"
    CACHES = "caches"
    LEADER_CHANGES = "leader_changes"
    BROKERS = "brokers"
    PARTITIONS = "partitions"
    TRANSACTIONS = "transactions"


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of side tables alone. `table` has an effect before the query is known, by `choose_table`."""

    table: Table = Rows(Section.TOPICS, Query.NONE).choice(
        "table",
        {table.value: table for table in Table},
        "Records, in a batch [the last of each key](recipes.md#the-latest-value-of-each-key) (latest), or a [side "
        "table](observe.md#side-tables).",
    )
    max_files_per_trigger: int = Rows(Section.TASKS, Query.EVENT_FILES_STREAM).number(
        "maxFilesPerTrigger", "1000", "Maximum event files per micro-batch of table refresh_events.", low=1
    )


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
        given = GivenOptions(options, Query.CLUSTER)
        client = ClientOptions.of(given)
        given.raise_problems()
        topics = given.value(SourceOptions, "topics")
        return cls(client, FetchOptions.of(given), topics, given.value(TransactionOptions, "decisions_topic"))


@dataclass(frozen=True, slots=True)
class EventTableOptions:
    """The options of a table of refresh events.

    Attributes:
        topic: options of the topic with the events; None if events are in files.
        path: folder of the files; None for the default folders of this machine.
        starts_latest: whether a new stream skips existing files.
    """

    topic: SourceOptions | None = None
    path: str | None = None
    starts_latest: bool = False
    max_files: int = 1

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> EventTableOptions:
        """Raises OptionError: one line for each missing, unknown or invalid option."""
        named = CaseInsensitiveMap(options)
        if _TOPIC.name in named:
            return cls(topic=_topic_options(named))
        given = GivenOptions(named, Query.EVENT_FILES)
        starting = given.value(SourceOptions, "starting_offsets")
        is_latest = starting == OffsetsSpec(LATEST_OFFSET)
        if starting is not None and not is_latest and starting != OffsetsSpec(EARLIEST_OFFSET):
            given.refuse(["Option 'startingOffsets' must be earliest or latest for event files"])
        given.raise_problems()
        max_files = given.value(TableOptions, "max_files_per_trigger")
        return cls(None, given.value(EventsOptions, "path"), is_latest, max_files)


_TOPIC = options_of(EventsOptions)["topic"]
_TABLE = options_of(TableOptions)["table"]


def choose_table(options: Mapping[str, str]) -> tuple[Table, dict[str, str]]:
    """The table that a query reads, and the options that it uses or that are unknown; of a side table without those
    that have no effect. Raises OptionError: the table is unknown."""
    named = CaseInsensitiveMap(options)
    table: Table = _TABLE.value(named.get(_TABLE.name, Table.RECORDS))
    used = named.without(_TABLE.name)
    if table is Table.RECORDS:
        return table, used  # `SourceOptions.parse` warns of the others
    query, place = _query(table, _TOPIC.name in named)
    return table, dict(without_effectless(CaseInsensitiveMap(used), query, place))


def is_read(options: Mapping[str, str]) -> bool:
    """Whether the options say what to read, and not where to write: their errors can be reported at once."""
    named = CaseInsensitiveMap(options)
    reads = [_TABLE.name, *(options_of(SourceOptions)[field].name for field in STRATEGIES)]
    writes = [options_of(SinkOptions)["topic"].name, CHECKPOINT_LOCATION]
    return any(name in named for name in reads) and not any(name in named for name in writes)


def batch_warnings(options: Mapping[str, str]) -> list[str]:
    """Given options that have an effect in streams only, of any table."""
    named = CaseInsensitiveMap(options)
    return [
        f"{option.name} option ignored in batch queries"
        for option in OPTIONS.values()
        if option.queries and option.queries in Query.STREAMS and option.name in named
    ]


def _query(table: Table, from_topic: bool) -> tuple[Query, str]:
    """The query that reads a table, and its name for warnings."""
    match table:
        case Table.REFRESH_EVENTS:
            query = Query.EVENT_TOPIC if from_topic else Query.EVENT_FILES
        case Table.CACHES | Table.LEADER_CHANGES:
            query = Query.FOLDED_FROM_TOPIC if from_topic else Query.FOLDED_FROM_FILES
        case _:
            return Query[table.name], f"table {table}"
    return query, f"table {table} from {'a topic' if from_topic else 'files'}"


def _topic_options(given: CaseInsensitiveMap[str]) -> SourceOptions:
    """The options of the events topic. Reading it makes no events, and expired events are no failure."""
    events, source, client = options_of(EventsOptions), options_of(SourceOptions), options_of(ClientOptions)
    servers = given.get(events["bootstrap_servers"].name)
    if servers is not None:
        events["bootstrap_servers"].value(servers)  # an error names this option
    options = {
        source["starting_offsets"].name: "earliest",
        **given.without(*option_names(EventsOptions)),
        source["topics"].name: events["topic"].value(given[_TOPIC.name]),
        **({} if servers is None else {client["bootstrap_servers"].name: servers}),
    }
    return replace(SourceOptions.parse(options), events=None, fail_on_data_loss=False)
