"""CPU times to compare with each other, whatever the machine and its load."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise


def least_cpu_s(call: Callable[[], object], times: int = 3) -> float:
    """The CPU time of the fastest of so many calls."""
    ended = [time.process_time()]
    for _ in range(times):
        call()
        ended.append(time.process_time())
    return min(after - before for before, after in pairwise(ended))
