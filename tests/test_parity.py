"""docs/parity.md is true as far as can be told without running: each case has a row, each test it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SUITES = {"MB": 36, "R": 22, "C": 13, "D": 2, "O": 11, "K": 5, "J": 3}
CASES = [f"{suite}{number}" for suite, count in SUITES.items() for number in range(1, count + 1)]
VERDICTS = {"same", "better", "differs", "not possible"}
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in (ROOT / "docs" / "parity.md").read_text().splitlines()
    if re.match(r"\| [A-Z]+\d+ \|", line)
]
TESTS = {
    name
    for file in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
}


def test_every_case_has_one_row_in_order() -> None:
    assert [row[0] for row in ROWS] == CASES


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_row_has_a_verdict_and_names_tests_that_exist(row: list[str]) -> None:
    _, claim, verdict, remark, tests = row
    named = re.findall(r"`(\w+)`", tests)
    assert claim
    assert verdict in VERDICTS
    assert set(named) <= TESTS
    assert named or verdict == "not possible"
    assert remark or verdict == "same"
