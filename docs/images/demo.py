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

from pyspark_kafka_meta.tools.cluster_state import ClusterState, caches_by_process, is_stale
from pyspark_kafka_meta.tools.demo import runner
from pyspark_kafka_meta.tools.demo.runner import own_cluster, start_query
from pyspark_kafka_meta.tools.demo.scenes import Scene, scenes_of
from pyspark_kafka_meta.tools.event_sources import StateReader

PICTURE = Path(__file__).with_suffix(".svg")
COLUMNS = 126
TIMEOUT_S = 300.0
AGAIN_AFTER_S = 8.0
POLL_S = 0.05


def main() -> None:
    with ExitStack() as opened:
        cluster = opened.enter_context(own_cluster(None, Console()))
        query = opened.enter_context(start_query(cluster, Console(), is_fed=True))
        scene = next(each for each in scenes_of(cluster, query.events, is_whole=True) if "of its own" in each.title)
        state = wait_until_one_is_stale(query.state_reader, scene)
        draw(runner.frame(state, runner.heading(scene), query.activity()))


def wait_until_one_is_stale(state_reader: StateReader, scene: Scene) -> ClusterState:
    """Repeat the scene's act until exactly one of the two executors is stale."""
    began = acted_at = time.monotonic()
    while (now := time.monotonic()) < began + TIMEOUT_S:
        state = state_reader.read()
        stale = stale_executors(state)
        if stale == [False, True]:
            return state
        if stale == [False, False] and now > acted_at + AGAIN_AFTER_S:
            scene.acts[0](state)
            acted_at = now
        time.sleep(POLL_S)
    raise TimeoutError(f"in {TIMEOUT_S:.0f} s exactly one executor was never stale: try again")


def stale_executors(state: ClusterState) -> list[bool]:
    """Whether each executor has a stale entry, sorted."""
    caches = [rows for name, rows in caches_by_process(state.cache_rows()).items() if name.startswith("executor")]
    return sorted(any(is_stale(row, state.leaders()) for row in rows.values()) for rows in caches)


def draw(frame: RenderableType) -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(frame)
    picture = console.export_svg(title="kafkameta demo", theme=MONOKAI)
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))  # a picture loads nothing


if __name__ == "__main__":
    main()
