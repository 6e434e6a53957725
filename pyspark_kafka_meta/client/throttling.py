"""Brokers that asked for patience: since KIP-219 they answer at once, and hear nothing until the time is up."""

from __future__ import annotations

MAX_THROTTLE_MS = 60_000
"""Believed at most. Quotas are measured over some ten seconds; what asks for more than this is no quota."""


class Throttles:
    """Until when each broker is to be left alone. `now` is in seconds, of any clock that never goes back."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def throttle(self, node_id: int, throttle_ms: int, now: float) -> None:
        """The broker's answer said so."""
        self._until[node_id] = max(self.until(node_id), now + min(throttle_ms, MAX_THROTTLE_MS) / 1000)

    def until(self, node_id: int) -> float:
        """When the broker may be asked again; in the past if it may be now."""
        return self._until.get(node_id, float("-inf"))

    def latest(self) -> float:
        """When the last of the brokers may be asked again: till then no progress is no stall."""
        return max(self._until.values(), default=float("-inf"))
