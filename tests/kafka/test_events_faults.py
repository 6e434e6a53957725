"""Faults of the event sinks never slow the query down, and the next delivered event counts the lost events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from pyspark_kafka_meta.events import publisher
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import new_publisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.options import ClientOptions
from tests.kafka.harness import Stream
from tests.marks import thorough_after
from tests.unit.written_events import events_in

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


Sequences = list[tuple[int, int]]
"""Sequence and `dropped_before` of each delivered event, in order."""


class Rounds(Stream):
    """A stream of one topic. Each round writes a record, refreshes the reader's cache and reads a batch."""

    def __init__(self, bootstrap_servers: str, topic: str, folder: Path, **options: str) -> None:
        self.waited_s: list[float] = []
        self._topic, self._written = topic, 0
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0})
        super().__init__(bootstrap_servers, [topic], folder, **options)

    @property
    def cache_id(self) -> str:
        return self.reader_client.cache_id

    def play(self, rounds: int) -> None:
        """Play rounds, then wait until the event sinks are idle."""
        for _ in range(rounds):
            self._producer.produce(self._topic, str(self._written))
            assert self._producer.flush(30) == 0
            self._written += 1
            self.reader_client.cache.refresh(RefreshReason.ON_DEMAND, time.monotonic() + 30)
            self.run_batch()
        self.settle()

    def assert_unharmed(self) -> None:
        """Every record was read, and no flush delayed its batch. A flush may wait 0.2 s, or seconds on a slow machine.
        Kafka's producer would wait 30 s."""
        assert sorted(int(row.value) for row in self.rows) == list(range(self._written))
        assert max(self.waited_s) < 10

    def _client(self, role: Role, options: ClientOptions) -> KafkaClient:
        publisher = new_publisher(self._options.events, Origin(role=role))
        flush = publisher.flush

        def timed_flush() -> None:
            began = time.monotonic()
            flush()
            self.waited_s.append(time.monotonic() - began)

        publisher.flush = timed_flush  # type: ignore[method-assign]
        return KafkaClient(options, publisher)


def sequences(events: Iterable[Mapping[str, Any]], cache_id: str) -> Sequences:
    """Distinct, because a record whose acknowledgement was lost may be written twice."""
    return sorted({(event["sequence"], event["dropped_before"]) for event in events if event["cache_id"] == cache_id})


def reported_drops(found: Sequences) -> int:
    """The number of missing events, or 0 while the delivered events do not report the same number."""
    missing = found[-1][0] - len(found) if found else 0
    return missing if missing == sum(dropped for _, dropped in found) else 0


def main(servers: str, topic: str, folder: str, fault: str) -> None:
    """Play in a mount namespace of this process. Prints the sequences of the events as JSON."""
    events = Path(folder)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
    subprocess.run(mount, check=True)
    break_it, mend_it = FAULTS[fault]
    stream = Rounds(servers, topic, events, eventsPath=folder)
    stream.play(3)
    break_it(events)
    stream.play(3)
    mend_it(events)
    stream.play(3)
    stream.close()
    stream.assert_unharmed()
    print(json.dumps(sequences(events_in(events), stream.cache_id)))  # noqa: T201


def remount(how: str) -> Callable[[Path], None]:
    def mount(folder: Path) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)

    return mount


def fill(folder: Path) -> None:
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


FAULTS: Mapping[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "read-only": (remount("ro"), remount("rw")),
    "full": (fill, lambda folder: (folder / "ballast").unlink()),
}

if __name__ == "__main__":
    main(*sys.argv[1:])
