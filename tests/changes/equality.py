"""A copy of a table of PostgreSQL equals it after random changes and crashes, by `make changes`.

`KAFKAMETA_CHANGES` is the number of changes.
"""

from __future__ import annotations

import os

import pytest

from tests.changes.history import TIMEOUT_S, History


@pytest.mark.timeout(3 * TIMEOUT_S)
@pytest.mark.parametrize("seed", [pytest.param(0, id="truncated"), pytest.param(1, id="compacted")])
def test_a_copy_equals_the_table_after_crashes(seed: int) -> None:
    History(seed, int(os.environ.get("KAFKAMETA_CHANGES", "300"))).run()
