"""Polls what the page shows, in threads, and runs the actions of buttons, one at a time, in another thread.

The state is polled about once a second. The lag of each query and the transactions have a thread of their own: a broker
that does not respond delays nothing else on the page.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Generic, NamedTuple, Self, TypeVar

from pyspark_kafka_meta.errors import AuthenticationError, KafkaMetaError, UnsupportedBrokerError
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.tables.rows import BrokerRow, TransactionRow
from pyspark_kafka_meta.tools.checkpoints import CheckpointLag
from pyspark_kafka_meta.tools.cluster_state import ClusterState
from pyspark_kafka_meta.tools.console import error_text
from pyspark_kafka_meta.tools.event_sources import RepeatedPoll
from pyspark_kafka_meta.tools.page.plots import (
    LAG_SAMPLE_MS,
    LAG_WINDOW_MS,
    Plot,
    Sample,
    lag,
    latencies,
    recoveries,
    timeline,
)
from pyspark_kafka_meta.tools.page.view_model import Move, NamedLag, PageView, Polled, behind, moves_since, view_of

logger = logging.getLogger(__name__)

T = TypeVar("T")
POLL_S = 1.0
CLUSTER_POLL_S = 2.0


class Snapshot(NamedTuple):
    """What a browser shows; the plots by name."""

    view: PageView
    plots: dict[str, Plot]


class PolledCluster(NamedTuple):
    """The last values of `ClusterPolls`."""

    lags: Sequence[NamedLag]
    transactions: Polled[list[TransactionRow]] | None


class ClusterPolls(NamedTuple):
    """What is polled of a cluster beside the state: the lag of each query, with the name of its checkpoint, and the
    transactions."""

    lags: Sequence[tuple[str, Callable[[], CheckpointLag]]]
    transactions: Callable[[], list[TransactionRow]]


class ClusterPoll(RepeatedPoll, Generic[T]):
    """Polls until brokers turn out not to support the request, or refuse the login: repeated attempts may lock the
    account.

    Args:
        get: returns the value. May take long.
        get_trouble: why there is no use in polling now, else None.
    """

    def __init__(self, get: Callable[[], T], get_trouble: Callable[[], str | None]) -> None:
        super().__init__("kafkameta-page-cluster", CLUSTER_POLL_S, from_end=True)
        self._last: Polled[T] = Polled()
        self._get = get
        self._get_trouble = get_trouble

    def __exit__(self, *_: object) -> None:
        """Does not wait for a response."""
        self._stopped.set()

    @property
    def last(self) -> Polled[T]:
        """The last value; unknown at once when there is trouble, even during a poll."""
        trouble = self._get_trouble()
        return self._last if trouble is None else Polled(trouble=trouble)

    def poll(self) -> None:
        if self._get_trouble() is None:
            self._last = Polled(self._get())

    def on_error(self, error: Exception) -> bool:
        text, is_supported = page_error_text(error, self._last.trouble), not isinstance(error, UnsupportedBrokerError)
        if is_refused := isinstance(error, AuthenticationError):
            text = f"{text} (not asked again: restart the command)"
        self._last = Polled(trouble=text, is_supported=is_supported)
        return is_supported and not is_refused


class StatePoller(RepeatedPoll):
    """Args:
        get_state: returns the state now.
        by_process: as in `view_of`.
        polls: None without a cluster.

    Attributes:
        snapshot: of the last state; None before the first.
        trouble: why there is no newer snapshot, else None.
        state: the last one.
        dead: brokers that a button killed.
        running: name of the action that runs, else None.
        result: of the last action.
    """

    def __init__(
        self, get_state: Callable[[], ClusterState], by_process: bool, polls: ClusterPolls | None = None
    ) -> None:
        super().__init__("kafkameta-page-poll", POLL_S)
        self.snapshot: Snapshot | None = None
        self.trouble: str | None = None
        self.state: ClusterState | None = None
        self.dead: set[int] = set()
        self.running: str | None = None
        self.result = ""
        self._get_state = get_state
        self._by_process = by_process
        lags = polls.lags if polls else ()
        self._lags = [(name, ClusterPoll(poll, self._cluster_trouble)) for name, poll in lags]
        self._transactions = ClusterPoll(polls.transactions, self._cluster_trouble) if polls else None
        self._opened = ExitStack()
        self._moves: dict[TopicPartition, Move] = {}
        self._known: dict[int, BrokerRow] = {}
        self._samples: deque[Sample] = deque(maxlen=LAG_WINDOW_MS // LAG_SAMPLE_MS)
        self._action_thread = ThreadPoolExecutor(1, "kafkameta-page-action")

    def __enter__(self) -> Self:
        super().__enter__()
        for _, poll in self._lags:
            self._opened.enter_context(poll)
        if self._transactions is not None:
            self._opened.enter_context(self._transactions)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
        super().__exit__()
        self._action_thread.shutdown(cancel_futures=True)

    def polled(self) -> PolledCluster:
        """The last values."""
        transactions = None if self._transactions is None else self._transactions.last
        return PolledCluster([(name, poll.last) for name, poll in self._lags], transactions)

    def submit(self, name: str, action: Callable[[ClusterState], str]) -> None:
        """Run the action, which returns its result, unless another one runs."""
        if self.running is None and self.state is not None:
            self.running = name
            self._action_thread.submit(self._run_action, name, action, self.state)

    def _run_action(self, name: str, action: Callable[[ClusterState], str], state: ClusterState) -> None:
        try:
            self.result = action(state)
        except Exception as error:
            self.result = f"{name} failed: {page_error_text(error, None)}"
        finally:
            self.running = None

    def _cluster_trouble(self) -> str | None:
        """Why the cluster is not polled: brokers that do not respond to the state's requests respond to no others, and
        after a refused login each attempt may lock the account."""
        return "the cluster has not answered yet" if self.state is None else self.state.trouble

    def poll(self) -> None:
        state = self._get_state()
        self._moves = moves_since(self._moves, self.state, state)
        self._known.update((row.node_id, row) for row in state.brokers)
        if self._lags and (not self._samples or state.now_ms >= self._samples[-1].time_ms + LAG_SAMPLE_MS):
            self._samples.append(Sample(state.now_ms, [behind(poll.last) for _, poll in self._lags]))
        plots = {
            "timeline": timeline(state.events, state.now_ms),
            "latencies": latencies(state.events, state.now_ms),
            "recoveries": recoveries(state.events, state.now_ms),
            "lag": lag([name for name, _ in self._lags], self._samples, state.now_ms),
        }
        before = None if self.snapshot is None else self.snapshot.view
        view = view_of(state, self._known, self.dead, self._moves, self._by_process, before)
        self.state, self.snapshot, self.trouble = state, Snapshot(view, plots), None

    def on_error(self, error: Exception) -> bool:
        self.trouble = page_error_text(error, self.trouble)
        return True


def page_error_text(error: Exception, before: str | None) -> str:
    """For the page. An unexpected error must not end the thread, or the page would stand still; it is logged once until
    another text is shown."""
    if isinstance(error, KafkaMetaError):
        return error_text(error)
    text = f"{type(error).__name__}, see the log of kafkameta page"
    if text != before:
        logger.error("unexpected error of the page", exc_info=error)
    return text
