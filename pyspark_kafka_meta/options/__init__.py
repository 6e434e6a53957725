"""The options of a query: `table` says how a row of the table is read, `query` and `security` hold the rows, `rules`
what they may not say together, `values` and `specs` the parsers."""

from pyspark_kafka_meta.options.query import OPTIONS, ClientOptions, SourceOptions
from pyspark_kafka_meta.options.security import SecurityOptions
from pyspark_kafka_meta.options.specs import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec

__all__ = [
    "EARLIEST_OFFSET",
    "LATEST_OFFSET",
    "OPTIONS",
    "ClientOptions",
    "OffsetsSpec",
    "SecurityOptions",
    "SourceOptions",
]
