"""`kafkameta page --since`: the list of incidents, the time line of one, and the link to a moment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from pyspark_kafka_meta.tools.page.past_view import moment_text
from tests.page.test_page import PHONE, section
from tests.unit.tools.states import EXECUTOR_2
from tests.unit.written_events import learning, made, moving, write

pytestmark = pytest.mark.slow

THREE_MS = int(datetime(2026, 3, 1, 3, tzinfo=UTC).timestamp() * 1000)
FIRST, SECOND = "a" * 32, "b" * 32


@pytest.fixture(scope="module")
def url(serve: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a page of events: at three t-1 leaves broker 2, which one cache learns 20 seconds later than the other."""
    folder = tmp_path_factory.mktemp("events")
    write(
        folder,
        made(FIRST, 1, THREE_MS - 60_000, **learning("t", 1, 2, epoch=4)),
        made(FIRST, 2, THREE_MS + 20_000, **moving("t", 1, (2, 3), (4, 5))),
        made(SECOND, 1, THREE_MS - 60_000, **learning("t", 1, 2, epoch=4), **EXECUTOR_2),
        made(SECOND, 2, THREE_MS, **moving("t", 1, (2, 3), (4, 5)), **EXECUTOR_2),
    )
    with serve("--path", str(folder), "--since", "2026-03-01T00:00:00+00:00") as url:
        yield url


def test_an_incident_is_opened_and_moved_and_a_link_leads_to_its_moment(url: str, page: Page) -> None:
    page.goto(url)
    row = section(page, "Incidents").get_by_role("row").nth(1)
    expect(row).to_contain_text("20.0 s")
    row.get_by_role("link").click()

    slider, stale = page.get_by_role("slider", name="Moment"), section(page, "Stale caches")
    broker = section(page, "Brokers").locator(".broker")
    expect(stale).to_contain_text("t-1: 2@4, now 3@5")
    expect(broker.nth(1)).to_contain_text("Leads nothing")
    expect(section(page, "Time line")).to_contain_text("At most 1 stale cache at once")
    slider.press("Home")
    expect(broker.nth(1)).to_contain_text("t-1")
    for _ in range(2):
        page.get_by_role("button", name="Next change").click()
    expect(page).to_have_url(re.compile(r"\?at=[-\d]+T[\d:]+:20$"))
    page.reload()
    expect(page.get_by_role("status")).to_have_text(re.compile(":20$"))
    expect(stale).to_contain_text("None")


@pytest.mark.thorough
def test_the_plot_has_the_times_of_the_text_in_a_browser_of_another_zone(url: str, browser: Browser) -> None:
    with closing(browser.new_context(timezone_id="Pacific/Kiritimati")) as context:
        page = context.new_page()
        page.goto(f"{url}?at={moment_text(THREE_MS)}")
        expect(page.locator("figure svg")).to_contain_text(moment_text(THREE_MS)[-8:])


@pytest.mark.thorough
def test_a_time_line_is_played_and_everybody_can_use_it(url: str, page: Page) -> None:
    page.goto(f"{url}?at={moment_text(THREE_MS + 25_000)}")
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    expect(page.get_by_role("status")).to_have_text(re.compile(":30$"))
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("status")).to_have_text(re.compile(":0.$"))
    page.get_by_role("button", name="Pause").click()

    looks: Iterator[Any] = product((url, page.url), ("light", "dark"), (PHONE, {"width": 1280, "height": 900}))
    for address, scheme, size in looks:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        page.goto(address)
        found = Axe().run(page).response["violations"]
        assert [violation["help"] for violation in found if violation["impact"] in ("serious", "critical")] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
