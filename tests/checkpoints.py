"""Offsets as Spark stores them."""

from __future__ import annotations

import json

from pyspark_kafka_meta.planning.checkpoint_offsets import SourceOffset


def text(offset: SourceOffset) -> str:
    """What is stored and compared."""
    return json.dumps(offset.as_dict())


def parsed(stored: str) -> SourceOffset:
    return SourceOffset.parse(json.loads(stored))


def restored(offset: SourceOffset) -> SourceOffset:
    """As Spark hands it back."""
    return parsed(text(offset))
