"""The options of a query: tables of options (`*_options`), their parsers and the checks of combinations."""

from pyspark_kafka_meta.options.client_options import ClientOptions
from pyspark_kafka_meta.options.fetch_options import FetchOptions
from pyspark_kafka_meta.options.metrics_options import MetricsOptions
from pyspark_kafka_meta.options.producer_options import ProducerOptions
from pyspark_kafka_meta.options.security_options import SecurityOptions
from pyspark_kafka_meta.options.sink_options import SINK_OPTIONS, SinkOptions
from pyspark_kafka_meta.options.source_options import OPTIONS, SourceOptions
from pyspark_kafka_meta.options.start_specs import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec
from pyspark_kafka_meta.options.table_options import ALL_OPTIONS, ClusterOptions, EventsOptions, Table, choose_table
from pyspark_kafka_meta.options.transaction_options import TransactionOptions

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
