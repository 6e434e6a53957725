"""The page's plots as ECharts options, each with a sentence that says the same; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import cycle
from statistics import median
from typing import Any, NamedTuple

from pyspark_kafka_meta.events.event import EventKind, Outcome
from pyspark_kafka_meta.tables.caches_from_events import EventRow
from pyspark_kafka_meta.tools.formatting import UNKNOWN

WINDOW_MS = 180_000
POINTS = 400
"""A plot shows this many points, the newest."""
LAG_WINDOW_MS = 1_800_000
LAG_SAMPLE_MS = 5_000
BLUE, GREY, RED = "#3b77e8", "#8591a3", "#d9534f"
QUERY_COLORS = (BLUE, "#1b9e77", "#b5651d", "#8e5bd0", "#c2417c")
REASON_COLORS = (*QUERY_COLORS, "#c9a227", "#4fb3bf", GREY)
LINES = {"lineStyle": {"color": "rgba(133, 145, 163, 0.3)"}}
"""Visible on light and on dark ground."""
SERIES = {
    Outcome.CHANGED: ("changed", "circle", BLUE),
    Outcome.UNCHANGED: ("unchanged", "rect", GREY),
    Outcome.FAILED: ("failed", "triangle", RED),
}
"""Each outcome has a shape, too."""
WHEN_REFRESHED = "A cache is refreshed after an error, and at kafka.metadata.max.age.ms, five minutes by default."
NO_LAG = (
    "Unknown: start the page with --bootstrap-servers and, for each query, --checkpoint and its checkpointLocation."
)


class Behind(NamedTuple):
    """How far a query is behind; None is unknown, a gap in the plot."""

    records: int | None
    seconds: float | None


class Sample(NamedTuple):
    """The lag of each query at one moment."""

    time_ms: int
    lags: Sequence[Behind]


class Plot(NamedTuple):
    """ECharts options, and the same in words. An empty plot is not drawn: its words say what would fill it."""

    options: dict[str, Any]
    summary: str
    is_empty: bool


def timeline(events: Sequence[EventRow], now_ms: int) -> Plot:
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
    if not recent:
        return Plot(options, f"No event in three minutes. {WHEN_REFRESHED}", True)
    shown = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
    return Plot(options, f"{_count(len(recent), 'event')} in three minutes: {shown}.", False)


def latencies(events: Sequence[EventRow], now_ms: int) -> Plot:
    """The latency of Metadata requests."""
    with_response = [
        event
        for event in _recent(events, now_ms)
        if event["kind"] == EventKind.REFRESH and event["latency_ms"] and event["outcome"] != Outcome.FAILED
    ]
    return _times(with_response, "latency_ms", now_ms, "answer", WHEN_REFRESHED)


def recoveries(events: Sequence[EventRow], now_ms: int) -> Plot:
    """The time from an error to the response that resolved it."""
    healed = [event for event in _recent(events, now_ms) if event["recovery_ms"] is not None]
    return _times(healed, "recovery_ms", now_ms, "recovery", "One follows when a leader moves or a connection is lost.")


def lag(names: Sequence[str], samples: Sequence[Sample], now_ms: int) -> Plot:
    """Records that each query is behind, and the seconds of the one that is furthest behind, with an axis of their own.

    Args:
        names: of the queries, in the order of `Sample.lags`.
    """
    records = [
        _line(name, color, "solid", [[sample.time_ms, sample.lags[number].records] for sample in samples])
        for number, (name, color) in enumerate(zip(names, cycle(QUERY_COLORS), strict=False))
    ]
    seconds = [[sample.time_ms, _furthest(sample)] for sample in samples]
    options = _frame(
        now_ms, _values(), [*records, {**_line("seconds (right)", GREY, "dashed", seconds), "yAxisIndex": 1}]
    )
    options["yAxis"] = [{**options["yAxis"], "minInterval": 1}, {**_values(), "splitLine": {"show": False}}]
    options["legend"] = {"top": 0, "itemWidth": 22, "itemHeight": 9}
    if not any(behind.records is not None for sample in samples for behind in sample.lags):
        return Plot(options, f"Not known yet: {', '.join(names)}." if names else NO_LAG, True)
    options["xAxis"]["min"] = min(samples[0].time_ms, now_ms - WINDOW_MS)
    texts = [_lag_text(name, [sample.lags[number] for sample in samples]) for number, name in enumerate(names)]
    return Plot(options, " ".join(texts), False)


def incident(
    begins_ms: range, counts: Sequence[Mapping[str, int]], stale: Sequence[int], duration: str
) -> tuple[dict[str, Any], str]:
    """The refreshes of each bucket by reason, and the stale caches, with an axis of their own: ECharts options, and the
    same in words.

    Args:
        begins_ms: of the buckets.
        counts: of each bucket, by reason.
        duration: of a bucket, as text.
    """
    totals = sum(map(Counter, counts), Counter[str]())
    middles_ms = [begin_ms + begins_ms.step // 2 for begin_ms in begins_ms]
    bars = [
        {
            "type": "bar",
            "stack": "refreshes",
            "name": reason,
            "color": color,
            "barCategoryGap": "10%",
            "data": [[time_ms, count.get(reason, 0)] for time_ms, count in zip(middles_ms, counts, strict=True)],
        }
        for (reason, _), color in zip(totals.most_common(), cycle(REASON_COLORS), strict=False)
    ]
    line = _line("stale caches (right)", RED, "solid", list(zip(middles_ms, stale, strict=True)))
    options = _frame(begins_ms.stop, _values(), [*bars, {**line, "step": "middle", "yAxisIndex": 1}])
    options["xAxis"]["min"] = begins_ms.start
    options["yAxis"] = [
        {**options["yAxis"], "minInterval": 1},
        {**_values(), "minInterval": 1, "splitLine": {"show": False}},
    ]
    options["legend"] = {"top": 0, "type": "scroll", "itemWidth": 12, "itemHeight": 9}
    by_reason = ", ".join(f"{reason} {count:,}" for reason, count in totals.most_common()) or "none"
    return options, f"Refreshes in each {duration}: {by_reason}. At most {_count(max(stale), 'stale cache')} at once."


def mark(options: dict[str, Any], time_ms: int) -> None:
    """Draw a line at this time."""
    line = {"symbol": "none", "silent": True, "label": {"show": False}, "data": [{"xAxis": time_ms}]}
    style = {"color": GREY, "type": "solid", "width": 2}
    options["series"][-1]["markLine"] = {**line, "lineStyle": style}


def _furthest(sample: Sample) -> float | None:
    known = [behind.seconds for behind in sample.lags if behind.seconds is not None]
    return round(max(known), 1) if len(known) == len(sample.lags) else None


def _lag_text(name: str, lags: Sequence[Behind]) -> str:
    now, known = lags[-1], [behind.records for behind in lags]
    records = UNKNOWN if now.records is None else f"{now.records:,} records"
    seconds = "" if now.seconds is None else f", {now.seconds:,.1f} s"
    most = max((number for number in known if number is not None), default=None)
    return f"{name}: {records}{seconds} behind now{'' if most is None else f', {most:,} records at most'}."


def _times(events: Sequence[EventRow], field: str, now_ms: int, noun: str, follows: str) -> Plot:
    values = [round(event[field], 2) for event in events]
    points = [[event["time_ms"], value] for event, value in zip(events, values, strict=True)]
    options = _frame(now_ms, {**_values(), "name": "ms"}, [_scatter(noun, "circle", BLUE, points)])
    if not values:
        return Plot(options, f"No {noun} in three minutes. {follows}", True)
    typical = f"median {median(values):,.1f} ms, longest {max(values):,.1f} ms"
    return Plot(options, f"{_count(len(values), noun)} in three minutes: {typical}.", False)


def _recent(events: Sequence[EventRow], now_ms: int) -> list[EventRow]:
    return [event for event in events if now_ms - WINDOW_MS < event["time_ms"] <= now_ms][-POINTS:]


def _reason(event: EventRow) -> str:
    return event["reason"] or UNKNOWN


def _count(number: int, noun: str) -> str:
    plural = noun if number == 1 else "recoveries" if noun == "recovery" else f"{noun}s"
    return f"{number} {plural}"


def _frame(now_ms: int, y_axis: Mapping[str, Any], series: list[dict[str, Any]]) -> dict[str, Any]:
    """The page's style sheet sets colours and fonts. Times are of this machine's zone, as the text has them: the
    browser may be in another."""
    offset = datetime.fromtimestamp(now_ms / 1000).astimezone().utcoffset() or timedelta()
    local = f"new Date(time_ms + {offset // timedelta(milliseconds=1)})"
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
            "axisLabel": {":formatter": f"time_ms => {local}.toISOString().slice(11, 19)", "hideOverlap": True},
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
