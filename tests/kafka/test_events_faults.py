"""Faults of the event sinks never slow the query down, and the next delivered event counts the lost events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafka_meta.events import publisher
from tests.kafka.events_rounds import Rounds, reported_drops, sequences
from tests.kafka.harness import Stream
from tests.marks import thorough_after

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).parents[2]
MOUNTS = ["unshare", "--mount", "--map-root-user"]


def test_an_events_topic_that_is_missing_until_it_is_made(
    kafka: Any,
    make_topic: Any,
    wait_for: Any,
    topic: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "CLIENT", replace(publisher.CLIENT, request_timeout_ms=1000))
    quick = replace(publisher.PRODUCER, delivery_timeout_ms=1000, max_block_ms=1000)
    monkeypatch.setattr(publisher, "PRODUCER", quick)
    for kind in publisher.PAUSES_S:
        monkeypatch.setitem(publisher.PAUSES_S, kind, 0.2)
    missing = f"events-{uuid.uuid4().hex}"
    with closing(Rounds(kafka.bootstrap_servers, topic, tmp_path, eventsTopic=missing)) as stream:

        def loss_is_logged() -> bool:
            stream.play(1)
            return "refresh events not written" in caplog.text

        def loss_is_reported() -> int:
            stream.play(1)
            with closing(Stream(kafka.bootstrap_servers, [missing], tmp_path / "read back")) as events:
                events.run_batch()
                written = [json.loads(row.value) for row in events.rows]
            return reported_drops(sequences(written, stream.cache_id))

        wait_for(loss_is_logged)
        make_topic(name=missing)
        wait_for(loss_is_reported)
        stream.assert_unharmed()


@pytest.mark.parametrize("fault", thorough_after(1, ("full", "read-only")))
def test_an_events_path_on_a_file_system_that_is(fault: str, kafka: Any, topic: str, tmp_path: Path) -> None:
    if subprocess.run([*MOUNTS, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespaces here (unshare)")
    program = [sys.executable, "-m", "tests.kafka.events_rounds"]
    command = [*MOUNTS, *program, kafka.bootstrap_servers, topic, str(tmp_path), fault]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)

    assert done.returncode == 0, done.stderr[-3000:]
    lost = reported_drops([(sequence, dropped) for sequence, dropped in json.loads(done.stdout)])
    assert lost >= 3, "one of each round; a slow broker causes further refreshes"
