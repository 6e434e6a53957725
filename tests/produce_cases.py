"""A leader's responses to batches of an idempotent producer: the fake cluster and real brokers agree on the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.unit.kafka.records.handmade import repair_crc
from tests.unit.logs import batch


class Sent(NamedTuple):
    """A batch of `size` records from `sequence`, and the leader's response. An error has a base offset of -1."""

    sequence: int
    size: int
    epoch: int
    code: int
    base_offset: int

    def batch(self, producer_id: int) -> bytes:
        return idempotent(producer_id, self.sequence, self.epoch, [f"{self.sequence + n}" for n in range(self.size)])


def idempotent(producer_id: int, sequence: int, epoch: int, values: Sequence[str]) -> bytes:
    plain = batch(values)
    producer = producer_id.to_bytes(8, "big") + epoch.to_bytes(2, "big") + sequence.to_bytes(4, "big")
    return repair_crc(plain[:43] + producer + plain[57:])


SIX = tuple(Sent(number, 1, 0, 0, number) for number in range(6))
TWO = Sent(0, 2, 1, 0, 0)
LAST = 2**31 - 1
CASES: dict[str, tuple[Sent, ...]] = {
    "one of the last five again": (*SIX, *SIX[1:]),
    "the sixth last again": (*SIX, Sent(0, 1, 0, 45, -1)),
    "next sequence": (TWO, Sent(2, 1, 1, 0, 2)),
    "gap": (TWO, Sent(3, 1, 1, 45, -1)),
    "gap, then the batch before it": (TWO, Sent(3, 1, 1, 45, -1), Sent(2, 1, 1, 0, 2), Sent(3, 1, 1, 0, 3)),
    "part of a batch again": (TWO, Sent(1, 1, 1, 45, -1)),
    "newer epoch from its start": (TWO, Sent(0, 1, 2, 0, 2), Sent(1, 1, 2, 0, 3)),
    "newer epoch within its sequence": (TWO, Sent(2, 1, 2, 45, -1)),
    "older epoch": (TWO, Sent(2, 1, 0, 47, -1), Sent(0, 1, 0, 47, -1)),
    "the last batch of the epoch before again": (TWO, Sent(0, 1, 2, 0, 2), TWO._replace(code=47, base_offset=-1)),
    "first batch within a sequence": (Sent(40, 1, 3, 0, 0), Sent(41, 1, 3, 0, 1)),
    "after the largest sequence": (Sent(LAST - 1, 2, 0, 0, 0), Sent(1, 1, 0, 45, -1), Sent(0, 1, 0, 0, 2)),
    "across the largest sequence": (Sent(LAST, 2, 0, 0, 0), Sent(1, 1, 0, 0, 2)),
}
