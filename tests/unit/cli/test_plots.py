"""The page's plots of events that another version wrote."""

from __future__ import annotations

from pyspark_kafka_meta.cli.page.plots import timeline
from tests.unit.written_events import made

NOW_MS = 1_800_000_000_000


def test_an_event_without_a_reason_has_a_lane_beside_the_others() -> None:
    events = [made("a" * 32, number, NOW_MS).to_dict() for number in (1, 2)]
    plot = timeline([events[0], {**events[1], "reason": None}], NOW_MS)

    assert plot.options["yAxis"]["data"] == ["max_age", "unknown"]
    assert "unknown 1" in plot.summary
