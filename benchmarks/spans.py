"""Spans: named stretches of time, which the processes of a query append to files in one folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = "KAFKAMETA_SPANS"
"""Environment variable with the folder. Spark's Python processes have it from the driver."""


class Span(NamedTuple):
    """Times are ms since 1970, of the clock that all processes of a machine share."""

    process: int
    name: str
    start_ms: float
    end_ms: float


def now_ms() -> float:
    return time.time_ns() / 1e6


def record(name: str, start_ms: float) -> None:
    """Append a span that ends now to this process's file. Does nothing without a folder."""
    folder = os.environ.get(FOLDER)
    if folder is not None:
        made = Span(os.getpid(), name, start_ms, now_ms())
        with Path(folder, f"{made.process}.jsonl").open("a") as file:
            file.write(json.dumps(made) + "\n")


@contextmanager
def span(name: str) -> Iterator[None]:
    start_ms = now_ms()
    try:
        yield
    finally:
        record(name, start_ms)


def time_calls(owner: type, method: str, name: Callable[..., str]) -> None:
    """Record a span for each call of a method, with the name that `name` makes of the call's arguments."""
    original = getattr(owner, method)

    @wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with span(name(*args, **kwargs)):
            return original(*args, **kwargs)

    setattr(owner, method, timed)


def recorded(folder: Path) -> list[Span]:
    """The spans of all processes, in the order of their starts."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted((Span(*json.loads(line)) for line in lines), key=lambda each: each.start_ms)
