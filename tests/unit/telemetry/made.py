"""Events for the tests of what takes them out."""

from __future__ import annotations

from pyspark_kafka_meta.metadata.events import EventKind, Outcome, RefreshEvent, RefreshReason


def event(sequence: int) -> RefreshEvent:
    """A refresh by age that found nothing new."""
    return RefreshEvent(
        cache_id="c0ffee",
        sequence=sequence,
        time_ms=1_700_000_000_000,
        kind=EventKind.REFRESH,
        reason=RefreshReason.MAX_AGE,
        cause_error_code=0,
        cause_topic=None,
        cause_partition=None,
        cause_node_id=None,
        outcome=Outcome.UNCHANGED,
        generation_before=1,
        generation_after=2,
        age_ms=1.5,
        idle_ms=0.0,
        lookups=0,
    )
