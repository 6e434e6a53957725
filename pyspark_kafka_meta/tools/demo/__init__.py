"""`kafkameta demo`: plays scenes of tests/scenes.toml on a live stream with two executors."""

from enum import StrEnum

TOO_BUSY = "this machine is too busy: stop other programs, and start the demo again"


class DemoCluster(StrEnum):
    """The clusters that the demo can start."""

    EMBEDDED = "embedded"
    KAFKA = "kafka"
