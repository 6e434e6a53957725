"""tests/parity.toml has each case of the tests of Spark's Kafka connector, and names tests that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
SUITES = {"MB": 36, "R": 22, "C": 13, "D": 2, "O": 11, "K": 5, "J": 3, "S": 14}
VERDICTS = {"same", "better", "differs", "not possible"}
CASES: dict[str, dict[str, Any]] = tomllib.loads((TESTS / "parity.toml").read_text())
TEST_NAMES = {
    name for file in TESTS.rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
}


def test_every_case_has_one_entry_in_order() -> None:
    assert list(CASES) == [f"{suite}{number}" for suite, count in SUITES.items() for number in range(1, count + 1)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_case_has_a_verdict_and_names_tests_that_exist(case: dict[str, Any]) -> None:
    assert case.keys() <= {"claim", "verdict", "remark", "tests"}
    assert case["claim"]
    assert case["verdict"] in VERDICTS
    assert set(case["tests"]) <= TEST_NAMES
    assert case["tests"] or case["verdict"] == "not possible"
    assert case.get("remark") or case["verdict"] == "same"
