"""`CommitFaults`: what befalls transactions and the processes of Spark, besides `Faults`.

| fault | meaning |
|---|---|
| kill_driver | Spark's driver is killed, with its tasks or without them, and started again after a while |
| second_driver | Spark's driver is started again while the first still runs |
| settle | somebody settles the sink beside the query (`kafkameta transactions --settle`) |
| kill_task | a task attempt is killed |
| zombie | a task attempt of this batch or an earlier one writes again, under its old transactional id |
| freeze | a process stops for a while, and goes on |
| time_out | a coordinator aborts an open transaction after its timeout |
| forget | a coordinator forgets a transactional id that has no open transaction |
| move_coordinator | another broker coordinates a transactional id |
| coordinator_codes | the next responses of an API of transactions have retriable error codes |
| stale_end | the next ListOffsets responses for a partition have an end that is too low |
| small_messages | a topic takes small record batches only, for a while |
| change_version | the cluster finalizes the other transaction version |
| change_limit | transaction.max.timeout.ms is lowered or raised |
| compact | compaction removes records of the decisions topic that later ones replace, and aborted ones |
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.kafka.records.batches import is_abort_marker, read_batch_headers
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, decode
from pyspark_kafka_meta.model import NO_PRODUCER, TopicPartition, TransactionVersion
from tests.unit.fake_cluster import StoredBatch
from tests.unit.fake_coordinators import ONGOING
from tests.unit.histories.commit_network import CommitNetwork, LateCoordinators
from tests.unit.histories.faults import LONG_S, Faults
from tests.unit.histories.processes import Process, ProcessClock

DECISIONS = TopicPartition("kafkameta-decisions", 0)
FREEZE_S = (0.5, 5.0, 30.0, 70.0)
RESTART_S = (0.0, 1.0, 20.0)
LIMITS_MS = (900_000, 300_000, 60_000)
SMALL_BATCH_BYTES = 110
"""A record of a history has less."""
APIS = ("FindCoordinator", "InitProducerId", "AddPartitionsToTxn", "EndTxn", "ListTransactions")
COORDINATOR_CODES = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
)


class CommitFaults:
    """Adds its faults to those of `faults`."""

    def __init__(self, faults: Faults, network: CommitNetwork, clock: ProcessClock, rng: random.Random) -> None:
        self._faults = faults
        self._network = network
        self._clock = clock
        self._rng = rng
        faults.kinds |= {
            "kill_task": self._kill_task,
            "freeze": self._freeze,
            "time_out": self._time_out,
            "forget": self._forget,
            "move_coordinator": self._move_coordinator,
            "coordinator_codes": self._coordinator_codes,
            "stale_end": self._stale_end,
            "small_messages": self._small_messages,
            "change_limit": self._change_limit,
            "compact": self._compact,
        }
        if network.lists_transactions:  # as all brokers with both versions
            faults.kinds["change_version"] = self._change_version

    @property
    def _coordinators(self) -> LateCoordinators:
        coordinators = self._network.cluster.coordinators
        assert isinstance(coordinators, LateCoordinators)
        return coordinators

    def heal(self) -> None:
        """End the faults that have no end of their own."""
        self._network.transaction_errors.clear()
        self._network.stale_ends.clear()

    def processes(self, kind: str = "") -> list[Process]:
        """Those alive whose name begins with `kind`."""
        return [process for process in self._clock.alive if process.name.startswith(kind)]

    def of_one(self, processes: Sequence[Process], strike: Callable[[Process], str]) -> str:
        return strike(self._rng.choice(processes)) if processes else "nobody"

    def kill(self, process: Process) -> str:
        self._clock.kill(process)
        return process.name

    def _kill_task(self) -> str:
        return self.of_one(self.processes("task"), self.kill)

    def freeze(self, process: Process) -> str:
        seconds = self._rng.choice(FREEZE_S)
        self._clock.freeze(process, seconds)
        return f"{process.name} is frozen for {seconds} s"

    def _freeze(self) -> str:
        return self.of_one(self.processes(), self.freeze)

    def _transactional_id(self, is_open: bool) -> str | None:
        known = self._coordinators.transactions
        found = [each for each in known if self._coordinators.is_open(each) is is_open]
        return self._rng.choice(found) if found else None

    def _time_out(self) -> str:
        transactional_id = self._transactional_id(True)
        if transactional_id is None or self._coordinators.transactions[transactional_id].state != ONGOING:
            return "nothing"
        self._coordinators.time_out(transactional_id)
        return transactional_id

    def _forget(self) -> str:
        transactional_id = self._transactional_id(False)
        self._coordinators.transactions.pop(transactional_id or "", None)
        return str(transactional_id)

    def _move_coordinator(self) -> str:
        known = list(self._coordinators.transactions)
        if not known:
            return "nothing"
        transactional_id, node_id = self._rng.choice(known), self._faults.node()
        self._coordinators.nodes[transactional_id] = node_id
        return f"{node_id} for {transactional_id}"

    def _coordinator_codes(self) -> str:
        api, codes = self._rng.choice(APIS), self._rng.choices(COORDINATOR_CODES, k=self._rng.randint(1, 3))
        self._network.transaction_errors[api] = deque(map(int, codes))
        return f"{api} {[code.name for code in codes]}"

    def _stale_end(self) -> str:
        partition, count = self._rng.choice([DECISIONS, self._faults.partition()]), self._rng.randint(1, 6)
        self._network.stale_ends[partition] = count
        return f"{partition}, {count} times"

    def _change_version(self) -> str:
        versions = TransactionVersion
        self._coordinators.version = versions.V1 if self._coordinators.version is versions.V2 else versions.V2
        return self._coordinators.version.name

    def _change_limit(self) -> str:
        self._coordinators.max_timeout_ms = self._rng.choice(LIMITS_MS)
        return f"{self._coordinators.max_timeout_ms} ms"

    def _compact(self) -> str:
        """All but the first batch, where the log starts, and the last ones, which are in the active segment."""
        log = self._network.cluster.logs.get(DECISIONS, [])
        until_offset = self._coordinators.last_stable_offset(DECISIONS) if log else 0
        cleaned = [batch for batch in log[1 : -self._rng.randint(1, 8)] if batch.base_offset < until_offset]
        removed = replaced(log, cleaned)
        log[:] = [batch for batch in log if batch.base_offset not in removed]
        return f"{len(removed)} batches"

    def _small_messages(self) -> str:
        limits = self._network.cluster.max_message_bytes
        limits["t"] = SMALL_BATCH_BYTES
        return self._faults.for_a_while(LONG_S, lambda: limits.pop("t", None))


def replaced(log: Sequence[StoredBatch], cleaned: Sequence[StoredBatch]) -> set[int]:
    """The base offsets of those batches that have no record which is the last of its key among them."""
    removed: set[int] = set()
    aborted = {NO_PRODUCER.producer_id: False}  # whether the later transaction was, by producer id; notes are in none
    later: set[bytes] = set()  # keys
    offsets = {batch.base_offset for batch in cleaned}
    for batch in reversed(log):
        (header,) = read_batch_headers(batch.data)
        if header.is_control:
            aborted[header.producer_id] = is_abort_marker(header, batch.data)
        elif batch.base_offset in offsets:
            fetched = FetchedRecords(DECISIONS, batch.data, [header], 0, 2**62)
            keys = {key for rows in decode([fetched], ["key"]) for key in rows["key"].to_pylist()}
            if aborted[header.producer_id] or keys <= later:
                removed.add(batch.base_offset)
            else:
                later |= keys
    return removed
