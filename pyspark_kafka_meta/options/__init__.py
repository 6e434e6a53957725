"""The options of a query: `table` says how a row of the table is read, `query` holds the rows, `values` the parsers."""

from pyspark_kafka_meta.options.query import OPTIONS, ClientOptions, MetricsOptions, SourceOptions
from pyspark_kafka_meta.options.values import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec

__all__ = [
    "EARLIEST_OFFSET",
    "LATEST_OFFSET",
    "OPTIONS",
    "ClientOptions",
    "MetricsOptions",
    "OffsetsSpec",
    "SourceOptions",
]
