"""From what the brokers and readers saw to the figures of the table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulation.run import Log


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one variant in one scenario, over a span of it.

    Attributes:
        mean, peak_1_s, peak_10_s: Metadata requests a second at all brokers, in the whole span, its worst second, and
            its worst ten.
        broker_peak_1_s: requests in the worst second of any one broker.
        mean_mb, peak_mb: responses in megabytes a second, in the whole span and its worst second.
        stalls: times that a worker could not fetch a partition.
        heal_mean_ms, heal_p99_ms, heal_worst_ms: how long.
    """

    mean: float
    peak_1_s: int
    peak_10_s: float
    broker_peak_1_s: int
    mean_mb: float
    peak_mb: float
    stalls: int
    heal_mean_ms: float
    heal_p99_ms: float
    heal_worst_ms: float


def figures(log: Log, from_s: float, until_s: float) -> Figures:
    """Of the span [from_s, until_s); seconds are counted from its start."""
    seconds = int(until_s - from_s)
    times = np.array(log.request_s)
    inside = (times >= from_s) & (times < from_s + seconds)
    second = (times[inside] - from_s).astype(np.int64)
    requests = np.bincount(second, minlength=seconds)
    megabytes = np.bincount(second, np.array(log.request_bytes)[inside] / 1e6, minlength=seconds)
    _, by_broker = np.unique(second * 65_536 + np.array(log.request_broker)[inside], return_counts=True)
    heals = np.array(log.heal_s)[np.array(log.stall_s) >= from_s] * 1000
    return Figures(
        mean=round(float(requests.mean()), 1),
        peak_1_s=int(requests.max()),
        peak_10_s=round(float(np.convolve(requests, np.ones(10), "valid").max()) / 10, 1),
        broker_peak_1_s=int(by_broker.max(initial=0)),
        mean_mb=round(float(megabytes.mean()), 2),
        peak_mb=round(float(megabytes.max()), 1),
        stalls=len(heals),
        heal_mean_ms=round(float(heals.mean()), 1) if len(heals) else 0.0,
        heal_p99_ms=round(float(np.percentile(heals, 99)), 1) if len(heals) else 0.0,
        heal_worst_ms=round(float(heals.max(initial=0.0)), 1),
    )


def requests_by_time(log: Log, from_s: float, until_s: float, step_s: int) -> NDArray[np.float64]:
    """Requests a second in each step from `from_s`; a last one that is not whole is left out."""
    steps = np.arange(from_s, until_s + 1e-9, step_s)
    counts, _ = np.histogram(np.array(log.request_s), steps)
    per_second: NDArray[np.float64] = counts / step_s
    return per_second
