"""`Requests`: those of one kind that are under way, at most one to each broker, and the connections that they go over.

Sending never waits for a broker, and waiting for several ends with the first that answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.metadata.model import Address, Broker
from pyspark_kafka_meta.wire.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.wire.messages import RequestFailure
from pyspark_kafka_meta.wire.under_way import Opening, UnderWay, first_begun

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class Requests(Generic[RequestT, AnswerT]):
    """See the module. Not thread-safe. A connection opens when it is first used, and closes for good at the first
    error."""

    def __init__(
        self,
        what: str,
        settings: ConnectionSettings,
        write: Callable[[Connection, RequestT, float], None],
        read: Callable[[Connection, UnderWay[RequestT]], AnswerT],
    ) -> None:
        """
        Args:
            what: the kind of request, as errors name it.
            write: sends a request by a deadline.
            read: receives the answer to what is under way, from a connection on which it has begun.
        """
        self._what = what
        self._settings = settings
        self._write = write
        self._read = read
        # By node id: a broker may have taken the place of another at its address.
        self._kept: dict[int, Connection] = {}
        self._under_way: dict[int, UnderWay[RequestT]] = {}
        self._not_sent: dict[int, KafkaMetaError] = {}  # why there will be no answer

    def send(self, broker: Broker, request: RequestT, deadline: float) -> None:
        """See `Wire.send_fetch`. An earlier one is dropped, so that its answer is not taken for that of the new one."""
        self.drop(broker.node_id)
        try:
            channel = self._written(broker, request, deadline)
        except KafkaMetaError as error:
            self._not_sent[broker.node_id] = error
        else:
            self._under_way[broker.node_id] = UnderWay(broker, channel, request, deadline)

    def receive(self, node_ids: Collection[int], deadline: float) -> AnswerT | RequestFailure | None:
        """See `Wire.receive_fetch`."""
        for node_id in self._not_sent.keys() & set(node_ids):
            return RequestFailure(node_id, self._not_sent.pop(node_id))
        waiting = {node_id: self._under_way[node_id] for node_id in node_ids if node_id in self._under_way}
        while waiting:
            due = min(waiting, key=lambda node_id: waiting[node_id].deadline)
            ready = first_begun(waiting, min(deadline, waiting[due].deadline))
            if ready is not None:
                return self._answer(ready)
            now = time.monotonic()
            if now >= waiting[due].deadline:  # which was put off if there is a connection by now
                return RequestFailure(due, self._under_way.pop(due).time_out(self._what))
            if now >= deadline:
                break
        return None

    def drop(self, node_id: int) -> None:
        """Forget the one under way to this broker, if any, and its connection."""
        self._not_sent.pop(node_id, None)
        under_way = self._under_way.pop(node_id, None)
        if under_way is not None:
            under_way.channel.close()

    def close(self) -> None:
        for node_id in [*self._under_way, *self._not_sent]:
            self.drop(node_id)
        self.close_all_but(())

    def close_all_but(self, addresses: Collection[Address]) -> None:
        """Close the connections to elsewhere, but for those that something is under way on."""
        for node_id in [node_id for node_id, one in self._kept.items() if one.address not in addresses]:
            self._kept.pop(node_id).close()

    def _written(self, broker: Broker, request: RequestT, deadline: float) -> Connection | Opening:
        """What the request is sent over: the connection kept. Where there is none, or it breaks, a thread opens
        another, and sends it then; so it does over one that has to log in again first."""

        def over(connection: Connection) -> Connection:
            with closed_by_errors(connection):
                self._write(connection, request, deadline)
            return connection

        kept = usable(self._kept.pop(broker.node_id, None), broker.address)
        if kept is not None and kept.login_is_due():
            return Opening(lambda: over(kept))
        if kept is not None:
            with suppress(ConnectError, RequestTimeoutError):
                return over(kept)
        return Opening(lambda: over(Connection(broker.address, self._settings, deadline)))

    def _answer(self, node_id: int) -> AnswerT | RequestFailure:
        under_way = self._under_way.pop(node_id)
        try:
            connection = under_way.connection()
            with closed_by_errors(connection):
                answer = self._read(connection, under_way)
        except KafkaMetaError as error:
            return RequestFailure(node_id, error)
        self._kept[node_id] = connection
        return answer


def usable(kept: Connection | None, address: Address) -> Connection | None:
    """A connection that was kept; None if it is of no use any more."""
    if kept is not None and (kept.address != address or not kept.is_usable()):
        kept.close()
        return None
    return kept


@contextmanager
def closed_by_errors(connection: Connection) -> Iterator[None]:
    """Close the connection on any error, including protocol errors and cancellation."""
    try:
        yield
    except BaseException:
        connection.close()
        raise
