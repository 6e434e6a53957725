"""The programs of Prometheus."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import NoReturn

import pytest


@pytest.fixture(scope="session")
def find_program(go_without: Callable[[str], NoReturn]) -> Callable[[str], str]:
    def find(name: str) -> str:
        found = shutil.which(name)
        if found is None:
            go_without(f"no {name}: apt-get install --no-install-recommends prometheus")
        return found

    return find


@pytest.fixture(scope="session")
def promtool(find_program: Callable[[str], str]) -> str:
    return find_program("promtool")


@pytest.fixture(scope="session")
def prometheus(find_program: Callable[[str], str]) -> str:
    return find_program("prometheus")
