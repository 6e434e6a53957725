"""Whether a position in the copy of a log is that of the log itself, by the records around both.

A copy has the records of the log in the same order, but not at the same offsets: compaction and markers of transactions
leave gaps in either, retention removes the start of either, and the copy may be behind. So only records that readers
see are compared: those before a position and those after it, as far as both logs have them. Both positions are the same
if these records are equal and no other place nearby in the copy fits too, as in a row of equal records. Then there is:

| the log has | the copy has | result |
|---|---|---|
| records on both sides | equal records on both sides | `PROVED` |
| offset 0 as position, or no record after it | nothing there either | `PROVED`, by the other side |
| no record before the position any more | equal records after it | `UNKNOWN`: one side alone |
| records on both sides | equal records on one side, none on the other | `UNKNOWN`: removed, or not copied yet |
| no record at all | | `UNKNOWN`; `PROVED` if both were always empty |
| records | several places that fit, or another one | `AMBIGUOUS`: more records may decide |
| else | | `REFUSED` |

Compaction may have removed a neighbour in one of the logs alone: that is `REFUSED`, as nothing tells it from a loss.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN


class Way(StrEnum):
    """How positions are found in the other cluster."""

    OFFSETS = "offsets"
    TIMESTAMPS = "timestamps"
    OFFSET_SYNCS = "offset-syncs"


class SeenRecord(NamedTuple):
    """A record without its content, which may be secret.

    Attributes:
        key_bytes, value_bytes: None for null.
        digest: of key, value and timestamp.
        headers: a digest of each.
    """

    offset: int
    timestamp_ms: int
    key_bytes: int | None
    value_bytes: int | None
    digest: bytes
    headers: tuple[bytes, ...] = ()

    def is_copied_as(self, other: SeenRecord) -> bool:
        """Whether `other` has the same content. A mirror may add headers."""
        left = iter(other.headers)
        return self.digest == other.digest and all(header in left for header in self.headers)

    def __str__(self) -> str:
        sizes = ", ".join(
            f"{name} {'null' if size is None else f'{size} bytes'}"
            for name, size in (("key", self.key_bytes), ("value", self.value_bytes))
        )
        return (
            f"offset {self.offset} (timestamp {self.timestamp_ms}, {sizes}, {len(self.headers)} headers, digest "
            f"{self.digest.hex()[:8]})"
        )


def seen(row: Mapping[str, Any], timestamp_ms: int, salt: bytes) -> SeenRecord:
    """Args:
    row: with key, value, headers and offset.
    salt: of one run: a digest does not help to guess a value.
    """
    key, value = row["key"], row["value"]
    return SeenRecord(
        row["offset"],
        timestamp_ms,
        None if key is None else len(key),
        None if value is None else len(value),
        _digest(salt, str(timestamp_ms).encode(), key, value),
        tuple(_digest(salt, header["key"].encode(), header["value"]) for header in row[HEADERS_COLUMN] or ()),
    )


def _digest(salt: bytes, *parts: bytes | None) -> bytes:
    found = hashlib.blake2b(key=salt, digest_size=16)
    for part in parts:
        found.update((-1 if part is None else len(part)).to_bytes(8, "big", signed=True))
        found.update(part or b"")
    return found.digest()


class Around(NamedTuple):
    """The records around a position, as readers see them.

    Attributes:
        start, end: of the log, `end` exclusive.
        before, after: in order; fewer than were requested only where the log has no more.
    """

    position: int
    start: int
    end: int
    before: tuple[SeenRecord, ...] = ()
    after: tuple[SeenRecord, ...] = ()

    def neighbours(self) -> str:
        before, after = self.before[-1] if self.before else "none", self.after[0] if self.after else "none"
        return f"before it {before}, after it {after}"


class Verdict(StrEnum):
    PROVED = "proved"
    UNKNOWN = "unknown"
    AMBIGUOUS = "ambiguous"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Proof:
    """
    Attributes:
        offset: the position in the copy; None if there is none.
        text: what is equal, is not known, or is wrong.
    """

    verdict: Verdict
    offset: int | None
    text: str


def refused(text: str) -> Proof:
    return Proof(Verdict.REFUSED, None, text)


def prove(log: Around, copy: Around, count: int, has_same_offsets: bool) -> Proof:
    """Find the position of `log` in `copy`.

    Args:
        log: with up to `count` records on each side of the position.
        copy: with up to `2 * count`, around the same offset, or a place that is likely. Only this place is proved:
            beside another one, there may be more than `copy` shows. An `AMBIGUOUS` proof has the place to try next.
        has_same_offsets: whether it is at the same offset; else where the records are equal.
    """
    if not log.start <= log.position <= log.end:
        return refused(_outside("the first cluster", log, log.position))
    if has_same_offsets and not copy.start <= log.position <= copy.end:
        return refused(_outside("the other cluster", copy, log.position))
    if not log.before and not log.after:
        return _without_records(log, copy, has_same_offsets)
    logged = copy.before + copy.after
    places = list(_places(log, copy, count))
    if has_same_offsets and len(copy.before) not in places:
        other = next((at for at in places if 0 < at < len(logged)), None)
        hint = "" if other is None else f". They are at offset {logged[other].offset} there: the offsets differ"
        return refused(f"{_differ(log, copy)}{hint}")
    if not places:  # or far from the first equal record, in a long row of them
        return refused(_differ(log, copy)) if has_same_offsets else Proof(Verdict.AMBIGUOUS, None, _differ(log, copy))
    before, after = logged[: places[0]], logged[places[0] :]
    offset = log.position if has_same_offsets else after[0].offset if after else before[-1].offset + 1
    if len(places) > 1 or places[0] != len(copy.before):
        return Proof(Verdict.AMBIGUOUS, offset, f"records around it are alike: {log.neighbours()}")
    return _judged(log, copy._replace(before=before, after=after), offset)


def _places(log: Around, copy: Around, count: int) -> Iterator[int]:
    """Where in the copy's records the position fits, as the number of records before it. Places so near the edge of
    what was read that not all records can be compared count only at the edges of the log."""
    logged = copy.before + copy.after
    first = 0 if len(copy.before) < 2 * count else count
    last = len(logged) - (0 if len(copy.after) < 2 * count else count)
    for at in range(first, last + 1):
        ahead = len(logged) - at > len(log.after) and len(log.after) < count
        if not ahead and _fits(log, logged[:at], logged[at:]):
            yield at


def _fits(log: Around, before: Sequence[SeenRecord], after: Sequence[SeenRecord]) -> bool:
    pairs = [*zip(reversed(log.before), reversed(before), strict=False), *zip(log.after, after, strict=False)]
    return bool(pairs) and all(record.is_copied_as(other) for record, other in pairs)


def _judged(log: Around, copy: Around, offset: int) -> Proof:
    """By what could be compared of records that are equal."""
    compared = [min(len(log.before), len(copy.before)), min(len(log.after), len(copy.after))]
    if log.position == 0 and copy.before:
        return refused(f"the other cluster has records before the first of this log: {copy.neighbours()}")
    unknown = []
    if log.position == 0:
        unknown += ["the other cluster may have had other records before the first"] if copy.start > 0 else []
    elif not log.before:
        unknown.append("the first cluster has no record before it any more")
    elif not copy.before:
        unknown.append("the other cluster has no record before it")
    if log.after and not copy.after:
        unknown.append("the other cluster does not have the record after it yet")
    equal = f"equal: {compared[0]} records before, {compared[1]} after"
    if unknown:
        return Proof(Verdict.UNKNOWN, offset, f"{' and '.join(unknown)}; {equal}")
    return Proof(Verdict.PROVED, offset, equal)


def _without_records(log: Around, copy: Around, has_same_offsets: bool) -> Proof:
    offset = log.position if has_same_offsets else copy.end
    if log.position > 0:
        return Proof(Verdict.UNKNOWN, offset, "the first cluster has no records any more")
    if copy.before or copy.after:
        return refused("the other cluster has records, this log none")
    if copy.end > 0:
        return Proof(Verdict.UNKNOWN, offset, "no records, but the other cluster has had some")
    return Proof(Verdict.PROVED, offset, "no records yet")


def assume(copy: Around) -> Proof:
    """The same offset, without the first cluster."""
    if not copy.start <= copy.position <= copy.end:
        return refused(_outside("the other cluster", copy, copy.position))
    return Proof(Verdict.UNKNOWN, copy.position, f"the same offset, not compared: {copy.neighbours()}")


def _outside(cluster: str, log: Around, position: int) -> str:
    where = f"begins at offset {log.start}" if position < log.start else f"ends at offset {log.end}"
    return f"the log of {cluster} {where}: it does not have offset {position}"


def _differ(log: Around, copy: Around) -> str:
    return f"the records differ: in the first cluster {log.neighbours()}; in the other {copy.neighbours()}"
