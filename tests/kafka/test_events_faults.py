"""Faults of the event sinks never slow the query down, and the next delivered event counts the lost events."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation

from pyspark_kafka_meta.events import sinks, topic_sink
from tests.kafka.events_rounds import Rounds, reported_drops, sequences
from tests.kafka.harness import Stream
from tests.kafka.secured_kafka import SecuredKafka
from tests.marks import thorough_after
from tests.unit.written_events import events_in

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).parents[2]
MOUNTS = ["unshare", "--mount", "--map-root-user"]


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the timeouts and pauses of the topic sink for events."""
    monkeypatch.setattr(topic_sink, "CLIENT", replace(topic_sink.CLIENT, request_timeout_ms=1000))
    quick = replace(topic_sink.PRODUCER, delivery_timeout_ms=1000, max_block_ms=1000)
    monkeypatch.setattr(topic_sink, "PRODUCER", quick)
    for kind in topic_sink.PAUSES_S:
        monkeypatch.setitem(topic_sink.PAUSES_S, kind, 0.2)


@pytest.fixture
def play(kafka: Any, topic: str, tmp_path: Path) -> Iterator[Callable[..., Rounds]]:
    """Opens a stream on real brokers. `event_options` are its options for events."""
    streams: list[Rounds] = []

    def open_stream(**event_options: str) -> Rounds:
        streams.append(Rounds(kafka.bootstrap_servers, topic, tmp_path, **event_options))
        return streams[-1]

    yield open_stream
    for stream in streams:
        stream.close()


@pytest.fixture
def read_topic(tmp_path: Path) -> Callable[[str, str], list[dict[str, Any]]]:
    """Reads all events of a topic."""

    def read(bootstrap_servers: str, topic: str) -> list[dict[str, Any]]:
        with closing(Stream(bootstrap_servers, [topic], tmp_path / "read back")) as stream:
            stream.run_batch()
            return [json.loads(row.value) for row in stream.rows]

    return read


def play_until_loss(stream: Rounds, wait_for: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Play rounds until a warning reports a lost event."""

    def loss_is_logged() -> bool:
        stream.play(1)
        return "did not reach topic" in caplog.text

    wait_for(loss_is_logged)


@pytest.mark.usefixtures("short_timeouts")
def test_an_events_topic_that_is_missing_until_it_is_made(
    kafka: Any,
    play: Callable[..., Rounds],
    read_topic: Any,
    make_topic: Any,
    wait_for: Any,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    missing = f"events-{uuid.uuid4().hex}"
    stream = play(eventsTopic=missing)
    play_until_loss(stream, wait_for, caplog)
    make_topic(name=missing)

    def loss_is_reported() -> int:
        stream.play(1)
        return reported_drops(sequences(read_topic(kafka.bootstrap_servers, missing), stream.cache_id))

    wait_for(loss_is_reported)
    stream.assert_unharmed()


@pytest.mark.thorough
@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize("secured", ["SASL_PLAINTEXT"], indirect=True)
def test_an_events_topic_that_the_user_may_not_write_to(
    secured: SecuredKafka, tmp_path: Path, read_topic: Any, wait_for: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Alice has all ACLs for topics with the prefix events-."""
    source, private = f"events-source-{uuid.uuid4().hex}", f"private-{uuid.uuid4().hex}"
    secured.create_topic(source)
    secured.create_topic(private)
    open_servers = secured.kafka.admin_servers
    options = secured.options(eventsTopic=private)
    with closing(Rounds(secured.servers, source, tmp_path, open_servers, **options)) as stream:
        play_until_loss(stream, wait_for, caplog)
        assert "TOPIC_AUTHORIZATION_FAILED" in caplog.text
        secured.allow("alice", AclOperation.WRITE, private)

        def loss_is_reported() -> int:
            stream.play(1)
            return reported_drops(sequences(read_topic(open_servers, private), stream.cache_id))

        wait_for(loss_is_reported)
        stream.assert_unharmed()


@pytest.mark.thorough
@pytest.mark.parametrize("responds", [False, True], ids=["dead port", "silent port"])
def test_an_events_cluster_that_is_never_there(play: Callable[..., Rounds], responds: bool) -> None:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        if responds:
            port.listen()
        stream = play(eventsTopic="events", eventsBootstrapServers=f"127.0.0.1:{port.getsockname()[1]}")
        rounds = 30
        stream.play(rounds)
        stream.assert_unharmed()
        waited_s = sum(min(seconds, sinks.WAIT_S) for seconds in stream.waited_s)  # the machine may pause
        assert waited_s < rounds * sinks.WAIT_S / 2, "one wait per role, not per round"


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


def test_an_events_path_with_a_file_in_the_way(play: Callable[..., Rounds], tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.write_text("")
    stream = play(eventsPath=str(folder))
    stream.play(3)
    folder.unlink()
    stream.play(3)
    stream.assert_unharmed()
    assert reported_drops(sequences(events_in(folder), stream.cache_id)) > 3, "the birth event too"


def test_an_events_path_that_is_removed_while_the_query_runs(play: Callable[..., Rounds], tmp_path: Path) -> None:
    folder = tmp_path / "events"
    stream = play(eventsPath=str(folder))
    stream.play(3)
    before = sequences(events_in(folder), stream.cache_id)
    shutil.rmtree(folder)
    stream.play(3)
    stream.assert_unharmed()
    after = sequences(events_in(folder), stream.cache_id)
    assert [sequence for sequence, _ in before + after] == list(range(1, len(before + after) + 1)), (
        "the folder is recreated"
    )
    assert sum(dropped for _, dropped in after) == 0
