"""Looks about once a second in a thread of its own, and does what buttons ask for in another, one after the other."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.monitor.cluster_state import State
from pyspark_kafka_meta.monitor.console import error_text
from pyspark_kafka_meta.page.page_view import Move, View, moves_since, view_of
from pyspark_kafka_meta.page.plots import WINDOW_MS, Plot, Sample, latencies, recoveries, throughput, timeline
from pyspark_kafka_meta.tables.table_rows import BrokerRow

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
END_S = 2.0
"""How long the end waits for a look: one at brokers that do not answer takes longer."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What a browser is shown.

    Attributes:
        plots: by name.
    """

    view: View
    plots: dict[str, Plot]


class Looker:
    """Looks inside `with`.

    Args:
        look: at the state now.
        by_place: as in `view_of`.

    Attributes:
        picture: of the last look; None before the first.
        trouble: why there is no newer picture, else None.
        state: of the last look.
        dead: brokers that a button killed.
        doing: what a button asked for and is not done yet, else None.
        said: what came of the last button.
    """

    def __init__(self, look: Callable[[], State], by_place: bool) -> None:
        self.picture: Picture | None = None
        self.trouble: str | None = None
        self.state: State | None = None
        self.dead: set[int] = set()
        self.doing: str | None = None
        self.said = ""
        self._look = look
        self._by_place = by_place
        self._moves: dict[TopicPartition, Move] = {}
        self._known: dict[int, BrokerRow] = {}
        self._samples: deque[Sample] = deque(maxlen=int(WINDOW_MS / 1000 / LOOK_EVERY_S))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafkameta-page-look", daemon=True)
        self._actor = ThreadPoolExecutor(1, "kafkameta-page-act")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(END_S)
        self._actor.shutdown(cancel_futures=True)

    def do(self, name: str, act: Callable[[State], str]) -> None:
        """Have it done, unless something else is; `act` returns what was done."""
        if self.doing is None and self.state is not None:
            self.doing = name
            self._actor.submit(self._do, name, act, self.state)

    def _do(self, name: str, act: Callable[[State], str], state: State) -> None:
        try:
            self.said = act(state)
        except Exception as error:
            self.said = f"{name} failed: {_told(error, None)}"
        finally:
            self.doing = None

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                self._take(self._look())
                self.trouble = None
            except Exception as error:
                if self._stopped.is_set():
                    return  # what it looks at is being closed
                self.trouble = _told(error, self.trouble)
            self._stopped.wait(max(0.0, began + LOOK_EVERY_S - time.monotonic()))

    def _take(self, state: State) -> None:
        self._moves = moves_since(self._moves, self.state, state)
        self._known.update((row.node_id, row) for row in state.brokers)
        if state.positions:
            self._samples.append(Sample(state.now_ms, state.records_per_s, state.records_behind()))
        plots = {
            "timeline": timeline(state.events, state.now_ms),
            "latencies": latencies(state.events, state.now_ms),
            "recoveries": recoveries(state.events, state.now_ms),
            "throughput": throughput(self._samples, state.now_ms),
        }
        view = view_of(state, self._known, self.dead, self._moves, self._by_place)
        self.state, self.picture = state, Picture(view, plots)


def _told(error: Exception, before: str | None) -> str:
    """For people at the page. What is not ours is a mistake of this program: a thread that ended with it would leave a
    page that stands still and says nothing. It is logged once for as long as nothing else is shown."""
    if isinstance(error, KafkaMetaError):
        return error_text(error)
    text = f"{type(error).__name__}, see the log of kafkameta page"
    if text != before:
        logger.error("the page met an error that it does not know", exc_info=error)
    return text
