"""The leaders that many caches know, in arrays: 500 caches of 10,000 partitions take 40 MB; pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark_kafka_meta.model import TopicPartition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNKNOWN = -(2**31)
"""The leader id and the epoch of a partition that a cache does not know; not -1, which Kafka has for none."""


class Partitions:
    """Numbers partitions, in the order in which caches learn of them. Caches that are compared share one.

    Attributes:
        names: by number.
    """

    def __init__(self) -> None:
        self.names: list[TopicPartition] = []
        self._numbers: dict[tuple[str, int], int] = {}
        self._in_order: NDArray[np.int64] | None = None

    def number(self, partition: tuple[str, int]) -> int:
        number = self._numbers.get(partition)
        if number is None:
            number = self._numbers[partition] = len(self.names)
            self.names.append(TopicPartition(*partition))
        return number

    def in_order(self) -> NDArray[np.int64]:
        """The numbers of all partitions, in the order of their names."""
        import numpy as np

        if self._in_order is None or len(self._in_order) != len(self.names):
            self._in_order = np.array(sorted(range(len(self.names)), key=self.names.__getitem__), np.int64)
        return self._in_order

    def keep(self, numbers: NDArray[np.int64]) -> None:
        """Forget the other partitions, and number these from 0."""
        self.names = [self.names[number] for number in numbers.tolist()]
        self._numbers = {partition: number for number, partition in enumerate(self.names)}
        self._in_order = None

    def find(self, partition: object) -> int:
        """-1 for a partition without a number."""
        return self._numbers.get(partition, -1)  # type: ignore[call-overload, no-any-return]


class KnownLeaders(Mapping[TopicPartition, tuple[int, int]]):
    """The leader id and leader epoch of each partition that one cache knows, in 8 bytes for each of `partitions`."""

    def __init__(self, partitions: Partitions) -> None:
        self.partitions = partitions
        self._ids, self._epochs = array("i"), array("i")

    def take(self, members: Iterable[Mapping[str, Any]], leader_id: str, epoch: str) -> None:
        """Set leaders from members of an event with topic and partition, by their fields `leader_id` and `epoch`."""
        number_of, ids, epochs = self.partitions.number, self._ids, self._epochs
        for member in members:
            number = number_of((member["topic"], member["partition"]))
            if number >= len(ids):  # have room for all partitions that have a number
                unknown = array("i", [UNKNOWN]) * (len(self.partitions.names) - len(ids))
                ids.extend(unknown)
                epochs.extend(unknown)
            ids[number], epochs[number] = member[leader_id], member[epoch]

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Leader ids and epochs by the number of their partition, `UNKNOWN` where there is none."""
        import numpy as np

        both = np.full((2, len(self.partitions.names)), UNKNOWN, np.int32)
        both[0, : len(self._ids)], both[1, : len(self._ids)] = self._ids, self._epochs
        return both[0], both[1]

    def __getitem__(self, partition: TopicPartition) -> tuple[int, int]:
        if partition not in self:
            raise KeyError(partition)
        number = self.partitions.find(partition)
        return self._ids[number], self._epochs[number]

    def __contains__(self, partition: object) -> bool:
        number = self.partitions.find(partition)
        return 0 <= number < len(self._ids) and self._ids[number] != UNKNOWN

    def __iter__(self) -> Iterator[TopicPartition]:
        names = self.partitions.names
        return (names[number] for number, leader_id in enumerate(self._ids) if leader_id != UNKNOWN)

    def __len__(self) -> int:
        return len(self._ids) - self._ids.count(UNKNOWN)

    def discard(self, partition: TopicPartition) -> None:
        if partition in self:
            number = self.partitions.find(partition)
            self._ids[number] = self._epochs[number] = UNKNOWN

    def clear(self) -> None:
        self._ids, self._epochs = array("i"), array("i")

    @staticmethod
    def forget_unknown(caches: Sequence[KnownLeaders]) -> None:
        """Forget the partitions that none of `caches` knows, if most are so: topics come and go for months. No other
        cache may share their `Partitions`."""
        if not caches:
            return
        partitions, numbers = caches[0].partitions, known_to_any(caches)
        if 2 * len(numbers) < len(partitions.names):
            for cache in caches:
                cache._ids, cache._epochs = (array("i", each[numbers].tobytes()) for each in cache.arrays())
            partitions.keep(numbers)


def known_to_any(caches: Sequence[KnownLeaders]) -> NDArray[np.int64]:
    """The numbers of the partitions that any of these caches knows. There is one at least; they share `Partitions`."""
    import numpy as np

    is_known = np.zeros(len(caches[0].partitions.names), bool)
    for cache in caches:
        is_known |= cache.arrays()[0] != UNKNOWN
    return np.flatnonzero(is_known)
