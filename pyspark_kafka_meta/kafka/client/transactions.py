"""`TransactionCoordinators`: producer ids, and the requests of transactions to their coordinators (KIP-98). Follows
Kafka's `AdminClient`.

The coordinator of a transactional id is the leader of a partition of __transaction_state; `BrokerRequests` looks up one
that has moved. All requests may be repeated: InitProducerId gives another epoch, AddPartitionsToTxn and EndTxn of the
same epoch change nothing more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark_kafka_meta.errors import (
    AuthorizationError,
    BrokerError,
    ConnectError,
    KafkaMetaError,
    TlsError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.kafka.client.broker_requests import BrokerRequests, T
from pyspark_kafka_meta.kafka.client.client_state import ClientState
from pyspark_kafka_meta.kafka.client.next_request import UNKNOWN_GRACE_MS
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse, BrokerRequest
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_TRANSACTION_TIMEOUT,
    NOT_OPEN,
    TRANSACTIONAL_ID_NOT_FOUND,
    UNKNOWN_TOPIC_OR_PARTITION,
    describe,
    transaction_error,
    unknown_partition_error,
)
from pyspark_kafka_meta.kafka.protocol.transactions import (
    AddPartitionsRequest,
    DescribedTransaction,
    DescribeTransactionsRequest,
    EndTransactionRequest,
    ListTransactionsRequest,
    ProducerIdRequest,
    TransactionVersionRequest,
)
from pyspark_kafka_meta.model import ProducerIdAndEpoch, RefreshReason, TopicPartition, TransactionVersion, name_first

CONCURRENT_SHARE = 0.2
"""CONCURRENT_TRANSACTIONS lasts until the markers of the transaction before are written, a few ms: it is retried after
this share of a backoff. By default 20 ms, as in Kafka's `TransactionManager.ADD_PARTITIONS_RETRY_BACKOFF_MS`."""
DEFAULT_REPLICATION = 3
"""Of transaction.state.log.replication.factor. With fewer brokers, they cannot create __transaction_state."""


