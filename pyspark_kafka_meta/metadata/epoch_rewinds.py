"""When a lower leader epoch is believed: if the cluster lost its quorum's state, not if one broker lags behind.

Follows franz-go's `mergeTopicPartitions`, which believes after as many looks; here several brokers must agree as well.
"""

from __future__ import annotations

from dataclasses import dataclass

REFUSALS_BEFORE_BELIEF = 5
"""This many answers in a row with the same lower epoch are refused; the next one is believed if brokers agree."""
BROKERS_TO_AGREE = 2
"""This many different brokers must have reported it, or all there are if they are fewer."""


@dataclass(frozen=True, slots=True)
class Rewind:
    """A lower epoch of one partition, reported by answers in a row and refused so far.

    Attributes:
        answers: how many reported it.
        tellers: node ids of the brokers that did, as far as known.
    """

    leader_epoch: int
    answers: int = 0
    tellers: frozenset[int] = frozenset()

    def told_again(self, leader_epoch: int, told_by: int | None) -> Rewind:
        """After one more answer. One with another lower epoch starts the count again."""
        before = self if leader_epoch == self.leader_epoch else Rewind(leader_epoch)
        tellers = before.tellers if told_by is None else before.tellers | {told_by}
        return Rewind(leader_epoch, before.answers + 1, tellers)

    def is_believed(self, brokers: int) -> bool:
        """Whether it is the truth, in a cluster of this many brokers. One stale broker among several never makes it so,
        however often it answers."""
        return self.answers > REFUSALS_BEFORE_BELIEF and len(self.tellers) >= min(BROKERS_TO_AGREE, brokers)
