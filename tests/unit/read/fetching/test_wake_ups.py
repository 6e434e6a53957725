"""A task that reads waits exactly as long as it must: whatever it does not send now, it wakes up for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.kafka.protocol.fetch import FetchResponse
from tests.partitions import T0
from tests.unit.read.fetching.responses import ONE_BATCH, POLL_TIMEOUT_S, change
from tests.unit.scene import Scene, rows

BATCHES = 100
THROTTLE_MS = 20


def throttled(response: FetchResponse) -> FetchResponse:
    return replace(response, throttle_ms=THROTTLE_MS)


@pytest.mark.parametrize("tick_s", [1e-4, 1e-3])
def test_fetch_is_sent_as_soon_as_its_pause_ends(scene: Scene, tick_s: float) -> None:
    """The consumer takes up to a fifth more than a pause for rows, so that pauses end at any step of the loop."""
    scene.fill(batches=BATCHES)
    reader = scene.reader(**ONE_BATCH)
    change(scene, throttled)
    scene.clock.tick_s = tick_s
    began, read = scene.clock.now, 0
    for batch in reader.read([scene.range(T0)]):
        read += batch.num_rows
        scene.clock.sleep(1.2 * THROTTLE_MS / 1000 * (read % 97) / 97)

    assert read == 3 * BATCHES
    assert scene.clock.now - began < BATCHES * 0.1


def test_time_that_the_process_does_not_run_is_no_stall(scene: Scene) -> None:
    """The process stops for longer than the timeout in the pause after an error. The next response takes 50 ms."""
    scene.fill()
    reader = scene.reader()
    fetches = scene.network.fetch
    scene.monkeypatch.setattr(fetches, "_ends_at", lambda node_id: fetches.in_flight[node_id][0].sent_at + 0.05)
    scene.script(T0, ErrorCode.request_timed_out)
    scene.clock.at(0.1, lambda: scene.clock.sleep(2 * POLL_TIMEOUT_S))

    assert len(rows(reader.read([scene.range(T0)]))) == 12
