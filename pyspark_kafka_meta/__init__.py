"""A Kafka source for PySpark that needs no jar and shows what every executor's metadata cache does.

Installing this package is enough for `spark.read.format("kafkameta")`: Spark imports every package whose name begins
with `pyspark_` and registers its `DefaultSource`. Names are loaded when first used, so that the import costs
nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_kafka_meta.reading.source import KafkaMetaDataSource
    from pyspark_kafka_meta.reading.source import KafkaMetaDataSource as DefaultSource

__all__ = ["DefaultSource", "KafkaMetaDataSource"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_kafka_meta.reading.source import KafkaMetaDataSource

    return KafkaMetaDataSource
