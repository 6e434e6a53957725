"""`kafkameta page` on a demo cluster in a browser: its contents, the effect of each button, accessibility."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(600)]

START_TIMEOUT_MS = 240_000
"""For the start of Spark and its first micro-batch on a busy machine."""
PHONE: ViewportSize = {"width": 390, "height": 844}


def section(page: Page, title: str) -> Locator:
    return page.get_by_role("region", name=title, exact=True)


def broker(page: Page, number: int) -> Locator:
    return section(page, "Cluster").locator(".broker").filter(has=page.get_by_role("heading", name=f"Broker {number}"))


def leader_of(page: Page, partition: str) -> int:
    chip = section(page, "Cluster").locator(".broker").filter(has_text=partition)
    return int(re.findall(r"Broker (\d)", chip.get_by_role("heading").inner_text())[0])


def opened(page: Page, url: str) -> Page:
    """The page, after both executors have read records."""
    page.goto(url)
    for executor in ("executor 0", "executor 1"):
        header = section(page, "What each cache knows").get_by_role("columnheader", name=executor)
        expect(header).to_be_visible(timeout=START_TIMEOUT_MS)
    return page


def press(page: Page, name: str) -> None:
    button = page.get_by_role("button", name=name, exact=True)
    expect(button).to_have_attribute("aria-disabled", "false")
    button.click()


def shoot_for_docs(shown: Page | Locator, name: str) -> None:
    """Takes a picture of the pages in docs if KAFKAMETA_SCREENSHOTS names its folder."""
    if folder := os.environ.get("KAFKAMETA_SCREENSHOTS"):
        path = Path(folder, name)
        shown.screenshot(path=path)
        Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


def test_brokers_and_two_executors_caches_are_shown_beside_the_truth(page: Page, demo_url: str) -> None:
    opened(page, demo_url)

    for number in (1, 2, 3):
        expect(broker(page, number)).to_contain_text("alive")
    row = section(page, "What each cache knows").get_by_role("row", name=re.compile("^clicks-1"))
    expect(row.get_by_role("cell")).to_have_count(4)
    expect(section(page, "Lag by partition")).to_contain_text("clicks-3")
    expect(section(page, "Figures")).to_contain_text("Records a second")


def test_a_leader_that_is_moved_is_seen_to_move_and_heals(page: Page, demo_url: str) -> None:
    opened(page, demo_url)
    old = leader_of(page, "clicks-0")

    press(page, "Move the leader of clicks-0")

    expect(broker(page, old)).not_to_contain_text("clicks-0")
    expect(section(page, "Cluster")).to_contain_text(f"clicks-0 from {old}")
    expect(section(page, "Events")).to_contain_text(f"clicks-0: {old} to")
    expect(page.locator(".status")).to_contain_text(re.compile(r"Last event *\d\d:\d\d:\d\d"))
    expect(section(page, "Lag over time")).to_contain_text(re.compile(r"records, [\d.,]+ s behind now"))


def test_a_killed_broker_is_dead_and_leads_nothing_until_it_is_restored(page: Page, demo_url: str) -> None:
    opened(page, demo_url)
    victim = leader_of(page, "clicks-1")

    press(page, f"Kill broker {victim}")

    expect(broker(page, victim)).to_contain_text("dead")
    expect(broker(page, victim)).to_contain_text("Leads nothing")
    expect(section(page, "Events")).to_contain_text(f"clicks-1: {victim} to")
    press(page, f"Restore broker {victim}")
    expect(broker(page, victim)).to_contain_text("alive")
    expect(broker(page, victim)).to_contain_text("clicks-1")
    expect(section(page, "Events")).to_contain_text(re.compile(rf"clicks-1: \d to {victim}"))
    shoot_for_docs(page, "page-after.png")


def test_what_is_added_appears_and_a_refresh_leaves_an_event_with_its_reason(page: Page, demo_url: str) -> None:
    opened(page, demo_url)

    press(page, "Refresh now")
    expect(section(page, "Events").get_by_role("cell", name="on_demand").first).to_be_visible()
    press(page, "Add a topic")

    expect(section(page, "Cluster")).to_contain_text("clicks-more-1-0")
    expect(section(page, "Events")).to_contain_text("new topics: clicks-more-1")
    expect(section(page, "Lag by partition")).to_contain_text("clicks-more-1-0")


@pytest.mark.kafka
def test_on_kafka_the_query_writes_in_transactions_that_are_shown_also_after_a_broker_died(
    serve: Any, page: Page
) -> None:
    with serve("--cluster", "kafka") as url:
        opened(page, url)
        transactions = section(page, "Transactions")
        expect(transactions).to_contain_text("demo/", timeout=START_TIMEOUT_MS)
        victim = leader_of(page, "copies-1")

        press(page, f"Kill broker {victim}")

        expect(section(page, "Events")).to_contain_text(f"copies-1: {victim} to")
        press(page, f"Restore broker {victim}")
        expect(section(page, "Events")).to_contain_text(re.compile(rf"copies-1: \d to {victim}"))
        expect(transactions).to_contain_text("demo/")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [{"width": 1280, "height": 900}, PHONE], ids=["desktop", "phone"])
def test_everybody_can_use_it(browser: Browser, demo_url: str, size: Any, scheme: Any) -> None:
    with browser.new_context(viewport=size, color_scheme=scheme) as context:
        page = opened(context.new_page(), demo_url)
        found = Axe().run(page).response["violations"]
        width = page.evaluate("document.documentElement.scrollWidth")

    assert [violation["help"] for violation in found if violation["impact"] in ("serious", "critical")] == []
    assert width <= size["width"]
