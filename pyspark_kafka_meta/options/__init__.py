"""The options of a query: tables of options, a module for each part, their parsers and the checks of combinations."""

from pyspark_kafka_meta.options.client import ClientOptions
from pyspark_kafka_meta.options.fetch import FetchOptions
from pyspark_kafka_meta.options.metrics import MetricsOptions
from pyspark_kafka_meta.options.producer import ProducerOptions
from pyspark_kafka_meta.options.security import SecurityOptions
from pyspark_kafka_meta.options.sink import SINK_OPTIONS, SinkOptions
from pyspark_kafka_meta.options.source import OPTIONS, SourceOptions
from pyspark_kafka_meta.options.start_specs import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec
from pyspark_kafka_meta.options.tables import ALL_OPTIONS, ClusterOptions, EventsOptions, Table, choose_table
from pyspark_kafka_meta.options.transactions import TransactionOptions

__all__ = [
    "ALL_OPTIONS",
    "EARLIEST_OFFSET",
    "LATEST_OFFSET",
    "OPTIONS",
    "SINK_OPTIONS",
    "ClientOptions",
    "ClusterOptions",
    "EventsOptions",
    "FetchOptions",
    "MetricsOptions",
    "OffsetsSpec",
    "ProducerOptions",
    "SecurityOptions",
    "SinkOptions",
    "SourceOptions",
    "Table",
    "TransactionOptions",
    "choose_table",
]
