"""The site that `make site` has built, in Chromium: links and pictures work, pages fit a phone, and nothing is fetched.

Only `make site` runs this file, whose name is not test_*.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urldefrag

import pytest
from playwright.sync_api import Browser, Page, expect

import pyspark_kafka_meta
from pyspark_kafka_meta import errors, testing

SITE = Path(__file__).parent.parent.parent / "build" / "site"
PAGES = sorted(set(SITE.rglob("*.html")) - {SITE / "404.html"})
REFERENCE = {
    "pyspark_kafka_meta": {*pyspark_kafka_meta.__all__} - {"DefaultSource"},  # another name of KafkaMetaDataSource
    "pyspark_kafka_meta.testing": testing.__all__,
    "pyspark_kafka_meta.errors": [name for name, value in vars(errors).items() if isinstance(value, type)],
}

for_each_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(SITE)))


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The URL of the site, served by this process."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=SITE)) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(params=[1280, 390], ids=["desktop", "phone"])
def tab(browser: Browser, site: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A browser tab. Fails if a page needs another host or reports an error in the console."""
    page = browser.new_page(base_url=site, viewport={"width": request.param, "height": 900})
    requests: list[str] = []
    messages: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: messages.append(str(error)))
    yield page
    page.close()
    assert requests
    assert [url for url in requests if not url.startswith((site, "data:", "blob:"))] == []
    assert messages == []


@for_each_page
def test_page_fits_the_screen_and_shows_its_pictures(tab: Page, path: Path) -> None:
    tab.goto(f"/{path.relative_to(SITE)}")

    assert tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert tab.evaluate("[...document.images].filter(image => !image.naturalWidth).map(image => image.src)") == []


@for_each_page
def test_links_lead_to_files_and_anchors_of_the_site(path: Path) -> None:
    links = [urldefrag(unquote(link)) for link in re.findall(r'(?:href|src)="([^"]+)"', path.read_text())]

    for link, anchor in links:
        if not re.match(r"https?:|data:|mailto:", link):
            target = path.parent / link if link else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), link
            assert not anchor or f'id="{anchor}"' in target.read_text(), f"{link}#{anchor}"


@pytest.mark.parametrize("typed", ["kafka.transactional.id", "transactional.id"])
def test_search_finds_an_option(tab: Page, typed: str) -> None:
    tab.goto("/")
    tab.keyboard.press("/")
    tab.locator(".md-search__input").press_sequentially(typed)  # it listens to keys

    expect(tab.locator(".md-search-result__link").first).not_to_have_attribute("href", re.compile("/examples/"))
    found = tab.locator(".md-search-result__link[href*='/options/']")
    expect(found.first).to_be_visible()
    found.first.click()
    expect(tab.locator("li:has-text('kafka.transactional.id')").first).to_be_visible()


@pytest.mark.parametrize("module", REFERENCE)
def test_reference_describes_every_public_name(module: str) -> None:
    reference = (SITE / "api" / "index.html").read_text()

    assert [name for name in REFERENCE[module] if f'id="{module}.{name}"' not in reference] == []
