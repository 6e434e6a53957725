"""Skips where PostgreSQL is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest
from postgres import find_programs

from pyspark_kafka_meta.testing import ClusterError


@pytest.fixture(autouse=True, scope="session")
def needs_postgres(go_without: Callable[[str], NoReturn]) -> None:
    try:
        find_programs()
    except ClusterError as error:
        go_without(str(error))
