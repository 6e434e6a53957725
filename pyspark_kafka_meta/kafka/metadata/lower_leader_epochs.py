"""Lower leader epochs: ignored while one broker lags behind, accepted if the cluster lost its metadata.

Follows franz-go's `mergeTopicPartitions`, which accepts after as many responses; here several brokers must agree too.
"""

from __future__ import annotations

from dataclasses import dataclass

IGNORED_RESPONSES = 5
"""Consecutive responses with the same lower epoch that are ignored. The next one is accepted if brokers agree."""
REQUIRED_BROKERS = 2
"""Brokers that must have reported the lower epoch, or all brokers if there are fewer."""


@dataclass(frozen=True, slots=True)
class EpochRewind:
    """A lower epoch of one partition in consecutive responses, ignored so far.

    Attributes:
        responses: number of these responses.
        broker_ids: brokers that reported the epoch, as far as known.
    """

    leader_epoch: int
    responses: int = 0
    broker_ids: frozenset[int] = frozenset()

    def reported_again(self, leader_epoch: int, broker_id: int | None) -> EpochRewind:
        """After one more response. A different lower epoch restarts the count."""
        before = self if leader_epoch == self.leader_epoch else EpochRewind(leader_epoch)
        broker_ids = before.broker_ids if broker_id is None else before.broker_ids | {broker_id}
        return EpochRewind(leader_epoch, before.responses + 1, broker_ids)

    def is_confirmed(self, broker_count: int) -> bool:
        """Whether the epoch is accepted in a cluster of `broker_count` brokers. One stale broker among several never
        suffices, however often it responds."""
        return self.responses > IGNORED_RESPONSES and len(self.broker_ids) >= min(REQUIRED_BROKERS, broker_count)
