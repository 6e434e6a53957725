"""Leader changes that belong together, such as those of one broker's death, a rolling restart or an election: what
`kafkameta incidents` lists, and the page of the past."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from pyspark_kafka_meta.model import NO_LEADER
from pyspark_kafka_meta.tables.rows import LeaderChangeRow
from pyspark_kafka_meta.tools.console import Shown
from pyspark_kafka_meta.tools.formatting import UNKNOWN, Column, View

QUIET = timedelta(minutes=2)
"""The first change after so long begins another incident: restarted brokers follow each other sooner."""


@dataclass(frozen=True, slots=True)
class Incident:
    """
    Attributes:
        began: when the first cache knew of the first change.
        ended: when the last cache knew of its last change.
        old_leaders: the brokers whose partitions got other leaders.
        partitions: how many of them.
        changes: of leaders or leader epochs.
        caches: the most that learned of one change.
        slowest_ms: the longest time from the first to the last cache that learned of a change.
        longest_recovery_ms: the longest of the problems that a change ended in a cache; null if no request had failed.
        stale_caches: the most that do not know one of the changes, nor a later one, now.
    """

    cluster_id: str | None
    began: datetime
    ended: datetime
    old_leaders: tuple[int, ...]
    partitions: int
    changes: int
    caches: int
    slowest_ms: int
    longest_recovery_ms: float | None
    stale_caches: int


def find_incidents(rows: Iterable[LeaderChangeRow]) -> list[tuple[Incident, Sequence[LeaderChangeRow]]]:
    """The incidents and their changes, latest last. A change belongs to the incident of the change before, of the same
    cluster, unless `QUIET` lies between them."""
    by_cluster: dict[str | None, list[LeaderChangeRow]] = {}
    for row in rows:
        by_cluster.setdefault(row.cluster_id, []).append(row)
    found = [(_incident(part), part) for of_cluster in by_cluster.values() for part in _parts(of_cluster)]
    return sorted(found, key=lambda pair: pair[0].began)


def _parts(rows: Sequence[LeaderChangeRow]) -> Iterator[list[LeaderChangeRow]]:
    part: list[LeaderChangeRow] = []
    for row in sorted(rows, key=lambda row: row.first_seen):
        if part and row.first_seen - part[-1].first_seen > QUIET:
            yield part
            part = []
        part.append(row)
    yield part


def _incident(rows: Sequence[LeaderChangeRow]) -> Incident:
    left = {row.from_leader_id for row in rows if row.from_leader_id not in (row.to_leader_id, NO_LEADER)}
    recoveries_ms = [row.longest_recovery_ms for row in rows if row.longest_recovery_ms is not None]
    return Incident(
        cluster_id=rows[0].cluster_id,
        began=rows[0].first_seen,
        ended=max(row.last_seen for row in rows),
        old_leaders=tuple(sorted(left)),
        partitions=len({(row.topic, row.topic_id, row.partition) for row in rows}),
        changes=len(rows),
        caches=max(row.caches for row in rows),
        slowest_ms=max((row.last_seen - row.first_seen) // timedelta(milliseconds=1) for row in rows),
        longest_recovery_ms=max(recoveries_ms, default=None),
        stale_caches=max(row.stale_caches for row in rows),
    )


def incidents_view(incidents: Sequence[Incident]) -> View:
    """Times are local. The cluster is named if there are several."""
    clusters = {incident.cluster_id for incident in incidents}
    titles = ("Partitions", "Caches", "Slowest cache", "Longest recovery", "Stale")
    columns = [
        Column("Began"),
        Column("Lasted", True),
        Column("Old leaders"),
        *(Column(title, True) for title in titles),
    ]
    columns += [Column("Cluster")] * (len(clusters) > 1)
    cells = [
        (
            f"{incident.began.astimezone():%Y-%m-%d %H:%M:%S}",
            seconds_text((incident.ended - incident.began).total_seconds() * 1000),
            ", ".join(map(str, incident.old_leaders)) or "-",
            f"{incident.partitions:,}",
            f"{incident.caches:,}",
            seconds_text(incident.slowest_ms),
            seconds_text(incident.longest_recovery_ms),
            f"{incident.stale_caches:,}",
            *([incident.cluster_id or UNKNOWN] if len(clusters) > 1 else ()),
        )
        for incident in incidents
    ]
    return View("Incidents", columns, cells, 0)


def seconds_text(value_ms: float | None) -> str:
    return "-" if value_ms is None else f"{value_ms / 1000:,.1f} s"


INCIDENTS = Shown[Sequence[Incident]](
    lambda incidents: map(asdict, incidents), lambda incidents: incidents_view(incidents).table()
)
