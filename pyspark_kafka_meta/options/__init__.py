"""The options of a query: the table of options, a module for each part of it, and the parsers of values."""

from pyspark_kafka_meta.options.changes import HEARTBEAT_TOPICS, ChangeOrder, Changes, ChangesOptions, OnTruncate
from pyspark_kafka_meta.options.client import ClientOptions, EventsOptions, FetchOptions
from pyspark_kafka_meta.options.offsets import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec
from pyspark_kafka_meta.options.option_table import OPTIONS, Query, default_options, option_names, options_of
from pyspark_kafka_meta.options.parsers import HIDDEN, Secret
from pyspark_kafka_meta.options.schema_registry import RegistryOptions
from pyspark_kafka_meta.options.security import MECHANISMS, PLAINTEXT, SecurityOptions
from pyspark_kafka_meta.options.sink import CODECS, DECISIONS_TOPIC, ProducerOptions, SinkOptions, TransactionOptions
from pyspark_kafka_meta.options.source import ReadOptions, SourceOptions
from pyspark_kafka_meta.options.tables import ClusterOptions, EventTableOptions, Table, TableOptions, choose_table
from pyspark_kafka_meta.options.typed_values import (
    ColumnFormat,
    Framing,
    OnMalformedRecord,
    SubjectNameStrategy,
    TypedValuesOptions,
)

PARTS = (
    TableOptions,
    SourceOptions,
    TypedValuesOptions,
    ChangesOptions,
    RegistryOptions,
    SinkOptions,
    ProducerOptions,
    TransactionOptions,
    EventsOptions,
    ClientOptions,
    SecurityOptions,
    FetchOptions,
)
"""The dataclasses of the table of options, in the order of the documentation within each section."""
OPTIONS |= {option.name: option for part in PARTS for option in options_of(part).values()}

__all__ = [
    "CODECS",
    "DECISIONS_TOPIC",
    "EARLIEST_OFFSET",
    "HEARTBEAT_TOPICS",
    "HIDDEN",
    "LATEST_OFFSET",
    "MECHANISMS",
    "OPTIONS",
    "PARTS",
    "PLAINTEXT",
    "ChangeOrder",
    "Changes",
    "ChangesOptions",
    "ClientOptions",
    "ClusterOptions",
    "ColumnFormat",
    "EventTableOptions",
    "EventsOptions",
    "FetchOptions",
    "Framing",
    "OffsetsSpec",
    "OnMalformedRecord",
    "OnTruncate",
    "ProducerOptions",
    "Query",
    "ReadOptions",
    "RegistryOptions",
    "Secret",
    "SecurityOptions",
    "SinkOptions",
    "SourceOptions",
    "SubjectNameStrategy",
    "Table",
    "TransactionOptions",
    "TypedValuesOptions",
    "choose_table",
    "default_options",
    "option_names",
]
