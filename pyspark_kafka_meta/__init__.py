"""A Kafka source and sink for PySpark without a jar, with refresh events of every executor's metadata cache.

Installing this package is enough for `format("kafkameta")`: Spark imports every package whose name begins
with `pyspark_` and registers its `DefaultSource`. Names are loaded on first use, so that the import is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_kafka_meta.arrow_reader import read_arrow
    from pyspark_kafka_meta.changes.apply import apply_changes
    from pyspark_kafka_meta.source import KafkaMetaDataSource
    from pyspark_kafka_meta.source import KafkaMetaDataSource as DefaultSource
    from pyspark_kafka_meta.tables.readers import (
        brokers,
        caches,
        lag,
        leader_changes,
        open_transactions,
        partitions,
        refresh_events,
    )
    from pyspark_kafka_meta.tools.exporter.driver import QueryListener, start_exporter
    from pyspark_kafka_meta.tools.lineage import LineageListener
    from pyspark_kafka_meta.tools.tracing import TraceListener

    __version__: str
    """The version in setup.cfg, as pip recorded it."""

__all__ = [
    "DefaultSource",
    "KafkaMetaDataSource",
    "LineageListener",
    "QueryListener",
    "TraceListener",
    "apply_changes",
    "brokers",
    "caches",
    "lag",
    "leader_changes",
    "open_transactions",
    "partitions",
    "read_arrow",
    "refresh_events",
    "start_exporter",
]

_PACKAGES = {
    "tools.exporter.driver": "prometheus_client",
    "tools.tracing": "opentelemetry",
    "tools.lineage": "openlineage",
}
"""By module a package of the extra that has all that the module imports."""


def _imported(module: str, name: str) -> Any:
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        from pyspark_kafka_meta.extras import EXTRAS, install_command, missing_extra

        package = str(error.name).partition(".")[0]
        if package == "pyspark":
            raise ImportError(
                "pyspark is missing, or older than 4.0: use the Python of a Spark 4.0 or later, or "
                + install_command(package)
            ) from error
        if package in EXTRAS:
            raise ImportError(missing_extra(f"{__name__}.{name}", _PACKAGES.get(module, package))) from error
        raise


def __getattr__(name: str) -> Any:
    if name in ("DefaultSource", "KafkaMetaDataSource"):
        return _imported("source", "KafkaMetaDataSource")
    if name in ("QueryListener", "start_exporter"):
        return _imported("tools.exporter.driver", name)
    if name == "TraceListener":
        return _imported("tools.tracing", name)
    if name == "LineageListener":
        return _imported("tools.lineage", name)
    if name == "apply_changes":
        return _imported("changes.apply", name)
    if name == "read_arrow":
        return _imported("arrow_reader", name)
    if name in __all__:
        return _imported("tables.readers", name)
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("pyspark-kafka-meta")
        except metadata.PackageNotFoundError:
            raise AttributeError(f"the version of {__name__} is unknown, because it was not installed by pip") from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
