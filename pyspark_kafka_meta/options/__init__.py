"""The options of a query: `table` tells how a row is read, `query` and `security` hold the rows, `values` parsers."""

from pyspark_kafka_meta.options.query import OPTIONS, ClientOptions, SourceOptions
from pyspark_kafka_meta.options.security import SecurityOptions
from pyspark_kafka_meta.options.values import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec

__all__ = [
    "EARLIEST_OFFSET",
    "LATEST_OFFSET",
    "OPTIONS",
    "ClientOptions",
    "OffsetsSpec",
    "SecurityOptions",
    "SourceOptions",
]
