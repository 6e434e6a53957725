"""A browser, and pages that the command serves: a demo page for all tests, and pages with other arguments."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).parent.parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_MS = 60_000
"""For a busy machine."""

Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture(scope="session")
def chromium(go_without: Callable[[str], NoReturn]) -> str:
    """Path of the browser."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        go_without("no browser: apt-get install chromium, or name one in CHROMIUM")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        # No sandbox: it does not work for root, which many containers run as. The pages are our own.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=TIMEOUT_MS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """Runs `kafkameta page --port 0` with these arguments inside `with`, and gives its URL. The signal `end_by` must
    end it with exit code 0."""

    @contextmanager
    def serving(*arguments: str, end_by: int = signal.SIGTERM) -> Iterator[str]:
        folder = tmp_path_factory.mktemp("page")
        command = [sys.executable, "-m", "pyspark_kafka_meta", "page", "--port", "0", *arguments]
        env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        env |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
        with (
            (folder / "stderr").open("w") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env, cwd=folder) as process,
        ):
            try:
                assert process.stdout is not None
                url = next((line.strip() for line in process.stdout if line.startswith("http")), None)
                assert url, (folder / "stderr").read_text()[-3000:]
                yield url
                process.send_signal(end_by)
                assert process.wait(60) == 0, (folder / "stderr").read_text()[-3000:]
            finally:
                process.kill()
        assert [path.name for path in folder.iterdir() if path.name.startswith("kafkameta-demo")] == []

    return serving


@pytest.fixture(scope="module")
def demo_url(serve: Serve) -> Iterator[str]:
    """The URL of a page on embedded brokers, whose state tests restore. It runs Spark, so it ends with the module."""
    with serve() as url:
        yield url


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A browser tab. Fails if a request leaves this machine or a script fails."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(TIMEOUT_MS)
    requests: list[str] = []
    errors: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert requests
    assert [url for url in requests if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))] == []
    assert errors == []
