"""`kafkameta demo`: plays the scenes of tests/scenes.toml on a live stream with two executors."""

from enum import StrEnum


class DemoCluster(StrEnum):
    """The clusters that the demo can start."""

    EMBEDDED = "embedded"
    KAFKA = "kafka"
