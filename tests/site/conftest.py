"""The browser of tests/page."""

from tests.page.conftest import browser, chromium

__all__ = ["browser", "chromium"]