class TransactionCoordinators(BrokerRequests):
    """All methods raise AuthorizationError if this user may not do it, BrokerError for another error that is not
    retriable, and ConnectError if a broker or coordinator does not respond by `deadline`: others may have done it."""

    def __init__(self, client: ClientState) -> None:
        super().__init__(client, client.network.transactions)

    def producer_id(self, deadline: float) -> ProducerIdAndEpoch:
        """A new producer id, for idempotent writes."""
        request = ProducerIdRequest()
        response = self._ask_any(request, deadline, "gave a producer id")
        if response.error_code != 0:
            raise _idempotence_error(response.error_code)
        return response.result

    def fence(
        self, transactional_ids: Collection[str], timeout_ms: int, deadline: float
    ) -> dict[str, ProducerIdAndEpoch]:
        """The next epoch of each transactional id, which fences its earlier producers and aborts the transaction that
        they left open: all coordinators at a time.

        Args:
            timeout_ms: after which the coordinator aborts a transaction.
        """
        requests = {each: ProducerIdRequest(each, timeout_ms) for each in transactional_ids}
        responses = self._of_all(requests, deadline)
        for transactional_id, response in responses.items():
            if response.error_code != 0:
                raise _producer_id_error(response.error_code, requests[transactional_id])
        return {transactional_id: response.result for transactional_id, response in responses.items()}

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        deadline: float,
    ) -> None:
        """Add partitions to the open transaction, or open it with them. `TransactionVersion.V1` alone.

        Raises:
            FencedError: the id was initialised again.
            UnknownTopicError: a partition does not exist any more.
        """
        request = AddPartitionsRequest(transactional_id, producer, tuple(sorted(partitions)))
        unknown_since: float | None = None
        for _ in self._attempts(deadline):
            response = self._of_all({transactional_id: request}, deadline)[transactional_id]
            if response.error_code == 0:
                return
            if response.result is None:  # its coordinator was looked up again, and this was refused
                problem = f"partitions cannot be added by transactional id {transactional_id}"
                raise transaction_error(problem, response.error_code, transactional_id)
            refused = next(each for each, code in response.result.items() if code == response.error_code)
            if response.error_code != UNKNOWN_TOPIC_OR_PARTITION:
                problem = f"{refused} cannot be written by transactional id {transactional_id}"
                raise transaction_error(problem, response.error_code, transactional_id, refused.topic)
            self._code, self._problem = response.error_code, f"{refused}: {describe(response.error_code)}"
            unknown_since = self._unknown_since(refused, unknown_since)
        raise ConnectError(f"transactional id {transactional_id} could not add partitions in time: {self._problem}")

    def _unknown_since(self, partition: TopicPartition, since: float | None) -> float | None:
        """Since when metadata has not had this partition either, which its coordinator does not know; None if it has
        it, and the coordinator lags behind. Requests newer metadata. Raises UnknownTopicError: for the whole grace
        period."""
        cache, now, reason = self._cache, self._client.clock(), RefreshReason.UNKNOWN_TOPIC
        cache.request_update(reason, cache.snapshot.generation, partition, UNKNOWN_TOPIC_OR_PARTITION)
        if partition in cache.snapshot.partitions(partition.topic):
            return None
        since = now if since is None else since
        if now >= since + UNKNOWN_GRACE_MS / 1000:
            raise unknown_partition_error(partition)
        return since

    def end_transactions(
        self, producers: Mapping[str, ProducerIdAndEpoch], committed: bool, version: TransactionVersion, deadline: float
    ) -> dict[str, ApiResponse[ProducerIdAndEpoch]]:
        """Commit or abort the open transactions of these producers, by transactional id: all coordinators at a time.
        Each response has error code 0, also if it was ended in this way before, or one of `NOT_OPEN`."""
        responses = self._of_all(
            {each: EndTransactionRequest(each, producers[each], committed, version) for each in producers}, deadline
        )
        for transactional_id, response in responses.items():
            if response.error_code != 0 and response.error_code not in NOT_OPEN:
                problem = f"the transaction of transactional id {transactional_id} cannot be ended"
                raise transaction_error(problem, response.error_code, transactional_id)
        return responses

    def list_transactions(self, deadline: float, *, of_all_brokers: bool = True) -> list[str]:
        """The transactional ids with an open transaction that this user may describe. An id whose coordinator moves at
        the moment may be missing.

        Args:
            of_all_brokers: False to do without brokers that do not respond by `deadline`, or that fail for good while
                others respond.

        Raises:
            UnsupportedBrokerError: a broker is older than Kafka 3.0.
        """
        listed: dict[int, tuple[str, ...]] = {}
        refused: dict[int, KafkaMetaError] = {}
        for broker, outcome in self._ask_all(lambda _: ListTransactionsRequest(), deadline):
            if isinstance(outcome, ApiResponse) and outcome.error_code == 0:
                listed[broker.node_id] = outcome.result
                continue
            if isinstance(outcome, ApiResponse):
                problem = f"{broker.address} lists no transactions: {describe(outcome.error_code)}"
                outcome = BrokerError(problem, outcome.error_code)
            if of_all_brokers or isinstance(outcome, UnsupportedBrokerError):
                raise outcome
            self._cache.pass_over(broker.address, outcome)
            refused[broker.node_id] = outcome
        if of_all_brokers and self._cache.snapshot.brokers.keys() - listed.keys():
            raise ConnectError(f"not every broker listed its transactions in time: {self._problem}")
        if refused and not listed:
            raise next(reversed(refused.values()))
        return sorted({each for ids in listed.values() for each in ids})

    def describe_transactions(self, transactional_ids: Collection[str], deadline: float) -> list[DescribedTransaction]:
        """The last transactions of these ids, in this order, without ids that the cluster does not know. Raises
        UnsupportedBrokerError: a broker is older than Kafka 3.0."""
        responses = self._of_all({each: DescribeTransactionsRequest(each) for each in transactional_ids}, deadline)
        for transactional_id, response in responses.items():
            if response.error_code not in (0, TRANSACTIONAL_ID_NOT_FOUND):
                problem = f"transactional id {transactional_id} cannot be described"
                raise transaction_error(problem, response.error_code, transactional_id)
        described = [responses[each].result for each in transactional_ids]
        return [transaction for transaction in described if transaction is not None]

    def transaction_version(self, deadline: float) -> TransactionVersion:
        """The protocol that the cluster has finalized: all brokers speak it."""
        try:
            response = self._ask_any(TransactionVersionRequest(), deadline, "reported its features")
        except UnsupportedBrokerError:  # V2 is of Kafka 4.0
            return TransactionVersion.V1
        if response.error_code != 0:
            raise BrokerError(f"no features of the cluster: {describe(response.error_code)}", response.error_code)
        return response.result

    # --- retries ------------------------------------------------------------------------------------------------------

    def _backoff_s(self, failures: int) -> float:
        share = CONCURRENT_SHARE if self._code == CONCURRENT_TRANSACTIONS else 1
        return super()._backoff_s(failures) * share

    def _of_all(self, requests: Mapping[str, BrokerRequest[T]], deadline: float) -> dict[str, ApiResponse[T]]:
        """The responses of the coordinators by transactional id. A coordinator that fails for good, such as for its
        certificate, fails this call once the others have responded.

        Raises:
            ConnectError: a response is missing at the deadline.
            KafkaMetaError: the failure.
        """
        outcomes = self._ask_coordinators(requests, deadline)
        responses = {each: outcome for each, outcome in outcomes.items() if isinstance(outcome, ApiResponse)}
        refusals = {each: outcome for each, outcome in outcomes.items() if isinstance(outcome, KafkaMetaError)}
        if refusals:
            error = next(iter(refusals.values()))
            if not isinstance(error, TlsError):
                raise error
            ids = [each for each, refusal in refusals.items() if str(refusal) == str(error)]
            raise TlsError(f"{error} (the coordinator of {_name_ids(ids)})")
        if missing := requests.keys() - responses.keys():
            raise ConnectError(f"not done in time for {_name_ids(missing)}: {self._problem}{self._likely_cause()}")
        return responses

    def _likely_cause(self) -> str:
        brokers = len(self._cache.snapshot.brokers)
        if brokers >= DEFAULT_REPLICATION or self._problems != {describe(COORDINATOR_NOT_AVAILABLE)}:
            return ""
        return (
            f": brokers in the cluster: {brokers}, and transaction.state.log.replication.factor, by default "
            f"{DEFAULT_REPLICATION}, is probably larger: set it to at most {brokers} on the brokers"
        )


def _name_ids(transactional_ids: Collection[str]) -> str:
    return f"transactional id {name_first(sorted(transactional_ids), 1)}"


def _idempotence_error(code: int) -> BrokerError:
    if code == CLUSTER_AUTHORIZATION_FAILED:
        return AuthorizationError(
            f"this user may not write idempotently: {describe(code)}: allow it IDEMPOTENT_WRITE on the cluster, which "
            "Kafka 3.0 and later do not need, or set kafka.enable.idempotence to false",
            code,
        )
    return BrokerError(f"no producer id for this task: {describe(code)}", code)


def _producer_id_error(code: int, request: ProducerIdRequest) -> KafkaMetaError:
    problem = f"no producer id for transactional id {request.transactional_id}"
    if code == INVALID_TRANSACTION_TIMEOUT:
        return BrokerError(
            f"{problem}: {describe(code)}: brokers do not accept a timeout of {request.transaction_timeout_ms} ms: "
            "set kafka.transaction.timeout.ms to at most transaction.max.timeout.ms of the brokers, or, if it is not "
            "set, start the query again, which asks for their limit",
            code,
        )
    return transaction_error(problem, code, str(request.transactional_id))
