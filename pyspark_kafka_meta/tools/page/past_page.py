"""The page of the past in one browser: the list of incidents, or the time line of one. The address names the moment."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

from nicegui import ui

from pyspark_kafka_meta.model import name_partitions
from pyspark_kafka_meta.tools.formatting import UNKNOWN
from pyspark_kafka_meta.tools.page import plots
from pyspark_kafka_meta.tools.page.history import History, Past, during
from pyspark_kafka_meta.tools.page.past_view import (
    TimeLine,
    changes_view,
    epoch_ms,
    incident_at,
    link,
    linked_incidents,
    moment_of,
    moment_text,
    news_between,
    stale_counts,
    time_line,
)
from pyspark_kafka_meta.tools.page.ui import CSS, button, figure, render, section, tag

PLAY_S = 0.3
"""Between two buckets of a time line: half a minute for most."""


def draw_past(past: Past, at: str, cluster: str) -> None:
    """Draw the time line of the incident with the moment `at`, a local time; without one the list of incidents.

    Args:
        cluster: id; empty for any.
    """
    ui.add_css(CSS)
    tag("h1", "Incidents of Kafka metadata caches")
    missing = f"; {past.events_missing:,} are missing, lost or deleted" if past.events_missing else ""
    zone = "/".join(dict.fromkeys(time.tzname))  # an incident may be of summer, and the page of winter
    tag("p", f"{past.events:,} events of {past.place}{missing}. Times are local ({zone}).").classes("subtitle")
    try:
        at_ms = epoch_ms(datetime.fromisoformat(at))
    except (ValueError, OverflowError):
        at_ms = 0
    if (found := incident_at(past, at_ms, cluster)) is None:
        with ui.element("div").classes("grid"), section("incidents", "Incidents"):
            ui.html(render("incidents", view=linked_incidents(past), events=past.events, at=at))
        return
    incident, changes = found
    with tag("p"):
        tag("a", "All incidents").props('href="/"')
    if len(past.histories) > 1:
        tag("p", f"Cluster {incident.cluster_id or UNKNOWN}")
    history = past.histories.get(incident.cluster_id) or next(iter(past.histories.values()))
    line = time_line(incident, changes)
    moments = PastMoments(history, line, lambda time_ms: link(past, time_ms, incident.cluster_id))
    with ui.element("div").classes("grid"), section("changes", "Leader changes of this incident"):
        ui.html(render("changes", view=changes_view(past, changes)))
    moments.move(at_ms)


class PastMoments:
    """A time line, and the cluster at one of its moments.

    Args:
        link: returns the address of a moment.
    """

    def __init__(self, history: History, line: TimeLine, link: Callable[[int], str]) -> None:
        span = line.from_ms, line.until_ms
        self._history = history._replace(led=during(history.led, *span), stale=during(history.stale, *span))
        self._line = line
        self._link = link
        self._news_ms = news_between(self._history, line)
        self._at_ms = line.from_ms
        with ui.element("div").classes("grid"), section("line", "Time line"):
            self._chart, caption = figure("line", "plot lanes")
            options, summary = self._plot()
            caption.set_text(summary)
            self._chart.options.update(options)
            self._draw_controls()
        self._moment = ui.html()
        self._timer = ui.timer(PLAY_S, self._play_on, active=False)

    def move(self, at_ms: int) -> None:
        """Show the cluster at this moment."""
        self._at_ms = at_ms = min(max(at_ms, self._line.from_ms), self._line.until_ms)
        local = datetime.fromtimestamp(at_ms / 1000)
        self._slider.props(f'value={at_ms} aria-valuetext="{local:%H:%M:%S}"')
        self._time.set_text(moment_text(at_ms).replace("T", " "))
        plots.mark(self._chart.options, at_ms)
        self._chart.update()
        moment = moment_of(self._history, at_ms, self._line.bucket_ms)
        values = {"leaderless": name_partitions(moment.leaderless), "bucket": self._line.bucket_text()}
        self._moment.set_content(render("moment", moment=moment, **values))

    def _plot(self) -> tuple[dict[str, Any], str]:
        line, begins_ms, counts = self._line, self._line.buckets(), []
        for begin_ms in begins_ms:
            counts.append(Counter[str]())
            ended = self._history.refreshes_between(begin_ms - 1, begin_ms + line.bucket_ms - 1)
            for (reason, _), number in ended.items():
                counts[-1][reason] += number
        return plots.incident(begins_ms, counts, stale_counts(self._history.stale, line), line.bucket_text())

    def _draw_controls(self) -> None:
        line = self._line
        with ui.element("div").classes("timeline-controls"):
            self._slider = ui.element("input").props(f'type="range" aria-label="Moment" step={line.bucket_ms // 10}')
            self._slider.props(f"min={line.from_ms} max={line.until_ms}")
            number = "event => emit(Number(event.target.value))"
            self._slider.on("input", lambda event: self.move(int(event.args)), throttle=0.1, js_handler=number)
            self._slider.on("change", lambda event: self._go(int(event.args)), js_handler=number)
            button("Previous change", lambda: self._jump(bisect_left(self._news_ms, self._at_ms) - 1))
            self._play = button("Play", self._play_or_pause)
            button("Next change", lambda: self._jump(bisect_right(self._news_ms, self._at_ms)))
            self._time = tag("output").props('aria-live="off"')  # the slider tells

    def _jump(self, number: int) -> None:
        """To one of the moments with news, if there is such a moment."""
        if 0 <= number < len(self._news_ms):
            self._go(self._news_ms[number])

    def _go(self, at_ms: int) -> None:
        """Browsers refuse to keep more than three addresses a second: not while playing or sliding."""
        self.move(at_ms)
        ui.navigate.history.replace(self._link(self._at_ms))

    def _play_or_pause(self) -> None:
        if self._at_ms >= self._line.until_ms and not self._timer.active:
            self.move(self._line.from_ms)
        self._set_playing(not self._timer.active)

    def _play_on(self) -> None:
        self.move(self._at_ms + self._line.bucket_ms)
        if self._at_ms >= self._line.until_ms:
            self._set_playing(False)

    def _set_playing(self, is_playing: bool) -> None:
        self._timer.active = is_playing
        self._play.set_text("Pause" if is_playing else "Play")
        self._go(self._at_ms)
