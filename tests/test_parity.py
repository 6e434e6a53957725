"""tests/parity.toml has each case of the tests of Spark's Kafka connector, and names tests that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
SUITES = {"MB": 36, "R": 22, "C": 13, "D": 2, "O": 11, "K": 5, "J": 3, "S": 14}
VERDICTS = {"same", "better", "differs", "not_possible"}
CASES: dict[str, dict[str, Any]] = tomllib.loads((TESTS / "parity.toml").read_text())
COMPARED = "\n".join(file.read_text() for file in sorted((TESTS / "spark").glob("test_parity_*.py")))


def is_compared(case: str) -> bool:
    """Whether a test beside Spark's own source or sink, or a row of its table, has the name of the case."""
    in_name = re.search(rf"^def test_(?:[a-z]+\d+_)*{case.lower()}_", COMPARED, re.MULTILINE)
    return bool(in_name or f'\n    "{case} ' in COMPARED)


def test_every_case_has_one_entry_in_order() -> None:
    assert list(CASES) == [f"{suite}{number}" for suite, count in SUITES.items() for number in range(1, count + 1)]


def test_each_case_is_compared_or_names_tests_that_exist() -> None:
    texts = (file.read_text() for file in TESTS.rglob("test_*.py"))
    names = {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    for name, case in CASES.items():
        verdicts = case.keys() - {"claim", "tests"}
        assert case["claim"] and len(verdicts) <= 1 and verdicts <= VERDICTS, name
        assert set(case.get("tests", ())) <= names, name
        assert case.get("tests") or is_compared(name) or "not_possible" in case, name
