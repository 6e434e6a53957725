"""Where the demo shows what it sees: a frame that stays up to date on a terminal, plain lines elsewhere."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Sequence
from typing import Self

from rich.console import Console
from rich.live import Live

from pyspark_kafka_meta.demo import demo_frames
from pyspark_kafka_meta.demo.demo_frames import SceneResult
from pyspark_kafka_meta.demo.scenes import Scene
from pyspark_kafka_meta.monitor.cluster_state import State
from pyspark_kafka_meta.monitor.console import plain

POLL_S = 0.3
LINES_A_SCENE = 12
"""This many lines of events, outside a terminal: what fails is tried again many times."""
HOLD_S = 3.0
"""How long a terminal goes on showing a scene that was seen."""


class Screen:
    """Looks, and shows each look, inside `with`.

    Args:
        look: at the state now.
        produced: records of the feed so far; None if there is none.
    """

    def __init__(self, console: Console, look: Callable[[], State], produced: Callable[[], int | None]) -> None:
        self._console = console
        self._look = look
        self._produced = produced
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._heading = ""
        self._lines_left = LINES_A_SCENE
        self._told: set[tuple[str, int]] = set()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, scene: Scene) -> None:
        self._heading, self._lines_left = demo_frames.heading(scene), LINES_A_SCENE
        self._print(self._heading)

    def look(self) -> State:
        """Look once, and show it. Raises StreamFailedError: the query ended."""
        state = self._look()
        if self._live is not None:
            self._live.update(demo_frames.frame(state, self._heading, self._produced()), refresh=True)
        else:
            news = [one for one in state.events if (one["cache_id"], one["sequence"]) not in self._told]
            self._told.update((one["cache_id"], one["sequence"]) for one in news)
            self._tell([demo_frames.event_line(event) for event in news if demo_frames.is_news(event)])
        return state

    def end(self, result: SceneResult) -> None:
        """Show what came of a scene, and stay a while where a user may be watching."""
        self._print(demo_frames.result_line(result))
        self._print(f"   {demo_frames.reading_line(self.look(), self._produced())}")
        if self._live is not None:
            hold_until = time.monotonic() + HOLD_S
            while time.monotonic() < hold_until:
                self.pause()

    def pause(self) -> State:
        """Look again after a moment."""
        time.sleep(POLL_S)
        return self.look()

    def ask_to_go_on(self) -> bool:
        """Wait for Enter while still looking; False for q, and where there is no input."""
        self._print("Enter: the next scene; q and Enter: the end")
        while not select.select([sys.stdin], [], [], POLL_S)[0]:
            self.look()
        line = sys.stdin.readline()
        return line.endswith("\n") and line.strip().lower() != "q"

    def _tell(self, lines: Sequence[str]) -> None:
        for line in lines[: self._lines_left]:
            self._print(line)
        if 0 < self._lines_left < len(lines):
            self._print("   ... and more events")
        self._lines_left = max(0, self._lines_left - len(lines))

    def _print(self, text: str) -> None:
        for line in text.splitlines():
            self._console.print(plain(line), soft_wrap=True)
