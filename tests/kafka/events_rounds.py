"""A reader whose event sink fails, in rounds. As a program it mounts and breaks a file system for the events."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import new_publisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.options import ClientOptions
from tests.kafka.harness import Stream
from tests.unit.written_events import events_in

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
