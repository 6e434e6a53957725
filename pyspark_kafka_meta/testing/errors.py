"""The error of the test clusters."""

from __future__ import annotations

from pyspark_kafka_meta.errors import KafkaMetaError


class ClusterError(KafkaMetaError):
    """A test cluster cannot be started or driven: the text says what is missing, or shows the end of a node's log."""
