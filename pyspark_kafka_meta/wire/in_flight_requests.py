"""`Requests`: those of one kind that are under way, at most one to each broker, and the connections that they go over.

Sending never waits for a broker, and waiting for several ends with the first that answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.wire.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.wire.in_flight import InFlightRequest, Opening, first_begun

KeyT = TypeVar("KeyT", bound=Hashable)
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class Requests(Generic[KeyT, RequestT, ResponseT]):
    """See the module. Not thread-safe. A connection opens when it is first used, and closes for good at the first
    error. Brokers are told apart by a key: by node id where one may have taken the place of another at its address."""

    def __init__(
        self,
        what: str,
        settings: ConnectionSettings,
        write: Callable[[Connection, RequestT, float], None],
        read: Callable[[KeyT, Connection, InFlightRequest[RequestT]], ResponseT],
        moves_deadline: bool = True,
    ) -> None:
        """
        Args:
            what: the kind of request, as errors name it.
            write: sends a request by a deadline.
            read: receives the answer to what is under way, from a connection on which it has begun.
            moves_deadline: whether an answer gets as long as its connection, or both of them together.
        """
        self._what = what
        self._settings = settings
        self._write = write
        self._read = read
        self._moves_deadline = moves_deadline
        self._kept: dict[KeyT, Connection] = {}
        self._under_way: dict[KeyT, InFlightRequest[RequestT]] = {}
        self._not_sent: dict[KeyT, KafkaMetaError] = {}  # why there will be no answer

    def asked(self) -> Collection[KeyT]:
        """Brokers whose answer, or failure, was not received."""
        return [*self._under_way, *self._not_sent]

    def under_way(self) -> Collection[InFlightRequest[RequestT]]:
        return self._under_way.values()

    def send(self, key: KeyT, address: Address, request: RequestT, deadline: float) -> None:
        """See `Wire.send_fetch`. An earlier one is dropped, so that its answer is not taken for that of the new one."""
        self.drop(key)
        try:
            channel = self._written(key, address, request, deadline)
        except KafkaMetaError as error:
            self._not_sent[key] = error
        else:
            self._under_way[key] = InFlightRequest(address, channel, request, deadline, self._moves_deadline)

    def receive(
        self, keys: Collection[KeyT], deadline: float, others: Collection[InFlightRequest[Any]] = ()
    ) -> tuple[KeyT, ResponseT | KafkaMetaError] | None:
        """See `Wire.receive_fetch`. None also once something has come for one of the others, or its time is up."""
        for key in self._not_sent.keys() & set(keys):
            return key, self._not_sent.pop(key)
        waiting = {key: self._under_way[key] for key in keys if key in self._under_way}
        until = min([deadline, *(one.deadline for one in others)])
        while waiting or others:
            due = min(waiting, key=lambda key: waiting[key].deadline, default=None)
            ready = first_begun(waiting, until if due is None else min(until, waiting[due].deadline), others)
            if ready is not None:
                return ready, self._answer(ready)
            now = time.monotonic()
            if due is not None and now >= waiting[due].deadline:  # which was put off if there is a connection by now
                return due, self._under_way.pop(due).time_out(self._what)
            if others or now >= deadline:
                break
        return None

    def drop(self, key: KeyT) -> None:
        """Forget the one under way to this broker, if any, and its connection."""
        self._not_sent.pop(key, None)
        under_way = self._under_way.pop(key, None)
        if under_way is not None:
            under_way.channel.close()

    def drop_all(self) -> None:
        for key in self.asked():
            self.drop(key)

    def close(self) -> None:
        self.drop_all()
        self.close_all_but(())

    def close_all_but(self, addresses: Collection[Address]) -> None:
        """Close the connections to elsewhere, but for those that something is under way on."""
        for key in [key for key, one in self._kept.items() if one.address not in addresses]:
            self._kept.pop(key).close()

    def _written(self, key: KeyT, address: Address, request: RequestT, deadline: float) -> Connection | Opening:
        """What the request is sent over: the connection kept. Where there is none, or it breaks, a thread opens
        another, and sends it then; so it does over one that has to log in again first."""

        def over(connection: Connection) -> Connection:
            with _closed_by_errors(connection):
                self._write(connection, request, deadline)
            return connection

        kept = _usable(self._kept.pop(key, None), address)
        if kept is not None and kept.login_is_due():
            return Opening(lambda: over(kept))
        if kept is not None:
            with suppress(ConnectError, RequestTimeoutError):
                return over(kept)
        return Opening(lambda: over(Connection(address, self._settings, deadline)))

    def _answer(self, key: KeyT) -> ResponseT | KafkaMetaError:
        under_way = self._under_way.pop(key)
        try:
            connection = under_way.connection()
            with _closed_by_errors(connection):
                answer = self._read(key, connection, under_way)
        except KafkaMetaError as error:
            return error
        self._kept[key] = connection
        return answer


def _usable(kept: Connection | None, address: Address) -> Connection | None:
    """A connection that was kept; None if it is of no use any more."""
    if kept is not None and (kept.address != address or not kept.is_usable()):
        kept.close()
        return None
    return kept


@contextmanager
def _closed_by_errors(connection: Connection) -> Iterator[None]:
    """Close the connection on any error, including protocol errors and cancellation."""
    try:
        yield
    except BaseException:
        connection.close()
        raise
