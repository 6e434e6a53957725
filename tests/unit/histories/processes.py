"""`ProcessClock`: processes that take turns in virtual time. Each is a thread, and runs alone until it waits.

A process that waits gives way to all that is due before: faults, and other processes. So a history of several processes
is the same each time, and a process can be killed or frozen wherever it waits: while a request is in flight, in a
backoff, or between two looks at the clock.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

from tests.unit.fake_network import FakeClock
from tests.unit.histories.history import TICK_S


class Killed(BaseException):
    """Ends a process where it waits. It waits for nothing afterwards."""


class StillRunning(BaseException):
    """A process has run for longer than the history allows."""


class Process:
    """Work in a thread of its own.

    Attributes:
        result: of the work; None until it has ended, and after an error.
        error: that ended the work, if any.
        has_ended: also if it was killed.
        frozen_until: the process does not run before, in seconds.
    """

    def __init__(self, name: str, work: Callable[[], Any], until_parked: threading.Lock) -> None:
        self.name = name
        self.result: Any = None
        self.error: BaseException | None = None
        self.has_ended = self.is_killed = False
        self.frozen_until = 0.0
        self.wake = -1  # the number of the wait that counts
        self._work = work
        self._turn, self._until_parked = threading.Lock(), until_parked
        self._turn.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Let the process run until it waits or ends."""
        self._turn.release()
        self._until_parked.acquire()

    def park(self) -> None:
        """Called by the process itself: wait for `run`."""
        self._until_parked.release()
        self._turn.acquire()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self.is_killed:
                self.result = self._work()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.has_ended = True
            self._until_parked.release()


class ProcessClock(FakeClock):
    """Runs processes, and the actions of faults, in the order of their times.

    Attributes:
        processes: that were started, in order.
        running: the process whose turn it is.
        latest: a process that waits for a later time fails, in seconds.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__(tick_s=TICK_S, rng=rng)
        self.processes: list[Process] = []
        self.latest = float("inf")
        self.running: Process | None = None
        self._wakes: list[tuple[float, int, Process]] = []
        self._wake_numbers = itertools.count()
        self._until_parked = threading.Lock()
        self._until_parked.acquire()

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if not process.has_ended]

    def start(self, name: str, work: Callable[[], Any]) -> Process:
        """Start a process, which runs once the present process waits."""
        process = Process(name, work, self._until_parked)
        self.processes.append(process)
        self._wake_at(self.now, process)
        return process

    def kill(self, process: Process) -> None:
        process.is_killed = True
        process.frozen_until = 0.0
        if process is not self.running:
            self._wake_at(self.now, process)

    def freeze(self, process: Process, seconds: float) -> None:
        """Suspend a process, as a long pause of its machine does."""
        process.frozen_until = self.now + seconds

    def run(self) -> None:
        """Run processes and actions until none is left, or `latest`."""
        while min(self._next_wake(), self.next_action()) < self.latest:
            if self.next_action() <= self._next_wake():  # first: a process waits for actions that are due
                super().wait_until(self.next_action())
            else:
                self._run_next()

    def close(self) -> None:
        """End all processes."""
        for process in self.alive:
            self.kill(process)
        while self._next_wake() < float("inf"):
            self._run_next()
        for process in self.processes:
            process.join()

    def wait_until(self, then: float) -> None:
        process = self.running
        if process is None:
            super().wait_until(then)
            return
        if process.is_killed:
            raise Killed
        if then > self.latest:
            raise StillRunning(f"{process.name} waits until {then:.3f}")
        if process.frozen_until <= self.now and then < min(self.next_action(), self._next_wake()):
            self.now = max(self.now, then)
            return
        self._wake_at(then, process)
        process.park()
        if process.is_killed:
            raise Killed

    def _wake_at(self, then: float, process: Process) -> None:
        process.wake = next(self._wake_numbers)
        heapq.heappush(self._wakes, (then, process.wake, process))

    def _next_wake(self) -> float:
        while self._wakes and self._wakes[0][1] != self._wakes[0][2].wake:
            heapq.heappop(self._wakes)  # of a process that was killed
        return self._wakes[0][0] if self._wakes else float("inf")

    def _run_next(self) -> None:
        then, _, process = heapq.heappop(self._wakes)
        if process.frozen_until > max(then, self.now):
            self._wake_at(process.frozen_until, process)
            return
        self.now = max(self.now, then)
        process.wake = -1
        self.running = process
        process.run()
        self.running = None
