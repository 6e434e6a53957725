"""Listeners of a driver read the events of its queries from their topic."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.tools.query_listeners import DriverEvents
from tests.unit.written_events import made

pytestmark = pytest.mark.kafka


def test_what_was_written_before_a_listener_was_created_is_not_fetched(
    kafka: Any, make_topic: Callable[..., str], produce: Callable[..., list[int]]
) -> None:
    topic, now_ms = make_topic(), int(time.time() * 1000)
    origin = Origin(role=Role.READER, query_id="q")
    later = [json.dumps(made("a" * 32, number, now_ms + 60_000, origin=origin).to_dict()) for number in (1, 2)]
    produce(topic, [{"value": later[0], "timestamp": now_ms - 3_600_000}], partition=0)
    events = DriverEvents({"eventsTopic": topic, "kafka.bootstrap.servers": kafka.bootstrap_servers})
    events.query_ids.add("q")
    assert events.read() == []

    produce(topic, [later[1]], partition=0)
    assert [event["sequence"] for event in events.read() or ()] == [2]
    assert events._source is not None
    events._source.close()  # which a driver leaves to its end
