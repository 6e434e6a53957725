"""The options of a query: `table` says how a row of the table is read, `query` holds the rows, `rules` what they may
not say together, `values` and `specs` the parsers."""

from pyspark_kafka_meta.options.query import OPTIONS, ClientOptions, MetricsOptions, SourceOptions
from pyspark_kafka_meta.options.specs import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec

__all__ = [
    "EARLIEST_OFFSET",
    "LATEST_OFFSET",
    "OPTIONS",
    "ClientOptions",
    "MetricsOptions",
    "OffsetsSpec",
    "SourceOptions",
]
