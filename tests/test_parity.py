"""tests/parity.toml has each case of the tests of Spark's Kafka connector, and names tests that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
SUITES = {"MB": 36, "R": 22, "C": 13, "D": 2, "O": 11, "K": 5, "J": 3, "S": 14}
VERDICTS = {"same", "better", "differs", "not possible"}
CASES: dict[str, dict[str, Any]] = tomllib.loads((TESTS / "parity.toml").read_text())


def test_every_case_has_one_entry_in_order() -> None:
    assert list(CASES) == [f"{suite}{number}" for suite, count in SUITES.items() for number in range(1, count + 1)]


def test_each_case_has_a_verdict_and_names_tests_that_exist() -> None:
    texts = (file.read_text() for file in TESTS.rglob("test_*.py"))
    names = {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.M)}
    for name, case in CASES.items():
        assert case.keys() <= {"claim", "verdict", "remark", "tests"}, name
        assert case["claim"], name
        assert case["verdict"] in VERDICTS, name
        assert set(case["tests"]) <= names, name
        assert case["tests"] or case["verdict"] == "not possible", name
        assert case.get("remark") or case["verdict"] == "same", name
