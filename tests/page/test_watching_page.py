"""`kafkameta page` on events of one's own: watching alone, by whoever opened it and nobody else, until it is told to
end."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.model import RefreshReason
from tests.unit.written_events import learning, made, moving, write

WEBSOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events of two caches, one of which is stale, and of a planner with long names."""
    now_ms, folder = int(time.time() * 1000), tmp_path_factory.mktemp("events")
    planner = Origin(role=Role.PLANNER, executor_id="driver", host="ip-10-0-0-123.eu-central-1.compute.internal", pid=9)
    asked = {"broker_host": "broker-1.kafka.eu-central-1.internal", "reason": RefreshReason.ON_DEMAND}
    other = {"origin": Origin(role=Role.READER, executor_id="2", host="<b>other</b>", pid=9)}
    write(
        folder,
        made("a" * 32, 1, now_ms - 9_000, **learning("clicks", 1, 2, epoch=4)),
        made("b" * 32, 1, now_ms - 9_000, **learning("clicks", 1, 2, epoch=4), **other),
        made("b" * 32, 2, now_ms - 8_000, **moving("clicks", 1, (2, 3), (4, 5)), **other),
        made("c" * 32, 1, now_ms, origin=planner, **asked),
    )
    return folder


@pytest.fixture(scope="module")
def url(serve: Any, events: Path) -> Iterator[str]:
    with serve("--path", str(events)) as url:
        yield url


def status_of(url: str, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_watching_shows_who_is_stale_and_has_no_buttons(page: Page, url: str) -> None:
    page.goto(url)
    row = page.get_by_role("row", name=re.compile("^clicks-1"))

    expect(row).to_contain_text("2@4* stale")
    expect(page.get_by_role("region", name="Events", exact=True)).to_contain_text("<b>other</b>:9")
    expect(page.get_by_role("heading", name="Recovery after errors")).to_be_visible()
    assert page.get_by_role("button").count() == 0


def test_a_reason_is_not_broken_in_its_column(page: Page, url: str) -> None:
    page.goto(url)
    reason = page.get_by_role("cell", name="on_demand", exact=True)
    expect(reason).to_be_visible()

    lines = "cell => { const text = document.createRange(); text.selectNodeContents(cell); return text"
    assert reason.evaluate(f"{lines}.getClientRects().length }}") == 1


@pytest.mark.thorough
def test_of_many_caches_one_finds_those_that_are_stale_by_broker_topic_and_partition(
    serve: Any, page: Page, tmp_path: Path
) -> None:
    """The caches of executors 1 to 20, of which the last alone knows that clicks-1 moved."""
    now_ms = int(time.time() * 1000)
    for number in range(1, 21):
        about = {"origin": Origin(role=Role.READER, executor_id=str(number), host="worker", pid=number)}
        events = [made(f"{number:032x}", 1, now_ms, **learning("clicks", 1, 2, epoch=4), **about)]
        if number == 20:
            events.append(made(f"{number:032x}", 2, now_ms, **moving("clicks", 1, (2, 3), (4, 5)), **about))
        write(tmp_path, *events)
    with serve("--path", str(tmp_path)) as url:
        page.goto(url)
        caches = page.get_by_role("region", name="What each cache knows", exact=True)
        expect(caches.get_by_role("columnheader", name="broker 3")).to_be_visible()
        page.get_by_label("Cache or executor").fill("reader 7")
        page.get_by_role("button", name="Show").click()
        row = caches.get_by_role("row", name="reader 7")
        expect(row).to_contain_text("1 of 2")
        expect(caches.get_by_role("row")).to_have_count(2)
        caches.get_by_role("link", name="broker 3").click()
        caches.get_by_role("link", name="clicks").click()
        expect(row).to_contain_text("2@4* stale")
        assert Axe().run(page).response["violations"] == []


def test_other_names_and_other_sites_are_refused(url: str) -> None:
    assert (status_of(url, "/", {}), status_of(url, WEBSOCKET, UPGRADE)) == (200, 101)
    for header, value in (("Host", "evil.example"), ("Origin", "http://evil.example"), ("Origin", "null")):
        refused = status_of(url, "/", {header: value}), status_of(url, WEBSOCKET, {**UPGRADE, header: value})
        assert refused == (403, 403), (header, value)


@pytest.mark.thorough
@pytest.mark.parametrize("end_by", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_it_ends_at_once_while_somebody_looks_on(serve: Any, page: Page, events: Path, end_by: int) -> None:
    serving: AbstractContextManager[str] = serve("--path", str(events), end_by=end_by)
    with serving as url:
        page.goto(url)
        expect(page.get_by_role("heading", name="Cluster")).to_be_visible()
        began = time.monotonic()

    assert time.monotonic() - began < 40
    with pytest.raises(ConnectionRefusedError):
        status_of(url, "/", {})


@pytest.mark.thorough
def test_brokers_that_do_not_respond_are_told_of_and_do_not_hold_up_the_end(serve: Any, page: Page) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        with serve("--events-topic", "events", "--bootstrap-servers", server) as url:
            page.goto(url)
            expect(page.get_by_text("no broker responded")).to_be_visible(timeout=30_000)
            began = time.monotonic()

        assert time.monotonic() - began < 40
