"""`BatchCommitter`: plans, commits and aborts the batches of one sink. It lives beside Spark's driver.

Spark plans the micro-batches of a stream in one Python process and commits them in another: each has its own, and only
what is in Kafka is common to them. It takes any process that is idle, also one of a query that failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

from pyspark_kafka_meta.client_facts import Ending, TransactionsEnded
from pyspark_kafka_meta.errors import BrokerError, DataLossError, KafkaMetaError, UnknownTopicError
from pyspark_kafka_meta.kafka.client.cluster_admin import ClusterAdmin
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.error_codes import INVALID_TRANSACTION_TIMEOUT
from pyspark_kafka_meta.model import OpenTransaction, RowDigest, TopicPartition
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.write.exactly_once.commit_protocol import Protocol, commit, recover
from pyspark_kafka_meta.write.exactly_once.decision import (
    BATCH,
    GUESSED_ATTEMPTS,
    STREAM,
    BatchId,
    Decisions,
    TransactionPlan,
    attempt_id,
    earlier_attempts,
    is_written,
)
from pyspark_kafka_meta.write.exactly_once.decisions_topic import DecisionsTopic
from pyspark_kafka_meta.write.exactly_once.step_runner import Lead, StepRunner

logger = logging.getLogger(__name__)

T = TypeVar("T")

KILLED_TASK_S = 3.0
"""A Python worker lives on for `spark.python.task.killTimeout`, by default 2 s, after Spark has killed its task."""
DEFAULT_MAX_TIMEOUT_MS = 900_000
"""Kafka's default of transaction.max.timeout.ms, for a user who may not ask the brokers."""


