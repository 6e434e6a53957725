"""Which sinks the options ask for."""

from __future__ import annotations

from pathlib import Path

from pyspark_kafka_meta.metadata.refresh_events import Origin
from pyspark_kafka_meta.options import MetricsOptions
from pyspark_kafka_meta.telemetry.background_sink import BackgroundSink
from pyspark_kafka_meta.telemetry.event_folders import DefaultFolder, LocalFolder
from pyspark_kafka_meta.telemetry.event_origin import driver_name
from pyspark_kafka_meta.telemetry.event_publisher import EventPublisher
from pyspark_kafka_meta.telemetry.event_sinks import EventSink, FolderSink
from pyspark_kafka_meta.telemetry.liveness import LivingCaches
from pyspark_kafka_meta.telemetry.remote_folder import RemoteFolder
from pyspark_kafka_meta.telemetry.topic_sink import TopicSink


def new_publisher(options: MetricsOptions | None, origin: Origin) -> EventPublisher:
    """A publisher with sinks of its own. Where the options name none, the events go to a folder for temporary files
    that is named after the driver, as a planner does not know its application. Without options the events go nowhere:
    used by readers of events, which must not emit any."""
    if options is None:
        return EventPublisher((), origin)
    application = options.driver or driver_name()
    sinks: list[EventSink] = []
    if options.path is not None:
        is_uri = "://" in options.path
        sinks.append(FolderSink(RemoteFolder(options.path) if is_uri else LocalFolder(Path(options.path))))
    if options.topic is not None:
        sinks.append(TopicSink(options.bootstrap_servers, options.topic, options.security))
    if not sinks:
        sinks.append(FolderSink(DefaultFolder(application)))
    living = LivingCaches(application, f"{options.path} {options.topic}")
    return EventPublisher([BackgroundSink(sink) for sink in sinks], origin, living)
