"""Draws docs/images/demo.svg: what `kafkameta demo` shows in scene 8, while one executor is stale.

python docs/images/demo.py     # a real run on embedded brokers, for about half a minute
"""

from __future__ import annotations

import io
import re
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console, RenderableType
from rich.terminal_theme import MONOKAI

from pyspark_kafka_meta.demo import demo_frames
from pyspark_kafka_meta.demo.play import own_cluster, set_stage
from pyspark_kafka_meta.demo.scenes import Scene, scenes_of
from pyspark_kafka_meta.monitor.cluster_state import State, is_stale, newest_caches
from pyspark_kafka_meta.monitor.watcher import Watcher

PICTURE = Path(__file__).with_suffix(".svg")
COLUMNS = 126
TIMEOUT_S = 300.0
AGAIN_AFTER_S = 8.0
POLL_S = 0.05


def main() -> None:
    with ExitStack() as stage:
        cluster = stage.enter_context(own_cluster(None, Console()))
        played = stage.enter_context(set_stage(cluster, Console(), is_fed=True))
        scene = next(one for one in scenes_of(cluster, played.events) if one.number == 8)
        state = one_is_stale(played.watcher, scene)
        assert played.feed is not None
        draw(demo_frames.frame(state, demo_frames.heading(scene), played.feed.produced))


def one_is_stale(watcher: Watcher, scene: Scene) -> State:
    """Play the scene's act, again and again, until one of two executors knows the new leader and the other does not."""
    began = acted_at = time.monotonic()
    while (now := time.monotonic()) < began + TIMEOUT_S:
        state = watcher.look()
        stale = stale_executors(state)
        if stale == [False, True]:
            return state
        if stale == [False, False] and now > acted_at + AGAIN_AFTER_S:
            scene.acts[0](state)
            acted_at = now
        time.sleep(POLL_S)
    raise TimeoutError(f"in {TIMEOUT_S:.0f} s there was no moment when one executor alone was stale: try again")


def stale_executors(state: State) -> list[bool]:
    """Of each executor whether anything in its cache is stale, sorted."""
    caches = {place: rows for place, rows in newest_caches(state.caches).items() if place[0] == "reader"}
    return sorted(any(is_stale(row, state.live()) for row in rows.values()) for rows in caches.values())


def draw(frame: RenderableType) -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(frame)
    picture = console.export_svg(title="kafkameta demo", theme=MONOKAI)
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))  # a picture loads nothing


if __name__ == "__main__":
    main()
