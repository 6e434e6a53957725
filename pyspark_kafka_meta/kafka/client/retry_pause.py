"""When a partition may be requested again: `RetryPause` of the cursors of reading and the queues of writing."""

from __future__ import annotations

from collections.abc import Callable

UNKNOWN_GRACE_MS = 3_000
"""How long an unknown topic or partition is requested again: not every broker knows a new topic yet."""


class RetryPause:
    """After an error a partition waits for newer metadata, or for a backoff. `now` is in seconds of the caller's clock.

    Attributes:
        not_before: earliest time of the next request.
    """

    def __init__(self) -> None:
        self.not_before = 0.0
        self._stale_generation = -1
        self._failures = 0  # backoffs since the last success

    def is_ready(self, generation: int, now: float) -> bool:
        """Whether a request may be sent, to the leader in the metadata of this `generation`."""
        return generation > self._stale_generation and now >= self.not_before

    def wait_for_metadata_after(self, generation: int, request_update: Callable[[int], None]) -> None:
        """Send no request before metadata is newer than `generation`, which `request_update` is called with: if nobody
        requested newer metadata, the wait would end at the maximum age."""
        self._stale_generation = generation
        request_update(generation)

    def wait_until(self, time_s: float) -> None:
        """Send no request before this time."""
        self.not_before = time_s

    def back_off(self, now: float, backoff_s: Callable[[int], float]) -> None:
        """Wait after an error, longer after each in a row. `backoff_s` is of a number of failures."""
        self._failures += 1
        self.not_before = now + backoff_s(self._failures)

    def succeeded(self) -> None:
        """The next backoff is the first again."""
        self._failures = 0
