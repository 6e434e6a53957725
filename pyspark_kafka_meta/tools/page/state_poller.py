"""Polls the state about once a second in a thread, and runs the actions of buttons, one at a time, in another."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple, Self

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.tables.rows import BrokerRow, TransactionRow
from pyspark_kafka_meta.tools.page.plots import WINDOW_MS, Plot, Sample, latencies, recoveries, throughput, timeline
from pyspark_kafka_meta.tools.page.repeated_question import Answer, RepeatedQuestion, page_error_text
from pyspark_kafka_meta.tools.page.view_model import Move, NamedLag, PageView, moves_since, records_behind, view_of
from pyspark_kafka_meta.tools.shared.cluster_state import State
from pyspark_kafka_meta.tools.shared.query_checkpoint import CheckpointLag

POLL_S = 1.0
CLOSE_TIMEOUT_S = 2.0
"""Closing waits this long for a poll; brokers that do not answer take longer."""


class Snapshot(NamedTuple):
    """What a browser shows; the plots by name."""

    view: PageView
    plots: dict[str, Plot]


class Answers(NamedTuple):
    """The last answers to `Questions`."""

    lags: Sequence[NamedLag]
    transactions: Answer[list[TransactionRow]] | None


class Questions(NamedTuple):
    """What a cluster is asked beside the state: the lag of each query, with the name of its checkpoint, and the
    transactions."""

    lags: Sequence[tuple[str, Callable[[], CheckpointLag]]]
    transactions: Callable[[], list[TransactionRow]]


class StatePoller:
    """Polls inside `with`.

    Args:
        get_state: returns the state now.
        by_process: as in `view_of`.
        questions: None without a cluster.

    Attributes:
        snapshot: of the last state; None before the first.
        trouble: why there is no newer snapshot, else None.
        state: the last one.
        dead: brokers that a button killed.
        running: name of the action that runs, else None.
        result: of the last action.
    """

    def __init__(self, get_state: Callable[[], State], by_process: bool, questions: Questions | None = None) -> None:
        self.snapshot: Snapshot | None = None
        self.trouble: str | None = None
        self.state: State | None = None
        self.dead: set[int] = set()
        self.running: str | None = None
        self.result = ""
        self._get_state = get_state
        self._by_process = by_process
        lags = questions.lags if questions else ()
        self._lags = [(name, RepeatedQuestion(lag, self._cluster_trouble)) for name, lag in lags]
        self._transactions = RepeatedQuestion(questions.transactions, self._cluster_trouble) if questions else None
        self._opened = ExitStack()
        self._moves: dict[TopicPartition, Move] = {}
        self._known: dict[int, BrokerRow] = {}
        self._samples: deque[Sample] = deque(maxlen=int(WINDOW_MS / 1000 / POLL_S))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafkameta-page-poll", daemon=True)
        self._action_thread = ThreadPoolExecutor(1, "kafkameta-page-action")

    def __enter__(self) -> Self:
        self._thread.start()
        for _, lag in self._lags:
            self._opened.enter_context(lag)
        if self._transactions is not None:
            self._opened.enter_context(self._transactions)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
        self._stopped.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        self._action_thread.shutdown(cancel_futures=True)

    def answers(self) -> Answers:
        """The last ones."""
        transactions = None if self._transactions is None else self._transactions.answer
        return Answers([(name, lag.answer) for name, lag in self._lags], transactions)

    def submit(self, name: str, action: Callable[[State], str]) -> None:
        """Run the action, which returns its result, unless another one runs."""
        if self.running is None and self.state is not None:
            self.running = name
            self._action_thread.submit(self._run_action, name, action, self.state)

    def _run_action(self, name: str, action: Callable[[State], str], state: State) -> None:
        try:
            self.result = action(state)
        except Exception as error:
            self.result = f"{name} failed: {page_error_text(error, None)}"
        finally:
            self.running = None

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                self._update(self._get_state())
                self.trouble = None
            except Exception as error:
                if self._stopped.is_set():
                    return  # the query or the events are being closed
                self.trouble = page_error_text(error, self.trouble)
            self._stopped.wait(max(0.0, began + POLL_S - time.monotonic()))

    def _cluster_trouble(self) -> str | None:
        """Why the questions are not asked: brokers that do not answer one answer none, and after a refused login each
        attempt may lock the account."""
        return "the cluster has not answered yet" if self.state is None else self.state.trouble

    def _update(self, state: State) -> None:
        self._moves = moves_since(self._moves, self.state, state)
        self._known.update((row.node_id, row) for row in state.brokers)
        if state.positions:
            self._samples.append(Sample(state.now_ms, state.records_per_s, records_behind(self.answers().lags)))
        plots = {
            "timeline": timeline(state.events, state.now_ms),
            "latencies": latencies(state.events, state.now_ms),
            "recoveries": recoveries(state.events, state.now_ms),
            "throughput": throughput(self._samples, state.now_ms),
        }
        view = view_of(state, self._known, self.dead, self._moves, self._by_process)
        self.state, self.snapshot = state, Snapshot(view, plots)
