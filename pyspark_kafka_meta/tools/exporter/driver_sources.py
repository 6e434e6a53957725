"""Where a driver's own queries write their events, and the cluster that they read, by the options that a user gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.events.default_folder import application_folder
from pyspark_kafka_meta.events.origin import driver_name
from pyspark_kafka_meta.options.case_insensitive import CaseInsensitiveMap
from pyspark_kafka_meta.tools.shared.event_sources import EventSource, FolderEvents, open_events

if TYPE_CHECKING:
    from pyspark import SparkContext


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options of the events, for a topic with those of its cluster; and the options of the cluster, `kafka.*`."""
    cluster = {name: value for name, value in options.items() if name.lower().startswith("kafka.")}
    events = {name: value for name, value in options.items() if name not in cluster}
    return {**cluster, **events} if "metricsTopic" in CaseInsensitiveMap(events) else events, cluster


def open_driver_events(options: Mapping[str, str], context: SparkContext | None) -> EventSource:
    """The events where options say, else in the default folder of the driver with this context. Raises OptionError."""
    if options:
        return open_events(options, must_exist=False, skips_unreadable=True)
    if context is None or (jvm := context._jvm) is None:
        raise OptionError("Spark has stopped, and where its queries wrote their events is not known any more")
    jvm_pid = int(jvm.java.lang.ProcessHandle.current().pid())
    return FolderEvents(str(application_folder(driver_name(jvm_pid))), skips_unreadable=True)