class BatchCommitter:
    """A sink with `kafka.transactional.id`."""

    def __init__(self, client: KafkaClient, options: SinkOptions) -> None:
        assert options.transaction.transactional_id is not None
        self._client = client
        self._options = options
        self._transactional_id = options.transaction.transactional_id
        self._plan: TransactionPlan  # of the last protocol
        self._planned: Decisions | None = None  # the decisions of the last plan
        self._lead: Lead | None = None  # since the last commit
        self._written: Decisions = {}  # by the last protocol, after those that were read

    def plan(self, series: str = BATCH) -> TransactionPlan:
        """Recover, and return what the tasks of the next batch of this series need. A plan fences, unless it follows a
        micro-batch that this process has planned and that is settled: in a process that Spark has kept, the query may
        have failed or another one may have started, and before a batch write any committer may have been at work.
        Raises as `recover`."""
        self._planned = self.recover(planned=self._planned if series == STREAM else None)
        return replace(self._plan, decisions=self._planned)

    def recover(
        self, known: Sequence[str] = (), guessed: Sequence[str] = (), planned: Decisions | None = None
    ) -> Decisions:
        """Settle what earlier runs have decided, abort what they have not, and return the decisions. Raises
        FencedError, DataLossError, BrokerError, ConnectError: see `commit_protocol.recover`."""
        return self._carry_out(lambda: recover(known, guessed, planned), Ending.RECOVERED)

    def commit(
        self, batch: BatchId, transactions: Sequence[OpenTransaction], now_ms: int, rows: RowDigest | None = None
    ) -> None:
        """Make a batch visible; see `commit_protocol.commit`. Keeps the lead for the next micro-batch; the plan of the
        next batch write would take it over.

        If all decisions are gone, those of earlier batches do not matter for this one, unless it is a repetition.
        """
        lost = [earlier for each in transactions for earlier in earlier_attempts(each.transactional_id)]
        was_written = is_written({**self._decisions.known(), **self._written}, batch)

        def commit_batch() -> None:
            self._carry_out(
                lambda: commit(batch, transactions, now_ms, lost, rows), Ending.COMMITTED, leads_on=batch.is_stream
            )

        try:
            commit_batch()
        except DataLossError as error:
            if self._decisions.is_ensured or was_written:
                raise
            logger.warning("%s is committed all the same, after: %s", batch, error)
            commit_batch()

    def abort(self, tasks: int, transactions: Sequence[OpenTransaction] = (), *, all_ended: bool) -> None:
        """Settle a batch that is decided nevertheless, else abort its transactions.

        Args:
            tasks: of the batch, as far as Spark says.
            transactions: of the task attempts that Spark chose.
            all_ended: False if some may still run for a moment, and begin a transaction.
        """
        if not all_ended:
            self._client.sleep(KILLED_TASK_S)
        attempts = [(task, attempt) for task in range(tasks) for attempt in range(GUESSED_ATTEMPTS)]
        self.recover(
            [transaction.transactional_id for transaction in transactions],
            [attempt_id(self._transactional_id, *attempt) for attempt in attempts],
        )

    def _carry_out(self, protocol: Callable[[], Protocol[T]], committed_as: Ending, *, leads_on: bool = False) -> T:
        """Run a protocol. If brokers do not accept its timeouts any more, ask them for their limit, and run it again:
        it begins with what an earlier run has decided."""
        try:
            return self._run(protocol(), committed_as, leads_on)
        except BrokerError as error:
            if error.code != INVALID_TRANSACTION_TIMEOUT or not self._has_new_limit():
                raise
        return self._run(protocol(), committed_as, leads_on)

    def _has_new_limit(self) -> bool:
        """Ask the brokers for their limit again. Whether it has changed."""
        before = self._max_timeout_ms
        del self._max_timeout_ms
        return self._max_timeout_ms != before

    def _run(self, protocol: Protocol[T], committed_as: Ending, leads_on: bool) -> T:
        """Run a protocol, and report the transactions that it has ended, also if it fails later.

        Args:
            leads_on: whether it may go on with the lead of the last protocol, and leave it to the next one.
        """
        started = self._client.clock()
        lead, self._lead = self._lead, None
        runner = self.step_runner(lead if leads_on else None)
        try:
            result = runner.carry_out(protocol)
            self._lead = runner.lead() if leads_on else None
            return result
        except KafkaMetaError as error:
            if isinstance(error, UnknownTopicError) and self._decisions.is_gone:
                raise self._decisions.lost("the topic was deleted") from None
            _name_decisions_topic(error, self._decisions.partition)
            raise
        finally:
            self._written = runner.written
            latency_ms = (self._client.clock() - started) * 1000
            ended = {committed_as: (runner.committed, runner.copied_records), Ending.ABORTED: (runner.aborted, 0)}
            for ending, (transactions, copied) in ended.items():
                if transactions:
                    sink = self._transactional_id
                    self._client.report(TransactionsEnded(ending, sink, transactions, latency_ms, copied))

    def step_runner(self, lead: Lead | None = None) -> StepRunner:
        """Of one protocol, under the transaction version that the cluster has finalized by now.

        Args:
            lead: see `StepRunner`.
        """
        if not self._decisions.is_ensured:
            self._decisions.ensure(ClusterAdmin(self._client))
        max_timeout_ms = self._max_timeout_ms
        timeout_ms = self._options.transaction.timeout_ms or max_timeout_ms or DEFAULT_MAX_TIMEOUT_MS
        version = self._client.coordinators.transaction_version(self._client.api_deadline())
        self._plan = TransactionPlan(self._transactional_id, timeout_ms, version)
        return StepRunner(self._client, self._options, self._plan, max_timeout_ms or timeout_ms, self._decisions, lead)

    @cached_property
    def _decisions(self) -> DecisionsTopic:
        return DecisionsTopic(self._client, self._options.transaction.decisions_topic, self._transactional_id)

    @cached_property
    def _max_timeout_ms(self) -> int | None:
        """The longest timeout that all brokers allow; None if none of them says."""
        return ClusterAdmin(self._client).transaction_max_timeout_ms()


def _name_decisions_topic(error: KafkaMetaError, decisions: TopicPartition) -> None:
    """Add what this topic is to an error that names it like any other topic."""
    text = str(error)
    words = {word.strip(",:;()") for word in text.split()}
    if words & {decisions.topic, str(decisions)} and "decision" not in text:
        error.args = (f"{text}. Topic {decisions.topic} holds the decisions of this sink", *error.args[1:])
