"""`ReadingHistory`: a streaming query on a cluster with faults, all drawn from one seed.

The query runs as Spark drives it: each plan goes through JSON text, each task runs in a kept or a new worker, planner
and workers crash and repeat what was not finished. Producers append, and faults strike, at any time: between requests,
while requests are in flight, and while a task decodes. Then all brokers are healthy, but for those that are cut off for
good, and the query catches up.

| drawn | from |
|---|---|
| cluster | brokers, topics, partitions, fetches by id or by name, latencies |
| query | rate limit, minPartitions, rack, isolation, sizes of Fetches, age of metadata, pattern, failOnDataLoss |
| Spark | time between micro-batches, time for rows, restarts of the query, new workers, lost workers |
| records | batches of a few records, some with gaps as after compaction, some in transactions |
| faults | a few kinds of `Faults`, `ReadingFaults`, `ReplacedLeaders`, from 50 a second to one in 2 s, for up to 20 s |

| invariant | meaning |
|---|---|
| exactly once | micro-batches hold each record of the final logs once, in order, if nothing was lost |
| true | a row is a committed record that the planned topic had at this offset; none is of an aborted transaction |
| reported | a record of the final logs without a row lies in a `data_loss` event, or a DataLossError ended the query |
| one log | a task gives rows of one log, but for what it has reported: no later plan may notice it |
| no false alarm | no data_loss event or DataLossError for records that exist, no request_timeout for a healthy broker |
| alive | a plan or task ends within seconds on healthy brokers, and raises no error if it began on healthy brokers |
| awake | a planner sees new records within seconds, though a broker may be cut off for good |
| modest | few Metadata requests and few Fetches without records from one client |
| told | the events of a cache tell the leaders that it knows |
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import DataLossError, KafkaMetaError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import OffsetRange, TopicPartition
from pyspark_kafka_meta.options import ClientOptions, SourceOptions
from pyspark_kafka_meta.read.fetching.fetch_sender import MAX_REPORT_AGE_S
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, SourceOffset
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner, stream_planner_options
from tests.checkpoints import restored, text
from tests.unit.fake_network import FakeClock, FakeNetwork
from tests.unit.histories.faults import Faults
from tests.unit.histories.history import TICK_S, History
from tests.unit.histories.reading_cluster import ReadingCluster, transactional
from tests.unit.histories.reading_faults import ReadingFaults
from tests.unit.histories.replaced_leaders import ReplacedLeaders
from tests.unit.histories.stored_records import Record, StoredRecords, read_records
from tests.unit.logs import sparse_batch

FAULTS_S = (5.0, 20.0, 20.0)
STEP_S = 20.0
"""Of a plan or task on healthy brokers: a Metadata request that hung for 3 s, twice 5 s before records count as lost or
compacted, and pauses of the process."""
REPLACED_SHARE = 0.4
"""Of histories whose leaders are often replaced without knowing it, half of them without other faults."""
END_S = 300.0
DOUBTFUL_S = MAX_REPORT_AGE_S + 1.0
"""A report of a broker may be as old, and its response takes time."""
SEES_S = 30.0
"""A planner sees all records so long after all brokers were healthy: its metadata lives for 5 s."""
COLUMNS = ("topic", "partition", "offset", "value")
MAX_OPEN = 2
"""Transactions in one partition, each of a producer of its own."""
CODES = (
    ErrorCode.unknown_server_error,
    ErrorCode.offset_out_of_range,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.request_timed_out,
    ErrorCode.replica_not_available,
    ErrorCode.kafka_storage_error,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.offset_not_available,
    ErrorCode.unknown_topic_id,
    ErrorCode.inconsistent_topic_id,
)


class ReadingHistory(History):
    """One history.

    Attributes:
        isolation_levels: of the query, before and after restarts: whether it is read_committed.
        tasks: records of each task of the finished micro-batches, in order.
        told: how many events there were when each of these tasks ended.
        clients: of planners and workers.
        doubtful: records that may be of another topic of this name.
        unnoticed: recreated topics whose new offsets a plan took for those of the old topic: ListOffsets asks by name,
            and nothing had told the planner yet.
        failures: of plans and tasks.
        violations: of "alive" and "no false alarm"; `reading_checks` has the others.
    """

    def __init__(self, seed: int, losses: bool = False, kinds: Sequence[str] = ()) -> None:
        """
        Args:
            losses: whether records are lost.
            kinds: of faults, instead of random ones.
        """
        super().__init__(seed)
        self.clock = FakeClock(tick_s=TICK_S, rng=self._rng())
        self.cluster = ReadingCluster(self.rng.choice([1, 2, 3, 3, 3, 5]))
        self.network = FakeNetwork(self.cluster, self.clock, self._rng())
        self.network.by_name = self.rng.random() < (0.4 if losses else 0.2)
        for topic in "tu"[: self.rng.choice([1, 1, 2])]:
            self.cluster.create_topic(topic, self.rng.randint(1, 3))
        self.given = self._draw_options(losses)
        self.options = SourceOptions.parse(self.given)
        # At OFFSET_OUT_OF_RANGE a reader forgets the epoch of what it read, and may miss a truncation: where logs are
        # truncated, only they report it.
        codes = [code for code in CODES if not losses or code is not ErrorCode.offset_out_of_range]
        self.faults = Faults(self.network, self._rng(), codes)
        self.stored = StoredRecords(self.cluster)
        self.of_logs = ReadingFaults(self.faults, self.network, self.cluster, self._append, self.stored, self._rng())
        self.replaced = ReplacedLeaders(
            self.faults, self.of_logs, self.network, self.cluster, self._append, self._rng()
        )
        self.clients: list[KafkaClient] = []
        self.tasks: list[list[Record]] = []
        self.told: list[int] = []
        self.doubtful: set[Record] = set()
        self.unnoticed: set[str] = set()
        self.failures: list[KafkaMetaError] = []
        self.violations = self.faults.violations
        self._numbers = itertools.count()
        self._outcomes: dict[int, bool] = {}  # whether a transaction commits, by producer id
        self._end = BEGINNING
        self._next: SourceOffset | None = None  # of the micro-batch that is not finished
        self._consumed_s = 0.0  # that Spark took for rows of a task, once all brokers are healthy
        self.isolation_levels = {self.options.fetch.read_committed}
        self.restart_share = self.rng.choice([0.0, 0.1, 0.3])
        self.transactional_share = self.rng.choice([0.0, 0.0, 0.2, 0.6])
        self._start(losses, kinds)

    def _draw_options(self, losses: bool) -> dict[str, str]:
        def maybe(share: float, name: str, *values: object) -> dict[str, str]:
            return {name: str(self.rng.choice(values))} if self.rng.random() < share else {}

        return {
            "kafka.bootstrap.servers": "broker-1:9092,broker-2:9092",
            "startingOffsets": "earliest",
            "failOnDataLoss": str(self.rng.random() < (0.4 if losses else 0.7)).lower(),
            **(maybe(0.2, "subscribePattern", "^[tu]$") or {"subscribe": ",".join(self.cluster.topics)}),
            **maybe(0.3, "maxOffsetsPerTrigger", 30, 100),
            **maybe(0.3, "minPartitions", 4, 9),
            **maybe(0.4, "kafka.client.rack", "here"),
            **maybe(0.4, "kafka.isolation.level", "read_committed"),
            **maybe(0.7, "kafka.max.partition.fetch.bytes", 100, 300),
            **maybe(0.3, "kafka.metadata.max.age.ms", 0, 1000, 10_000),
            **maybe(0.2, "kafka.fetch.max.wait.ms", 0, 90, 100, 2000),
        }

    def _start(self, losses: bool, given: Sequence[str]) -> None:
        """Begin with faults and appends, which end together."""
        kinds = self.rng.sample(list(self.faults.kinds), self.rng.randint(1, 8))
        if losses:
            self.faults.kinds |= self.of_logs.losses
            kinds += self.rng.sample(list(self.of_logs.losses), self.rng.randint(1, 2))
        if self.rng.random() < REPLACED_SHARE:
            of_leaders = ["fence", "fence_uncleanly"] if losses else ["fence"]
            kinds = (kinds if self.rng.random() < 0.5 else ["elect"]) + of_leaders
        self.faults.start(given or kinds, self.rng.choice([0.02, 0.1, 0.5, 2.0]), self.rng.choice(FAULTS_S))
        mean_gap_s = self.rng.choice([0.1, 0.3, 1.0])

        def append() -> None:
            if self.clock.now < self.faults.healed_at:
                self._append_somewhere()
                self.clock.at(self.rng.expovariate(1 / mean_gap_s), append)

        append()
        self.clock.at(self.faults.healed_at - self.clock.now, self._end_transactions)

    def _append_somewhere(self) -> None:
        if not self.faults.partitions():
            return
        partition = self.faults.partition()
        opened = self.cluster.open_transactions(partition)
        if opened and self.rng.random() < 0.3:
            self._end_transaction(partition, self.rng.choice(list(opened)))
            return
        producer_id = None
        if self.rng.random() < self.transactional_share:
            new = [next(self.cluster.producer_ids)] if len(opened) < MAX_OPEN else []
            producer_id = self.rng.choice([*opened, *new])
        self._append(self.cluster, partition, self.cluster.partition(partition).leader_epoch, producer_id)

    def _append(
        self, served: ReadingCluster, partition: TopicPartition, epoch: int, producer_id: int | None = None
    ) -> None:
        """Append a batch to the log that a broker serves, in this leader epoch, maybe in a producer's transaction. No
        reader may see records that a fenced broker cannot commit."""
        count, has_gaps = self.rng.randint(1, 4), self.rng.random() < 0.15
        offsets = sorted(self.rng.sample(range(8), count)) if has_gaps else range(count)
        values = {offset - offsets[0]: str(next(self._numbers)) for offset in offsets}
        batch = sparse_batch(values)
        base_offset = served.append(partition, batch if producer_id is None else transactional(batch, producer_id))
        log = served.logs[partition]
        log[-1] = replace(log[-1], data=log[-1].data[:12] + epoch.to_bytes(4, "big") + log[-1].data[16:])
        is_committed = served.bounds(partition)[1] <= served.high_watermark(partition)
        self.stored.add(served, partition, values if is_committed else {})
        self.faults.note(f"append {len(values)} to {partition} at {base_offset}, epoch {epoch}, producer {producer_id}")

    def _end_transaction(self, partition: TopicPartition, producer_id: int) -> None:
        # A transaction whose marker was truncated ends as it did before.
        commits = self._outcomes.setdefault(producer_id, self.rng.random() < 0.5)
        self.cluster.end_transaction(partition, producer_id, commits)
        self.stored.add(self.cluster, partition, {})
        self.faults.note(f"{'commit' if commits else 'abort'} of producer {producer_id} in {partition}")

    def _end_transactions(self) -> None:
        for partition in self.faults.partitions():
            for producer_id in self.cluster.open_transactions(partition):
                self._end_transaction(partition, producer_id)

    def _client(self, options: ClientOptions) -> KafkaClient:
        client = self._new_client(options, self.network.another(), self.options.topic_filter)
        self.faults.judge(client.cache)
        self.clients.append(client)
        return client

    def _worker(self) -> KafkaClient:
        return self._client(self.options.client)

    def _planner(self) -> OffsetPlanner:
        self._planning = self._client(stream_planner_options(self.options.client))
        self._sees_by = max(self.clock.now, self.faults.healed_at) + SEES_S
        return OffsetPlanner(self._planning, self.options.for_stream())

    def run(self) -> ReadingHistory:
        """Run the query until it has read all, fails because of lost records, or time is up."""
        planner, worker = self._planner(), self._worker()
        while self.clock.now < self.faults.healed_at + END_S:
            try:
                if self._plan(planner):
                    worker = self._read(planner, worker)
                elif self._is_complete():
                    return self
                elif self.clock.now > self._sees_by:
                    self.violations.append(f"a planner sees no new records {SEES_S} s after all brokers were healthy")
                    return self
            except DataLossError as error:
                self.failures.append(error)
                return self
            except KafkaMetaError as error:
                self.failures.append(error)
                planner, worker = self._planner(), self._worker()
            if self.rng.random() < self.restart_share:
                planner = self._restart()
            self.clock.sleep(self.rng.choice([0.0, 0.1, 1.0]))
        self.violations.append(f"the query has not read all, {END_S} s after all brokers were healthy")
        return self

    def _restart(self) -> OffsetPlanner:
        """The planner of the restarted query, which may have another isolation level."""
        if self.rng.random() < 0.5:
            self.given["kafka.isolation.level"] = (
                "read_uncommitted" if self.options.fetch.read_committed else "read_committed"
            )
            self.options = SourceOptions.parse(self.given)
            self.isolation_levels.add(self.options.fetch.read_committed)
        self.faults.note(f"the query restarts, read_committed: {self.options.fetch.read_committed}")
        return self._planner()

    def _is_complete(self) -> bool:
        """Whether all is read, and the planner knows the last leaders: a log as long as before may differ."""
        if self.clock.now < self.faults.healed_at:
            return False
        known = self._planning.cache.snapshot
        return all(
            (position := self._end.positions.get(partition)) is not None
            and position.offset == self.cluster.bounds(partition)[1]
            and (leader := known.leader(partition)) is not None
            and leader.leader_epoch == self.cluster.partition(partition).leader_epoch
            for partition in self.faults.partitions()
        )

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """A plan or a task: how it ends, and when."""
        began, self._consumed_s = self.clock.now, 0.0
        try:
            yield
        except KafkaMetaError as error:
            self.faults.note(f"{name} fails: {type(error).__name__}: {error}")
            if began > self.faults.healed_at and not isinstance(error, DataLossError):
                self.violations.append(f"{name} failed though all brokers are healthy: {type(error).__name__}: {error}")
            raise
        finally:
            took_s = self.clock.now - max(began, self.faults.healed_at) - self._consumed_s
            if took_s > STEP_S:
                self.violations.append(f"{name} that began at {began:.3f} took {took_s:.1f} s on healthy brokers")

    def _plan(self, planner: OffsetPlanner) -> bool:
        """Whether there is something to read."""
        if self._next is None:
            with self._step("plan"):
                end = restored(planner.next_offset(self._end, None, True))
            if text(end) == text(self._end):
                return False
            self._next = end
            topics, known = self.cluster.topics, self._planning.cache.snapshot
            self.unnoticed.update(
                topic
                for topic, topic_id in end.topic_ids.items()
                if topic_id == known.topic_id(topic) and topic in topics and topic_id != topics[topic].topic_id
            )
            self.faults.note(f"plan from {spans(self._end)} to {spans(end)}")
        return True

    def _read(self, planner: OffsetPlanner, worker: KafkaClient) -> KafkaClient:
        """Run the tasks of a micro-batch, and finish it. Returns the worker for the next."""
        assert self._next is not None
        with self._step("ranges"):
            ranges = planner.ranges(self._end, self._next)
        finished: list[list[Record]] = []
        told = []
        for task in planner.tasks(ranges):
            while (records := self._attempt(worker, task, self._next)) is None:
                worker = self._worker()
            finished.append(records)
            told.append(len(self.events))
            if self.rng.random() < 0.2:
                worker = self._worker()
        self.tasks += finished
        self.told += told
        self._end, self._next = self._next, None
        return worker

    def _attempt(self, worker: KafkaClient, task: Sequence[OffsetRange], end: SourceOffset) -> list[Record] | None:
        """The records of a task; None if its worker was lost."""
        ids = {planned.partition: planned.topic_id for planned in task}
        lost_at = self.rng.choice([2, 10, 10**9, 10**9, 10**9])
        records: list[Record] = []
        with self._step("task"):
            for rows in TaskReader(worker, self.options.for_stream(), COLUMNS).read(task, end.topic_ids):
                read = read_records(rows, ids)
                records += read
                self.doubtful.update(filter(self._is_doubtful, read))
                self._consume()
                if len(records) > lost_at:
                    self.faults.note("a worker is lost")
                    return None
        return records

    def _is_doubtful(self, record: Record) -> bool:
        """Fetched by name just after its topic was recreated, of which nothing tells in time."""
        recreated_at = self.of_logs.recreated_at.get(record.partition.topic, -math.inf)
        return self.network.by_name and self.clock.now < recreated_at + DOUBTFUL_S

    def _consume(self) -> None:
        began = self.clock.now
        self.clock.sleep(self.rng.choice([0.0, 0.0, 0.0, 0.02, 0.1, 3.0]))
        self._consumed_s += max(self.clock.now - max(began, self.faults.healed_at), 0)

    def __str__(self) -> str:
        return self._told(f"by {'name' if self.network.by_name else 'id'}", 100)


def spans(offset: SourceOffset) -> str:
    return " ".join(
        f"{partition}:{position.offset}/{position.leader_epoch}"
        for partition, position in sorted(offset.positions.items())
    )
