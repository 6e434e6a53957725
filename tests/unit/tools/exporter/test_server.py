"""The poller goes on whatever fails, and says what failed."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from typer.testing import CliRunner

from pyspark_kafka_meta.errors import AuthenticationError, ConnectError, UnknownTopicError, UnsupportedBrokerError
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.model import Position
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.event_file_reader import EventFile, EventFolder
from pyspark_kafka_meta.tables.rows import LagRow
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.event_sources import FolderEvents
from pyspark_kafka_meta.tools.exporter import metric_table as metrics
from pyspark_kafka_meta.tools.exporter import server
from pyspark_kafka_meta.tools.exporter.server import REFUSED_LOGIN_S, Poller, PollTargets
from tests.checkpoints import text, write_checkpoint
from tests.exporter_process import running
from tests.partitions import T0
from tests.unit.tools.states import lag_row
from tests.unit.written_events import learning, made, write

CLUSTER = {"kafka.bootstrap.servers": "127.0.0.1:1"}


class Brokers:
    """Stand for the cluster: each request raises the error of its source, if it has one.

    Attributes:
        requests: in their order.
    """

    def __init__(self) -> None:
        self.errors: dict[str, Exception] = {}
        self.requests: list[str] = []

    def newest_metadata(self, *_: object) -> Any:
        self._request("cluster")
        return self

    cluster_id = "c"
    topics = ()

    def query_transactions(self, *_: object) -> list[Any]:
        self._request("transactions")
        return []

    def query_lag(self, *_: object) -> list[Any]:
        self._request("lag")
        return []

    def _request(self, source: str) -> None:
        self.requests.append(source)
        if (error := self.errors.get(source)) is not None:
            raise error


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    stand_in = Brokers()
    for name in ("newest_metadata", "query_transactions", "query_lag"):
        monkeypatch.setattr(server, name, getattr(stand_in, name))
    return stand_in


def new_poller(folder: Path, **targets: Any) -> Poller:
    events = FolderEvents(str(folder), skips_unreadable=True)
    return Poller(PollTargets(events=events, **{"cluster": {}, **targets}), interval_s=1.0)


def polled(poller: Poller) -> dict[str, float]:
    """Which sources are up after one more poll."""
    poller.poll()
    return {source: up for (source,), up in poller.readings.numbers[metrics.UP].items()}


def events_read(poller: Poller) -> float:
    return sum(poller.readings.numbers.get(metrics.EVENTS, {}).values())


def caches(poller: Poller) -> float:
    return sum(poller.readings.numbers.get(metrics.CACHES, {}).values())


def test_before_the_first_poll_the_sources_are_down(tmp_path: Path) -> None:
    readings = new_poller(tmp_path, cluster=CLUSTER).readings

    assert set(readings.numbers[metrics.UP].values()) == {0}
    assert metrics.LAST_SUCCESS not in readings.numbers


def test_without_a_cluster_only_events_are_polled(tmp_path: Path) -> None:
    poller = new_poller(tmp_path)
    poller.poll()
    write(tmp_path, made("a" * 32, 1))

    assert polled(poller) == {"events": 1}
    assert events_read(poller) == 1
    assert metrics.STALE_PARTITIONS not in poller.readings.numbers


def test_a_restarted_exporter_knows_the_caches_and_counts_from_zero(tmp_path: Path) -> None:
    now_ms = int(time.time() * 1000)
    write(tmp_path, made("a" * 32, 1, now_ms, **learning("t", 1, 2)))
    poller = new_poller(tmp_path)
    poller.poll()
    first = [caches(poller), events_read(poller)]
    write(tmp_path, made("a" * 32, 2, now_ms))
    poller.poll()
    then = [caches(poller), events_read(poller)]

    assert [first, then] == [[1, 0], [1, 1]]


@pytest.mark.parametrize("failing", ["cluster", "transactions", "lag"])
@pytest.mark.parametrize("error", [ConnectError("nobody there"), ZeroDivisionError()])
def test_a_failing_source_stops_no_other(failing: str, error: Exception, brokers: Brokers, tmp_path: Path) -> None:
    poller = new_poller(tmp_path, cluster=CLUSTER, checkpoints=[checkpoint(tmp_path)])
    poller.poll()
    assert poller.readings.numbers[metrics.OPEN_TRANSACTIONS] == {("",): 0}
    last_success = poller.readings.numbers[metrics.LAST_SUCCESS][failing,]
    brokers.errors[failing] = error
    up = {source: int(source != failing) for source in ("events", "cluster", "transactions", "lag")}

    assert [polled(poller), polled(poller)] == [up, up]
    assert poller.readings.numbers[metrics.ERRORS][failing,] == 2
    assert poller.readings.numbers[metrics.LAST_SUCCESS][failing,] == last_success
    assert (metrics.OPEN_TRANSACTIONS in poller.readings.numbers) is (failing != "transactions"), "not the last"
    brokers.errors.clear()
    assert set(polled(poller).values()) == {1}
    assert poller.readings.numbers[metrics.ERRORS][failing,] == 2


def test_error_is_logged_until_it_changes(brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    poller = new_poller(tmp_path, cluster=CLUSTER)
    for trouble in ("nobody there", "nobody there", "too late"):
        brokers.errors["cluster"] = ConnectError(trouble)
        poller.poll()

    assert [record.getMessage() for record in caplog.records] == [
        "the exporter cannot poll cluster: nobody there",
        "the exporter cannot poll cluster: too late",
    ]


def test_refused_login_is_not_repeated_soon(brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_800_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    poller = new_poller(tmp_path, cluster=CLUSTER, checkpoints=[checkpoint(tmp_path)])
    poller.poll()
    brokers.errors["cluster"] = AuthenticationError("wrong password")
    brokers.requests.clear()

    assert [polled(poller), polled(poller)] == [{"events": 1, "cluster": 0, "transactions": 0, "lag": 0}] * 2
    assert brokers.requests == ["cluster"]
    assert metrics.QUERY_BATCH not in poller.readings.numbers, "what the cluster said before is left out"
    brokers.errors.clear()
    now[0] += REFUSED_LOGIN_S
    assert set(polled(poller).values()) == {1}


def test_brokers_that_list_no_transactions_are_not_asked_again(brokers: Brokers, tmp_path: Path) -> None:
    poller = new_poller(tmp_path, cluster=CLUSTER)
    brokers.errors["transactions"] = UnsupportedBrokerError("too old")

    assert [polled(poller), polled(poller)] == [{"events": 1, "cluster": 1, "lag": 1}] * 2
    assert brokers.requests.count("transactions") == 1


def test_an_unreadable_checkpoint_hides_no_other(brokers: Brokers, tmp_path: Path) -> None:
    poller = new_poller(tmp_path, cluster=CLUSTER, checkpoints=[str(tmp_path / "typo"), checkpoint(tmp_path)])

    assert polled(poller)["lag"] == 0
    assert poller.readings.numbers[metrics.QUERY_BATCH] == {("query-1",): 3}
    assert brokers.requests.count("lag") == 1


def test_error_of_one_query_hides_no_other(brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeout = {"kafka.default.api.timeout.ms": "70000"}
    poller = new_poller(tmp_path, cluster={**CLUSTER, **timeout})
    for query_id in ("a", "b"):
        poller.queries.add(progress(query_id))

    def lag_of_second(options: dict[str, str], offsets: Sequence[SourceOffset]) -> list[LagRow]:
        assert options.items() >= timeout.items(), "the user's"
        brokers.query_lag()
        if brokers.requests.count("lag") == 1:
            raise UnknownTopicError("gone")
        return [lag_row(5, 1.0)]

    monkeypatch.setattr(server, "query_lag", lag_of_second)

    assert polled(poller)["lag"] == 0
    assert poller.readings.numbers[metrics.LAG_RECORDS] == {("b", "t"): 5}


def test_an_error_in_the_figures_shows_all_sources_as_failed(tmp_path: Path) -> None:
    poller = new_poller(tmp_path)
    poller.poll()

    assert poller.on_error(ZeroDivisionError())
    assert poller.readings.numbers[metrics.ERRORS] == {("events",): 1}
    assert poller.readings.numbers[metrics.UP] == {("events",): 0}


def test_an_unreadable_file_delays_only_its_own_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        write(tmp_path, made(f"{number:032x}", 1, int(time.time() * 1000)))
    broken = EventFolder(str(tmp_path)).files()[1]
    lines, is_broken = EventFolder.lines, [True]

    def partly(folder: EventFolder, files: Sequence[EventFile]) -> Iterator[bytes]:
        for file in files:
            if file == broken and is_broken:
                raise PermissionError("access denied")
            yield from lines(folder, [file])

    monkeypatch.setattr(EventFolder, "lines", partly)
    poller = new_poller(tmp_path)

    assert [polled(poller), caches(poller)] == [{"events": 1}, 2]
    assert poller.readings.numbers[metrics.UNREADABLE_FILES] == {(): 1}
    is_broken.clear()
    assert [polled(poller), caches(poller)] == [{"events": 1}, 3]
    assert poller.readings.numbers[metrics.UNREADABLE_FILES] == {(): 0}


def test_a_folder_that_cannot_be_listed_keeps_the_totals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poller = new_poller(tmp_path)
    poller.poll()
    write(tmp_path, made("a" * 32, 1))
    poller.poll()

    def refuse(_: EventFolder) -> list[EventFile]:
        raise PermissionError("access denied")

    monkeypatch.setattr(EventFolder, "files", refuse)
    assert [polled(poller), events_read(poller)] == [{"events": 0}, 1]


def test_events_of_other_applications_are_left_out(tmp_path: Path) -> None:
    poller = new_poller(tmp_path, application_id="app-1")
    poller.poll()
    for number, application in enumerate(("app-1", "app-2", None)):
        write(tmp_path, made(f"{number:032x}", 1, origin=Origin(role=Role.READER, application_id=application)))
    poller.poll()

    assert events_read(poller) == 1


def progress(query_id: str) -> dict[str, Any]:
    offset = text(SourceOffset({T0: Position(4)}, {T0.topic: None}))
    figures = {"name": None, "batchId": 1, "numInputRows": 1, "batchDuration": 1}
    return {"id": query_id, "sources": [{"endOffset": offset}], **figures}


def checkpoint(folder: Path) -> str:
    return write_checkpoint(folder / "checkpoint", {3: SourceOffset({T0: Position(4)}, {T0.topic: None})}, finished=3)


def test_head_is_answered_without_a_body(tmp_path: Path) -> None:
    with closing(server.serve(new_poller(tmp_path), "127.0.0.1", 0)) as served:
        with urlopen(Request(served.url, method="HEAD"), timeout=30) as response:
            head = (response.status, response.headers.get_content_type(), response.read())
        with urlopen(served.url, timeout=30) as response:
            assert b"process_cpu_seconds_total" in response.read()
    assert head == (200, "text/plain", b"")


def test_the_command_serves_until_a_signal_ends_it(tmp_path: Path, wait_for: Callable[..., Any]) -> None:
    with running("--path", str(tmp_path), "--port", "0", "--interval", "0.5") as (process, url):
        wait_for(lambda: b'kafkameta_exporter_up{source="events"} 1.0' in urlopen(url, timeout=30).read())
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=60)

    assert (process.returncode, out, errors) == (0, "", "")


def test_a_taken_port_is_one_line() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["exporter", "--path", "/data", "--port", str(port)])

    assert (result.exit_code, result.stdout) == (1, "")
    assert f"cannot listen on 127.0.0.1, port {port}" in result.stderr


def test_a_missing_library_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(Exception, match=r"the exporter needs a missing package: pip install .*\[exporter\]"):
        server.serve(new_poller(tmp_path), "127.0.0.1", 0)
