"""`Throttles`: brokers that throttle the client. Since KIP-219 the client sends no request until the time is up."""

from __future__ import annotations

MAX_THROTTLE_MS = 60_000
"""Upper bound. Quotas are measured over some ten seconds; a longer throttle is no quota."""


class Throttles:
    """Until when each broker throttles the client. `now` is in seconds, of any clock that never goes back."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def throttle(self, node_id: int, throttle_ms: int, now: float) -> None:
        """Take the throttle time of a response."""
        self._until[node_id] = max(self.until(node_id), now + min(throttle_ms, MAX_THROTTLE_MS) / 1000)

    def until(self, node_id: int) -> float:
        """When a request to the broker may be sent; in the past if it may be now."""
        return self._until.get(node_id, float("-inf"))

    def latest(self) -> float:
        """When the last broker stops throttling: until then, missing progress is no stall."""
        return max(self._until.values(), default=float("-inf"))
