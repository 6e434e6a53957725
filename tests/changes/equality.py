"""A copy of a table of PostgreSQL equals it after random changes and crashes, by `make changes`.

`KAFKAMETA_CHANGES` is the number of changes, `KAFKAMETA_SEEDS` has a history each: an odd one compacts the topic, an
even one truncates the table.
"""

from __future__ import annotations

import os

import pytest

from tests.changes.history import TIMEOUT_S, History


@pytest.mark.timeout(3 * TIMEOUT_S)
@pytest.mark.parametrize("seed", [int(seed) for seed in os.environ.get("KAFKAMETA_SEEDS", "0 1").split()])
def test_a_copy_equals_the_table_after_crashes(seed: int) -> None:
    History(seed, int(os.environ.get("KAFKAMETA_CHANGES", "300"))).run()
