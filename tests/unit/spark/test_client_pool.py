"""A worker keeps the clients that queries use, and no others."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_kafka_meta.errors import OtherClusterError
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.options import ClientOptions, EventsOptions, SinkOptions
from pyspark_kafka_meta.spark import client_pool
from pyspark_kafka_meta.spark.client_pool import MAX_CLIENTS, ClientPool
from tests.unit.fake_network import FakeClock

READER = Origin(role=Role.READER)
MAX_AGE_S = 300


class RecordedClient(KafkaClient):
    """Tells whether it was closed."""

    closed = False

    def close(self) -> None:
        super().close()
        self.closed = True


class Worker:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, events: EventsOptions) -> None:
        monkeypatch.setattr(client_pool, "KafkaClient", RecordedClient)
        self.clock = FakeClock()
        self.pool = ClientPool(self.clock)
        self.events = events

    def run(self, query: str, origin: Origin = READER, seconds: float = 0) -> RecordedClient:
        """A task of this query; the client that it got."""
        with self.pool.client(options(query), self.events, origin) as client:
            self.clock.sleep(seconds)
        assert isinstance(client, RecordedClient)
        return client


def is_closed(client: KafkaClient) -> bool:
    assert isinstance(client, RecordedClient)
    return client.closed


def options(query: str) -> ClientOptions:
    return ClientOptions.parse({"kafka.bootstrap.servers": f"{query}:9092"})


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Iterator[Worker]:
    worker = Worker(monkeypatch, EventsOptions(str(tmp_path), None, options("a").bootstrap_servers))
    yield worker
    if worker.pool._timer is not None:
        worker.pool._timer.cancel()


def test_tasks_of_one_query_share_a_client_and_its_events_name_the_task(worker: Worker) -> None:
    first = worker.run("a", replace(READER, batch_id=1))
    second = worker.run("a", replace(READER, batch_id=2))

    assert second is first
    assert second.publisher.origin.batch_id == 2
    assert worker.run("b") is not first


def test_committer_of_a_sink_is_kept_with_its_client_for_any_batch(worker: Worker) -> None:
    def committer(**given: str) -> object:
        options = SinkOptions.parse({"kafka.bootstrap.servers": "a:9092", "kafka.transactional.id": "s", **given})
        with worker.pool.committer(options, Origin(role=Role.COMMITTER)) as committer:
            return committer

    first = committer()

    assert committer(txnAppId="app", txnVersion="7") is first
    assert committer(**{"kafka.transaction.timeout.ms": "60000"}) is not first
    worker.clock.sleep(MAX_AGE_S)
    worker.run("b")  # which closes the client
    assert committer() is not first


def test_queries_with_other_settings_do_not_share_a_client(worker: Worker) -> None:
    connection, events = options("a"), worker.events
    with (
        worker.pool.client(connection, events, READER) as plain,
        worker.pool.client(replace(connection, client_id="other"), events, READER) as other_id,
        worker.pool.client(connection, replace(events, topic="events"), READER) as other_events,
    ):
        assert len({id(client) for client in (plain, other_id, other_events)}) == 3


def test_tasks_that_run_at_the_same_time_do_not_share_a_client(worker: Worker) -> None:
    clients: list[KafkaClient] = []
    all_run = threading.Barrier(4, timeout=30)

    def task() -> None:
        with worker.pool.client(options("a"), worker.events, READER) as client:
            all_run.wait()
            clients.append(client)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(task) for _ in range(4)]:
            done.result(30)

    assert len({id(client) for client in clients}) == 4
    assert worker.run("a") in clients


@pytest.fixture
def threads_that_switch_often() -> Iterator[None]:
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.usefixtures("threads_that_switch_often")
def test_threads_take_each_client_for_one_task_at_a_time_and_lose_none(worker: Worker) -> None:
    used = Counter[KafkaClient]()

    def tasks(first: int) -> None:
        for number in range(first, first + 100):
            with worker.pool.client(options(str(number % 3)), None, READER) as client:
                used[client] += 1
                assert used[client] == 1 and not is_closed(client)
                used[client] -= 1

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(tasks, number) for number in range(8)]:
            done.result(60)

    unused = [entry.client for entry in worker.pool._unused]
    assert len(unused) <= MAX_CLIENTS
    assert set(unused) == {client for client in used if not is_closed(client)}


def test_client_that_no_query_used_for_the_max_age_is_closed(worker: Worker) -> None:
    old, young = worker.run("old"), worker.run("young")
    worker.clock.sleep(MAX_AGE_S - 1)
    assert worker.run("young") is young
    assert not old.closed
    worker.clock.sleep(1)
    worker.run("young")

    assert (old.closed, young.closed) == (True, False)
    assert worker.run("old") is not old


def test_client_that_comes_back_late_is_not_closed_but_used(worker: Worker) -> None:
    client = worker.run("a")
    worker.clock.sleep(10 * MAX_AGE_S)

    assert worker.run("a") is client
    assert not client.closed


def test_idle_time_begins_at_the_end_of_a_task(worker: Worker) -> None:
    slow = worker.run("slow", seconds=2 * MAX_AGE_S)
    worker.run("other")

    assert not slow.closed


def test_of_too_many_clients_the_longest_unused_is_closed(worker: Worker) -> None:
    clients = [worker.run(str(number)) for number in range(MAX_CLIENTS)]
    assert worker.run("0") is clients[0]
    worker.run("ninth")

    assert [client.closed for client in clients] == [False, True, *[False] * (MAX_CLIENTS - 2)]


def test_no_task_fails_where_no_thread_can_start(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    client = worker.run("a")

    assert worker.run("a") is client
    assert not client.closed


def test_client_in_use_is_never_closed(worker: Worker) -> None:
    with ExitStack() as tasks:
        used = [
            tasks.enter_context(worker.pool.client(options(f"used-{number}"), worker.events, READER))
            for number in range(MAX_CLIENTS + 1)
        ]
        worker.clock.sleep(10 * MAX_AGE_S)
        worker.run("another")
        assert not any(client.closed for client in used if isinstance(client, RecordedClient))


def test_child_of_a_fork_has_a_client_of_its_own(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    of_parent = worker.run("a")
    child_pid = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child_pid)
    worker.clock.sleep(10 * MAX_AGE_S)

    assert worker.run("a") is not of_parent
    assert not of_parent.closed


def test_task_that_fails_writes_events_and_returns_its_client(worker: Worker, wait_for: Callable[..., object]) -> None:
    with pytest.raises(RuntimeError, match="task failed"), worker.pool.client(options("a"), worker.events, READER):
        raise RuntimeError("task failed")
    wait_for(lambda: len(list(Path(worker.events.path or "").glob("*.jsonl"))) == 1)
    worker.clock.sleep(MAX_AGE_S)
    worker.run("b")

    assert [entry.key for entry in worker.pool._unused] == [(os.getpid(), options("b"), worker.events)]


def test_a_client_that_met_another_cluster_is_not_kept(worker: Worker) -> None:
    first = worker.run("a")
    with pytest.raises(OtherClusterError), worker.pool.client(options("a"), worker.events, READER):
        raise OtherClusterError("broker-1:9092 belongs to another cluster")

    assert first.closed
    assert worker.run("a") is not first
