"""A Kafka source and sink for PySpark without a jar, with refresh events of every executor's metadata cache.

Installing this package is enough for `format("kafkameta")`: Spark imports every package whose name begins
with `pyspark_` and registers its `DefaultSource`. Names are loaded on first use, so that the import is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_kafka_meta.source import KafkaMetaDataSource
    from pyspark_kafka_meta.source import KafkaMetaDataSource as DefaultSource
    from pyspark_kafka_meta.tables.dataframes import brokers, caches, lag, open_transactions, partitions, refresh_events
    from pyspark_kafka_meta.tools.exporter.driver_exporter import start_exporter
    from pyspark_kafka_meta.tools.exporter.query_listener import QueryListener

    __version__: str
    """The version in setup.cfg, as pip recorded it."""

__all__ = [
    "DefaultSource",
    "KafkaMetaDataSource",
    "QueryListener",
    "brokers",
    "caches",
    "lag",
    "open_transactions",
    "partitions",
    "refresh_events",
    "start_exporter",
]
_EXPORTER_MODULES = {"QueryListener": "query_listener", "start_exporter": "driver_exporter"}


def __getattr__(name: str) -> Any:
    if name in ("DefaultSource", "KafkaMetaDataSource"):
        return import_module(f"{__name__}.source").KafkaMetaDataSource
    if name in _EXPORTER_MODULES:
        return getattr(import_module(f"{__name__}.tools.exporter.{_EXPORTER_MODULES[name]}"), name)
    if name in __all__:
        return getattr(import_module(f"{__name__}.tables.dataframes"), name)
    if name == "__version__":
        machine = import_module(f"{__name__}.tools.doctor.machine_checks")
        if (version := machine.version_of(machine.DISTRIBUTION)) is not None:
            return version
        raise AttributeError(f"the version of {__name__} is unknown, because it was not installed by pip")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
