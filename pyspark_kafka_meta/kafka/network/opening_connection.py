"""`OpeningConnection`: a connection that a thread opens.

Connecting, TLS and login take as long as the peer likes, up to their deadline. A thread waits for the peer, so that a
broker that hangs, or that no packet reaches, does not delay the responses of other brokers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress

from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.kafka.network.connection import Connection
from pyspark_kafka_meta.kafka.network.sockets import in_thread


class OpeningConnection:
    """A selector finds it readable once the connection is open or has failed."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        """
        Raises:
            ConnectError: this process cannot open another file or start another thread.
        """
        with ExitStack() as opened:
            try:
                self._done, done_sender = map(opened.enter_context, socket.socketpair())
            except OSError as error:
                raise ConnectError(
                    f"cannot open a socket, raise the limit of open files of this user: {error}"
                ) from error
            self._outcome = in_thread(connect)
            opened.pop_all()
        self._outcome.add_done_callback(lambda _: _signal(done_sender))

    def fileno(self) -> int:
        return self._done.fileno()

    def error(self, timeout_s: float) -> BaseException | None:
        """Why the connection failed, if the thread reports it within `timeout_s`."""
        with suppress(TimeoutError):
            return self._outcome.exception(timeout_s)
        return None

    def connection(self) -> Connection:
        """The open connection. Call it only once it is readable.

        Raises:
            KafkaMetaError: the connection failed.
        """
        self._done.close()
        return self._outcome.result()

    def close(self) -> None:
        """Close the connection as soon as it is open."""
        self._done.close()
        self._outcome.add_done_callback(_close)


def _signal(done_sender: socket.socket) -> None:
    with suppress(OSError):  # the other end may be closed
        done_sender.shutdown(socket.SHUT_RDWR)  # a process that was forked meanwhile holds a copy of the socket
    done_sender.close()


def _close(outcome: Future[Connection]) -> None:
    if outcome.exception() is None:
        outcome.result().close()
