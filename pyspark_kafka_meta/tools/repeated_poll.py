"""A thread that polls: for the exporter, the page and the demo's feed."""

from __future__ import annotations

import threading
import time
from typing import Self


class RepeatedPoll:
    """Polls inside `with`: every `interval_s`, and at once after a poll that took longer.

    Args:
        name: of the thread.
        from_end: whether the interval begins at the end of a poll, so that slow brokers get a pause, too.
    """

    close_timeout_s = 2.0
    """Closing waits this long for a poll; brokers that do not respond take longer."""

    def __init__(self, name: str, interval_s: float, *, from_end: bool = False) -> None:
        self._interval_s = interval_s
        self._from_end = from_end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(self.close_timeout_s)

    def poll(self) -> None:
        raise NotImplementedError

    def on_error(self, error: Exception) -> bool:
        """After an error of `poll`, which does not end the thread: returns whether to poll again."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                self.poll()
            except Exception as error:
                if self._stopped.is_set() or not self.on_error(error):  # once stopped, what it polls may be closed
                    return
            took_s = 0.0 if self._from_end else time.monotonic() - began
            self._stopped.wait(max(0.0, self._interval_s - took_s))
