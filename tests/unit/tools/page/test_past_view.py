"""What the page of the past shows: incidents with links, and the cluster at a moment, the worst first."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest

from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, PartitionLearned, SnapshotChanges
from pyspark_kafka_meta.tools.page import plots
from pyspark_kafka_meta.tools.page.history import History, Past, past_of
from pyspark_kafka_meta.tools.page.past_view import (
    CHANGES_SHOWN,
    LATE_MS,
    MARGIN_MS,
    STALE_SHOWN,
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
from pyspark_kafka_meta.tools.page.ui import render
from pyspark_kafka_meta.tools.page.view_model import LEADS_SHOWN
from tests.partitions import T0
from tests.unit.cache_events import Cache

THREE_MS = 1_800_000_000_000
SECOND_MS = 1_000


def caches(count: int, partitions: int = 1, slow: int = 0) -> list[Cache]:
    """Caches that learn at three that broker 1 has lost all partitions; the `slow` first learn it later, the first of
    them last."""
    made = []
    for number in range(count):
        cache = Cache(f"cache-{number:02}")
        learned = tuple(PartitionLearned("t", each, 1, 4) for each in range(partitions))
        cache.event(THREE_MS - 60_000, SnapshotChanges(partitions_learned=learned))
        changes = tuple(LeaderChange("t", each, 1, 2, 4, 5) for each in range(partitions))
        late_ms = SECOND_MS * (slow - number) if number < slow else 0
        cache.event(THREE_MS + late_ms, SnapshotChanges(leaders_changed=changes), reason="not_leader", retries=2)
        made.append(cache)
    return made


def past(*of: Cache) -> Past:
    return past_of("/data/events", (event for cache in of for event in cache.events), 10**12)


def history(*of: Cache) -> History:
    return past(*of).histories["cluster"]


@pytest.mark.parametrize(
    ("lasted_ms", "bucket_ms"), [(0, 1_000), (90_000, 1_000), (130_000, 2_000), (10**7, 300_000), (10**9, 14_400_000)]
)
def test_a_time_line_has_whole_buckets_and_seldom_more_than_120(lasted_ms: int, bucket_ms: int) -> None:
    cache = Cache("c")
    cache.learns(THREE_MS - 60_000, 0, 1)
    times_ms = [*range(THREE_MS + 7, THREE_MS + 7 + lasted_ms, 100_000), THREE_MS + 7 + lasted_ms]
    for epoch, time_ms in enumerate(times_ms):
        cache.moves(time_ms, (epoch, 1), (epoch + 1, 1))
    ((incident, changes),) = past(cache).incidents
    line = time_line(incident, changes)

    assert line.bucket_ms == bucket_ms
    assert line.from_ms <= THREE_MS + 7 - MARGIN_MS
    assert line.until_ms >= THREE_MS + 7 + lasted_ms + MARGIN_MS
    assert (line.until_ms - line.from_ms) % bucket_ms == 0


def test_a_time_line_does_not_wait_for_a_cache_that_learns_the_next_day() -> None:
    slow, fast = Cache("slow"), Cache("fast")
    for cache in (slow, fast):
        cache.learns(THREE_MS - 60_000, 4, 1)
    fast.moves(THREE_MS, (4, 1), (5, 2))
    slow.moves(THREE_MS + 86_400_000, (4, 1), (5, 2))
    found = past(slow, fast)
    (pair,) = found.incidents
    line = time_line(*pair)

    assert line == TimeLine(THREE_MS - MARGIN_MS, THREE_MS + LATE_MS + MARGIN_MS, 10_000)
    assert stale_counts(found.histories["cluster"].stale, line)[-1] == 1


@pytest.mark.parametrize("time_ms", [THREE_MS, THREE_MS + 1, THREE_MS + 999])
def test_a_link_names_the_moment(time_ms: int) -> None:
    assert epoch_ms(datetime.fromisoformat(moment_text(time_ms))) == time_ms
    assert link(past(*caches(1)), time_ms, "cluster") == f"/?at={moment_text(time_ms)}"


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is in the time zone of Berlin."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def test_links_tell_both_hours_apart_when_summer_time_ends(berlin: None) -> None:
    summer_ms, winter_ms = (int(datetime(2026, 10, 25, hour, 30, tzinfo=UTC).timestamp()) * 1000 for hour in (0, 1))

    assert moment_text(summer_ms) == "2026-10-25T02:30:00"
    for time_ms in (summer_ms, winter_ms):
        address = link(past(*caches(1)), time_ms, None)
        (at,) = parse_qs(urlsplit(address).query)["at"]
        assert epoch_ms(datetime.fromisoformat(at)) == time_ms


def test_the_plot_has_the_local_time_of_the_events(berlin: None) -> None:
    summer_ms = int(datetime(2026, 7, 1, tzinfo=UTC).timestamp()) * 1000
    options, _ = plots.incident(range(summer_ms, summer_ms + 2_000, 1_000), [{}, {}], [0, 0], "1 s")

    assert "time_ms + 7200000" in options["xAxis"]["axisLabel"][":formatter"]


def test_of_several_clusters_a_link_names_one() -> None:
    other = Cache("other")
    other.learns(THREE_MS, 4, 1, cluster_id="a&b")

    assert link(past(*caches(1), other), THREE_MS, "a&b") == f"/?at={moment_text(THREE_MS)}&cluster=a%26b"


def test_a_moment_has_the_leaders_and_the_caches_that_were_stale_then() -> None:
    found = history(*caches(3, partitions=4, slow=1))
    before, moved, later, after = (
        moment_of(found, THREE_MS + after_ms, SECOND_MS) for after_ms in (-1_000, 0, 900, 30_000)
    )

    assert [(broker.node_id, len(broker.leads)) for broker in before.brokers] == [(1, 4), (2, 0)]
    assert (before.caches, before.stale_caches, before.stale.rows) == (3, 0, [])
    assert [(broker.node_id, len(broker.leads)) for broker in moved.brokers] == [(1, 0), (2, 4)]
    assert {led.old_leader_id for led in moved.brokers[1].leads} == {1}
    assert (later.stale_caches, [row[2:] for row in later.stale.rows]) == (
        1,
        [("4", "t-0: 1@4, now 2@5; t-1: 1@4, now 2@5; t-2: 1@4, now 2@5; and 1 more", "0.9 s")],
    )
    assert (later.refreshes, after.refreshes) == ("not_leader 2", "none")
    assert (after.stale_caches, {led.old_leader_id for led in after.brokers[1].leads}) == (0, {None})


def test_a_partition_without_a_leader_is_named() -> None:
    cache = Cache("c")
    cache.learns(THREE_MS, 4, 1)
    cache.moves(THREE_MS + 1, (4, 1), (5, -1))
    moment = moment_of(history(cache), THREE_MS + 1, SECOND_MS)

    assert moment.leaderless == [T0]
    assert [broker.node_id for broker in moment.brokers] == [1]
    assert "Without a leader: t-0" in render("moment", moment=moment, leaderless="t-0", bucket="1 s")


def test_of_many_the_longest_stale_are_shown_and_the_others_counted() -> None:
    found = history(*caches(60, partitions=LEADS_SHOWN + 6, slow=50))
    moment = moment_of(found, THREE_MS + SECOND_MS // 2, SECOND_MS)

    assert (moment.stale_caches, len(moment.stale.rows), moment.stale.left_out) == (50, STALE_SHOWN, 50 - STALE_SHOWN)
    assert (len(moment.brokers[1].leads), moment.brokers[1].left_out) == (LEADS_SHOWN, 6)
    html = render("moment", moment=moment, leaderless="", bucket="1 s")
    assert "30 more caches" in html
    assert "and 6 more" in html


def test_names_of_hosts_are_escaped() -> None:
    slow, fast = caches(2, slow=1)
    slow.events[-1]["host"] = "<b>host</b>"
    moment = moment_of(history(slow, fast), THREE_MS, SECOND_MS)

    assert "&lt;b&gt;host" in render("moment", moment=moment, leaderless="", bucket="1 s")


def test_the_list_has_the_latest_incident_first_and_links_to_each() -> None:
    early, late = caches(2), Cache("later")
    late.learns(THREE_MS, 5, 2)
    late.moves(THREE_MS + 600_000, (5, 2), (6, 1))
    view = linked_incidents(past(*early, late))

    assert [row[2] for row in view.rows] == ["2", "1"]
    assert re.findall(r'href="([^"]+)"', view.rows[1][0]) == [f"/?at={moment_text(THREE_MS)}"]
    assert "Slowest cache" in render("incidents", view=view, events=7)


@pytest.mark.parametrize(("events", "told"), [(0, "eventsPath"), (9, "No leader changed")])
def test_without_an_incident_the_page_says_what_to_do(events: int, told: str) -> None:
    assert told in render("incidents", view=linked_incidents(past()), events=events)


def test_a_link_to_a_moment_without_an_incident_says_so() -> None:
    assert "No incident at &lt;b&gt;" in render("incidents", view=linked_incidents(past()), events=9, at="<b>")
    assert "No incident" not in render("incidents", view=linked_incidents(past()), events=9, at="")


def test_a_moment_belongs_to_an_incident_with_it_in_its_time_line() -> None:
    found = past(*caches(2))
    (pair,) = found.incidents

    assert incident_at(found, THREE_MS - 9_000, "") == incident_at(found, THREE_MS, "cluster") == pair
    assert incident_at(found, THREE_MS, "other") is None
    assert incident_at(found, time_line(*pair).until_ms + 1, "") is None


def test_a_link_opens_its_incident_though_the_long_time_line_of_the_next_has_the_moment_too() -> None:
    cache = Cache("c")
    cache.learns(THREE_MS - 60_000, 4, 1)
    cache.learns(THREE_MS - 60_000, 0, 1, partition=1)
    cache.moves(THREE_MS, (4, 1), (5, 2))
    for epoch, after_s in enumerate(range(170, 6 * 3_600, 100)):
        cache.moves(THREE_MS + 1_000 * after_s, (epoch, 1), (epoch + 1, 1), partition=1)
    found = past(cache)
    first, second = found.incidents

    assert time_line(*second).from_ms <= THREE_MS
    assert incident_at(found, THREE_MS, "") == first
    assert incident_at(found, THREE_MS + 170_000, "") == second


def test_the_changes_of_an_incident_are_in_the_order_of_time_and_of_many_the_slowest() -> None:
    found = past(*caches(2, partitions=CHANGES_SHOWN + 5, slow=1))
    ((_, changes),) = found.incidents
    view = changes_view(found, changes)

    assert (len(view.rows), view.left_out) == (CHANGES_SHOWN, 5)
    assert view.rows[0][1:] == ("t-0", "1 to 2@5", "not_leader", "2", "1.0 s", "-", "4", "0")
    assert "kafkameta.leader_changes" in render("changes", view=view)


def test_stale_caches_are_counted_in_each_bucket_in_which_they_are_stale() -> None:
    line = TimeLine(THREE_MS - 2 * SECOND_MS, THREE_MS + 4 * SECOND_MS, SECOND_MS)
    found = history(*caches(4, partitions=3, slow=2))

    assert stale_counts(found.stale, line) == [0, 0, 2, 1, 0, 0]
    assert news_between(found, line) == [THREE_MS, THREE_MS + SECOND_MS, THREE_MS + 2 * SECOND_MS]


def test_the_plot_says_in_words_what_it_shows() -> None:
    begins_ms = range(THREE_MS, THREE_MS + 3 * SECOND_MS, SECOND_MS)
    options, summary = plots.incident(begins_ms, [{}, {"not_leader": 3, "max_age": 1}, {}], [0, 2, 1], "1 s")
    plots.mark(options, THREE_MS + 7)

    assert summary == "Refreshes in each 1 s: not_leader 3, max_age 1. At most 2 stale caches at once."
    assert [each["name"] for each in options["series"]] == ["not_leader", "max_age", "stale caches (right)"]
    assert options["series"][-1]["markLine"]["data"] == [{"xAxis": THREE_MS + 7}]
