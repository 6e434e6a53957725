"""Cases of a test that only the workflow runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thorough_after(count: int, cases: Iterable[Any]) -> list[Any]:
    """The cases, of which `make test` runs the first few: the others show the same through the same lines."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough if number >= count else ()
        )
        for number, case in enumerate(cases)
    ]
