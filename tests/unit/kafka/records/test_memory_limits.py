"""Decoding takes at most six times the decompressed size of a record batch and `CONSTANT_MIB`, whatever the batch has
(seven times for header keys that are not UTF-8): rows or a typed error, and never a MemoryError."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.unit.kafka.records.hostile_records import CASES, SLOW_CASES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")


def outcomes(names: list[str], request: pytest.FixtureRequest) -> dict[str, int | str]:
    """The system's allocator counts what is used; Arrow's own reserves 1 GiB of addresses. Since Python 3.12 forks warn
    of Arrow's threads."""
    process = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.unit.kafka.records.hostile_records", *names],
        cwd=request.config.rootpath,
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.stderr == ""
    return dict(map(json.loads, process.stdout.splitlines()))


@pytest.fixture(scope="module")
def fast_outcomes(request: pytest.FixtureRequest) -> dict[str, int | str]:
    return outcomes(list(CASES), request)


@pytest.mark.parametrize("name", CASES)
def test_hostile_sizes_take_bounded_memory(name: str, fast_outcomes: dict[str, int | str]) -> None:
    assert fast_outcomes[name] == CASES[name].outcome


def slow_or_thorough(name: str) -> pytest.MarkDecorator:
    """Millions of headers take longest: for .ci/run, those of CASES must do."""
    return pytest.mark.thorough if name.startswith("many empty headers") else pytest.mark.slow


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow_or_thorough(name)) for name in SLOW_CASES])
def test_hostile_sizes_up_to_the_limit_take_bounded_memory(name: str, request: pytest.FixtureRequest) -> None:
    assert outcomes([name], request) == {name: SLOW_CASES[name].outcome}
