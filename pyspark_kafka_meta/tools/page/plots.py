"""The page's plots as ECharts options, each with a sentence that says the same; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from pyspark_kafka_meta.kafka.metadata.refresh_events import EventKind, Outcome
from pyspark_kafka_meta.tables.caches_from_events import Event
from pyspark_kafka_meta.tools.formatting import UNKNOWN

WINDOW_MS = 180_000
POINTS = 400
"""A plot shows this many points, the newest."""
BLUE, GREY, RED = "#3b77e8", "#8591a3", "#d9534f"
LINES = {"lineStyle": {"color": "rgba(133, 145, 163, 0.3)"}}
"""Visible on light and on dark ground."""
SERIES = {
    Outcome.CHANGED: ("changed", "circle", BLUE),
    Outcome.UNCHANGED: ("unchanged", "rect", GREY),
    Outcome.FAILED: ("failed", "triangle", RED),
}
"""Each outcome has a shape, too."""


class Sample(NamedTuple):
    """The query at one moment; `records_behind` is None if unknown, a gap in the plot."""

    time_ms: int
    records_per_s: float
    records_behind: int | None


class Plot(NamedTuple):
    """ECharts options, and the same in words."""

    options: dict[str, Any]
    summary: str


def timeline(events: Sequence[Event], now_ms: int) -> Plot:
    """When events came, a lane for each reason."""
    recent = _recent(events, now_ms)
    counts = Counter(map(_reason, recent))
    lanes = sorted(counts)
    series = [
        _scatter(
            name,
            symbol,
            color,
            [[event["time_ms"], lanes.index(_reason(event))] for event in recent if event["outcome"] == outcome],
        )
        for outcome, (name, symbol, color) in SERIES.items()
    ]
    options = _frame(now_ms, {"type": "category", "data": lanes, "splitLine": {**LINES, "show": True}}, series)
    options["legend"] = {"right": 0, "top": 0, "itemWidth": 12, "itemHeight": 9}
    shown = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
    return Plot(options, f"{_count(len(recent), 'event')} in three minutes{': ' if shown else ''}{shown}.")


def latencies(events: Sequence[Event], now_ms: int) -> Plot:
    """The latency of Metadata requests."""
    with_response = [
        event
        for event in _recent(events, now_ms)
        if event["kind"] == EventKind.REFRESH and event["latency_ms"] and event["outcome"] != Outcome.FAILED
    ]
    return _times(with_response, "latency_ms", now_ms, "answer")


def recoveries(events: Sequence[Event], now_ms: int) -> Plot:
    """The time from an error to the response that resolved it."""
    healed = [event for event in _recent(events, now_ms) if event["recovery_ms"] is not None]
    return _times(healed, "recovery_ms", now_ms, "recovery")


def throughput(samples: Sequence[Sample], now_ms: int) -> Plot:
    """Records a second, and records behind with an axis of their own: there may be far more of them."""
    recent = [sample for sample in samples if sample.time_ms > now_ms - WINDOW_MS]
    rates = _line(
        "records/s (left)", BLUE, "solid", [[sample.time_ms, round(sample.records_per_s)] for sample in recent]
    )
    behind = _line("behind (right)", GREY, "dashed", [[sample.time_ms, sample.records_behind] for sample in recent])
    options = _frame(now_ms, _values(), [rates, {**behind, "yAxisIndex": 1}])
    options["yAxis"] = [options["yAxis"], {**_values(), "splitLine": {"show": False}}]
    options["legend"] = {"right": 0, "top": 0, "itemWidth": 22, "itemHeight": 9}
    if not recent:
        return Plot(options, "Nothing was read yet.")
    last, known = recent[-1], [sample.records_behind for sample in recent if sample.records_behind is not None]
    now = UNKNOWN if last.records_behind is None else f"{last.records_behind:,}"
    most = f", {max(known):,} at most in three minutes" if known else ""
    return Plot(options, f"{last.records_per_s:,.0f} records a second now; {now} behind{most}.")


def _times(events: Sequence[Event], field: str, now_ms: int, noun: str) -> Plot:
    values = [round(event[field], 2) for event in events]
    points = [[event["time_ms"], value] for event, value in zip(events, values, strict=True)]
    options = _frame(now_ms, {**_values(), "name": "ms"}, [_scatter(noun, "circle", BLUE, points)])
    if not values:
        return Plot(options, f"No {noun} in three minutes.")
    typical = f"median {median(values):,.1f} ms, longest {max(values):,.1f} ms"
    return Plot(options, f"{_count(len(values), noun)} in three minutes: {typical}.")


def _recent(events: Sequence[Event], now_ms: int) -> list[Event]:
    return [event for event in events if event["time_ms"] > now_ms - WINDOW_MS][-POINTS:]


def _reason(event: Event) -> str:
    return event["reason"] or UNKNOWN


def _count(number: int, noun: str) -> str:
    plural = noun if number == 1 else "recoveries" if noun == "recovery" else f"{noun}s"
    return f"{number} {plural}"


def _frame(now_ms: int, y_axis: Mapping[str, Any], series: list[dict[str, Any]]) -> dict[str, Any]:
    """The page's style sheet sets colours and fonts."""
    return {
        "animation": False,
        "grid": {"left": 8, "right": 12, "top": 30, "bottom": 4, "containLabel": True},
        "xAxis": {
            "type": "time",
            "min": now_ms - WINDOW_MS,
            "max": now_ms,
            "splitNumber": 4,
            "axisLine": LINES,
            "axisTick": LINES,
            "axisLabel": {"formatter": "{HH}:{mm}:{ss}", "hideOverlap": True},
        },
        "yAxis": {"axisLine": LINES, "axisTick": {"show": False}, **y_axis},
        "series": series,
    }


def _values() -> dict[str, Any]:
    return {"type": "value", "splitNumber": 3, "min": 0, "splitLine": LINES}


def _scatter(name: str, symbol: str, color: str, points: list[list[float]]) -> dict[str, Any]:
    return {"type": "scatter", "name": name, "symbol": symbol, "symbolSize": 8, "color": color, "data": points}


def _line(name: str, color: str, stroke: str, points: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    style = {"type": stroke, "width": 2}
    return {"type": "line", "name": name, "showSymbol": False, "color": color, "lineStyle": style, "data": points}
