"""The table of caches: few caches side by side, or a map of many by broker, topic and partition; pure.

What is stale comes first. The rest is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from pyspark_kafka_meta.model import NO_LEADER
from pyspark_kafka_meta.tables.known_leaders import UNKNOWN
from pyspark_kafka_meta.tables.rows import PartitionRow
from pyspark_kafka_meta.tools.cluster_state import CacheMap
from pyspark_kafka_meta.tools.formatting import leader_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIDE_BY_SIDE = 12
"""Of more caches the table is a map."""
PARTITIONS_SHOWN = 200
CACHES_SHOWN, COLUMNS_SHOWN = 40, 16
"""Of a map."""
MAX_ID_LENGTH = 10
"""Of a broker id, in digits."""


class Selection(NamedTuple):
    """What a browser shows of a map.

    Attributes:
        find: a part of the name or process of a cache; empty for all.
        broker: whose partitions; None for all.
        topic: whose partitions; None for all.
    """

    find: str = ""
    broker: int | None = None
    topic: str | None = None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Selection:
        """From the query of an address. A broker that is no number, or no id, is ignored."""
        broker = query.get("broker", "").strip()
        is_number = broker.removeprefix("-").isdecimal() and len(broker) <= MAX_ID_LENGTH
        return cls(
            query.get("find", "").strip(), int(broker) if is_number else None, query.get("topic", "").strip() or None
        )

    def link(self, **others: Any) -> str:
        """The address of this selection with `others` replaced."""
        given = {name: value for name, value in self._replace(**others)._asdict().items() if value not in ("", None)}
        return f"?{urlencode(given)}#caches-title"


EVERYTHING = Selection()


class Heading(NamedTuple):
    """Of a column or row, with a smaller line below; `link` leads to a map of its parts."""

    text: str
    note: str = ""
    link: str | None = None


class Cell(NamedTuple):
    """What a cache knows of a partition, leader@epoch; or how many of its entries are stale."""

    text: str
    is_stale: bool


class CacheTable(NamedTuple):
    """
    Attributes:
        corner: heading of the rows.
        columns: headings of the cells. The second column has none of its own.
        rows: heading, second column, and cells.
        left_out: sentences about what is not shown.
    """

    corner: str
    columns: Sequence[Heading]
    rows: Sequence[tuple[Heading, str, Sequence[Cell]]]
    left_out: Sequence[str]


@dataclass(frozen=True, slots=True, eq=False)
class CachesView:
    """
    Attributes:
        names: of each cache, and its process; the latest first.
        map: what they know, in the same order.
    """

    names: Sequence[tuple[str, str]]
    map: CacheMap

    def is_map(self, selection: Selection = EVERYTHING) -> bool:
        return len(self.names) > SIDE_BY_SIDE or selection != EVERYTHING

    def stale(self) -> int:
        return int(self.map.stale.sum())

    def table(self, selection: Selection = EVERYTHING) -> CacheTable:
        return self._map(selection) if self.is_map(selection) else self._side_by_side()

    def _side_by_side(self) -> CacheTable:
        stale, caches = self.map.stale.sum(axis=0), range(len(self.names))
        shown = sorted(_stalest(stale, PARTITIONS_SHOWN))
        rows = [
            (Heading(heading.text), heading.note, [self._cell(cache, column) for cache in caches])
            for column in shown
            for heading in [_of_partition(self.map.leaders[column])]
        ]
        return CacheTable("Partition", [Heading(*name) for name in self.names], rows, _rest("partitions", stale, shown))

    def _map(self, selection: Selection) -> CacheTable:
        """Of a topic by partition, else of a broker by topic, else by broker."""
        import numpy as np

        find, broker, topic = selection
        caches = [number for number, name in enumerate(self.names) if find.lower() in " ".join(name).lower()]
        columns = [
            number
            for number, leader in enumerate(self.map.leaders)
            if broker in (None, leader.leader_id) and topic in (None, leader.topic)
        ]
        noun, group_of, heading_of = _level(selection)
        keys = [group_of(self.map.leaders[column]) for column in columns]
        groups = {key: number for number, key in enumerate(sorted(set(keys)))}
        group_numbers = np.array([groups[key] for key in keys], np.int64)
        members = np.bincount(group_numbers, minlength=len(groups)).tolist()
        entries = np.ix_(caches, columns)
        rows, stale = np.nonzero(self.map.stale[entries])
        counts = np.bincount(rows * len(groups) + group_numbers[stale], minlength=len(caches) * len(groups))
        counts = counts.reshape(len(caches), len(groups))
        known = (self.map.leader_ids[entries] != UNKNOWN).sum(axis=1)
        by_cache, by_group = counts.sum(axis=1), counts.sum(axis=0)
        shown, shown_groups = _stalest(by_cache, CACHES_SHOWN), sorted(_stalest(by_group, COLUMNS_SHOWN))
        headings = [heading_of(key, members[number]) for key, number in groups.items()]
        return CacheTable(
            "Cache",
            [headings[number] for number in shown_groups],
            [
                (
                    Heading(*self.names[caches[row]]),
                    f"{by_cache[row]:,} of {known[row]:,}",
                    [
                        self._cell(caches[row], columns[number])
                        if topic is not None
                        else Cell(f"{counts[row, number]:,}", bool(counts[row, number]))
                        for number in shown_groups
                    ],
                )
                for row in shown
            ],
            [*_rest("caches", by_cache, shown), *_rest(noun, by_group, shown_groups)],
        )

    def _cell(self, cache: int, column: int) -> Cell:
        leader_id, epoch = int(self.map.leader_ids[cache, column]), int(self.map.epochs[cache, column])
        text = "" if leader_id == UNKNOWN else leader_text(leader_id, epoch)
        return Cell(text, bool(self.map.stale[cache, column]))


def _level(selection: Selection) -> tuple[str, Callable[[PartitionRow], Any], Callable[[Any, int], Heading]]:
    """What the columns of a map are, the column of a partition, and the heading of a column with so many partitions."""
    if selection.topic is not None:
        return "partitions", lambda leader: (leader.partition, leader), lambda key, _: _of_partition(key[1])
    if selection.broker is not None:
        return (
            "topics",
            lambda leader: leader.topic,
            lambda topic, count: Heading(
                topic, f"{count:,} partition{'s' * (count != 1)}", selection.link(topic=topic)
            ),
        )
    return (
        "brokers",
        lambda leader: NO_LEADER if leader.leader_id is None else leader.leader_id,
        lambda broker, count: Heading(
            "no leader" if broker == NO_LEADER else f"broker {broker}",
            f"leads {count:,}",
            selection.link(broker=broker),
        ),
    )


def _of_partition(leader: PartitionRow) -> Heading:
    return Heading(str(leader.topic_partition), leader_text(leader.leader_id, leader.leader_epoch))


def _stalest(counts: NDArray[np.int64], limit: int) -> list[int]:
    """The numbers of those with the most stale entries, most first."""
    order: list[int] = (-counts).argsort(kind="stable")[:limit].tolist()
    return order


def _rest(noun: str, counts: NDArray[np.int64], shown: Sequence[int]) -> list[str]:
    """How many are not shown, and how many of them have stale entries."""
    rest, stale = len(counts) - len(shown), int((counts > 0).sum() - (counts[list(shown)] > 0).sum())
    return (
        [f"{rest:,} more {noun}, {f'{stale:,} of them with stale entries' if stale else 'none stale'}."] if rest else []
    )
