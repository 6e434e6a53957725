"""What listeners of queries share: cheap callbacks, calls outside of them, and the events of a driver's queries."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pyspark import SparkContext
from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_kafka_meta.errors import AuthenticationError, KafkaMetaError, OptionError
from pyspark_kafka_meta.events.default_folder import application_folder
from pyspark_kafka_meta.events.origin import driver_name
from pyspark_kafka_meta.options import EventTableOptions
from pyspark_kafka_meta.tables.caches_from_events import EventRow
from pyspark_kafka_meta.tools.cluster_state import event_order
from pyspark_kafka_meta.tools.event_sources import EventSource, FolderEvents, open_events

logger = logging.getLogger("pyspark_kafka_meta.queries")

END_WAIT_S, MIN_END_WAIT_S = 5.0, 1.0
"""The end of a query waits this long for the last calls of all its listeners, and at least so long for each: its driver
may end too."""
MAX_CALLS = 1_000
"""Further calls replace the oldest."""
CACHES_KNOWN = 10_000
"""A driver knows which events of so many caches it has read."""


class JsonListener(StreamingQueryListener):
    """A listener that gets each event as JSON, by one call of the JVM. PySpark's own makes a call for each field, a
    hundred of each report. It is itself the proxy of the JVM's listener, which a Spark Connect client does not have.

    Spark waits for `on_start`, and reports later while the others run.
    """

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    @property
    def _jlistener(self) -> Any:
        if not hasattr(self, "_wrapper"):
            jvm: Any = SparkContext._jvm
            self._wrapper = jvm.PythonStreamingQueryListenerWrapper(self)
        return self._wrapper

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        self.on_start(json.loads(event.json()))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.on_progress(json.loads(event.json())["progress"])

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.on_end(json.loads(event.json()))

    def on_start(self, event: Mapping[str, Any]) -> None:
        """A query has started: `id`, `runId`, `name`."""

    def on_progress(self, progress: Mapping[str, Any]) -> None:
        """A micro-batch has finished: Spark's report."""

    def on_end(self, event: Mapping[str, Any]) -> None:
        """A query has ended: `id`, `runId`, `exception`."""


class BackgroundCalls:
    """Makes calls in order, in a thread of its own: Spark waits for the callbacks of listeners. Errors are logged only.

    Without calls the thread ends: Spark tells no listener that it was removed.

    Args:
        gather_s: the thread begins so long after its first call, unless something waits for it.
    """

    _latest_end: ClassVar[tuple[str | None, float]] = None, 0.0
    """The run that ended last, and until when all listeners wait for its calls, in seconds of the monotonic clock."""

    def __init__(self, name: str, gather_s: float = 0.0) -> None:
        self._name = name
        self._gather_s = gather_s
        self._is_awaited = threading.Event()
        self._calls: deque[Callable[[], None]] = deque(maxlen=MAX_CALLS)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.append(call)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()  # raises RuntimeError if the process has as many as it may have
                self._thread = thread

    def wait(self, run_id: str | None = None) -> None:
        """Until no call is left. The listeners of a run, which Spark tells of its end one after the other, share the
        time."""
        if run_id is None or BackgroundCalls._latest_end[0] != run_id:
            BackgroundCalls._latest_end = run_id, time.monotonic() + END_WAIT_S
        self._is_awaited.set()
        if (thread := self._thread) is not None:
            thread.join(max(MIN_END_WAIT_S, BackgroundCalls._latest_end[1] - time.monotonic()))
        self._is_awaited.clear()

    def _run(self) -> None:
        self._is_awaited.wait(self._gather_s)
        while True:
            with self._lock:
                if not self._calls:
                    self._thread = None
                    return
                call = self._calls.popleft()
            try:
                call()
            except Exception:  # must not end the thread
                logger.exception("unexpected error of the listener")


class DriverEvents:
    """The new events of a driver's queries, each once: by `eventsPath` or `eventsTopic` of the queries, else of the
    default folder. Raises OptionError.

    Attributes:
        query_ids: of the driver's queries. The same place may have the events of a hundred other drivers.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        EventTableOptions.parse(options)
        self.query_ids: set[str] = set()
        self._options = options
        self._since_ms = int(time.time() * 1000)
        self._source: EventSource | None = None
        self._is_refused = False  # by the events topic
        self._known: dict[str, int] = {}  # the last sequence of each cache

    def read(self) -> list[EventRow] | None:
        """The events since the last call, at first since this was created; None if they cannot be read."""
        if self._is_refused:
            return None
        try:
            if self._source is None:  # a later thread goes on to read it
                self._source = open_driver_events(self._options, SparkContext._active_spark_context, self._since_ms)
            events = [
                event
                for event in self._source.read()
                if event["query_id"] in self.query_ids and event["time_ms"] >= self._since_ms
            ]
        except KafkaMetaError as error:
            logger.warning("the refreshes of queries are unknown: %s", error)
            self._is_refused = isinstance(error, AuthenticationError)  # repeated attempts may lock the account
            return None
        return [event for event in sorted(events, key=event_order) if self._is_new(event)]

    def _is_new(self, event: EventRow) -> bool:
        """A source may return an event twice."""
        cache_id, sequence = event["cache_id"], event["sequence"]
        known = self._known.pop(cache_id, 0)
        self._known[cache_id] = max(sequence, known)
        if len(self._known) > CACHES_KNOWN:
            del self._known[next(iter(self._known))]  # silent for the longest time
        return bool(sequence > known)


def open_driver_events(options: Mapping[str, str], context: SparkContext | None, since_ms: int = 0) -> EventSource:
    """The events where options say, as of `open_events`, else in the default folder of the driver with this context.
    Raises OptionError."""
    if options:
        return open_events(options, must_exist=False, skips_unreadable=True, since_ms=since_ms)
    if context is None or (jvm := context._jvm) is None:
        raise OptionError("Spark has stopped, and where its queries wrote their events is not known any more")
    jvm_pid = int(jvm.java.lang.ProcessHandle.current().pid())
    return FolderEvents(str(application_folder(driver_name(jvm_pid))), skips_unreadable=True)
