"""A TCP connection by a deadline, and other people's blocking calls by a deadline too."""

from __future__ import annotations

import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from pyspark_kafka_meta.errors import ConnectError, UnknownHostError
from pyspark_kafka_meta.model import Address

T = TypeVar("T")


# poll() takes no file of its own, which may be the one too many; select() fails in processes with over 1024 open files.
Selector = selectors.PollSelector


KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S = 30, 2
"""A NAT or a load balancer silently forgets connections that are idle for minutes: probes prevent that."""
UNACKNOWLEDGED_S = 5
"""A connection over which what was sent is not acknowledged for this long is given up. A broker that merely hangs does
not count: its kernel acknowledges."""
if sys.platform == "darwin":
    TCP_RXT_CONNDROPTIME = 0x80
    TCP_OPTIONS = {
        socket.TCP_KEEPALIVE: KEEPALIVE_IDLE_S,
        socket.TCP_KEEPINTVL: KEEPALIVE_INTERVAL_S,
        TCP_RXT_CONNDROPTIME: UNACKNOWLEDGED_S,
    }
elif sys.platform == "linux":
    TCP_OPTIONS = {
        socket.TCP_KEEPIDLE: KEEPALIVE_IDLE_S,
        socket.TCP_KEEPINTVL: KEEPALIVE_INTERVAL_S,
        socket.TCP_USER_TIMEOUT: UNACKNOWLEDGED_S * 1000,
    }
else:
    TCP_OPTIONS = {}


def in_thread(work: Callable[[], T]) -> Future[T]:
    """What `work` will have returned or raised. Its thread is not waited for at the end.

    Raises:
        ConnectError: this process may start no more threads.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)

    try:
        threading.Thread(target=run, daemon=True, name="kafkameta-within").start()
    except RuntimeError as error:
        raise ConnectError(f"no thread is left to connect with, raise the limits of this user: {error}") from error
    return done


def within(deadline: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises. Its thread is left behind if the time is up.

    Raises:
        TimeoutError: `deadline`, of the monotonic clock, has passed.
        ConnectError: this process may start no more threads.
    """
    return in_thread(work).result(remaining_s(deadline))


def remaining_s(deadline: float) -> float:
    """A time-out for a socket. 0 would make it non-blocking; a passed deadline gets one last short look instead."""
    return max(deadline - time.monotonic(), 0.001)


def is_readable(connection: socket.socket) -> bool:
    """Whether bytes, or the peer's goodbye, have arrived."""
    with Selector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(0))


def connect(address: Address, deadline: float) -> socket.socket:
    """A connected socket to the first of the host's addresses that accepts, each given its share of the time left.

    Raises:
        ConnectError: none does.
    """
    failures = []
    candidates = _resolve(address, deadline)
    for index, (family, target) in enumerate(candidates):
        share = (deadline - time.monotonic()) / (len(candidates) - index)
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # an address family that this host does not speak, or no file left to open
            failures.append(error.strerror or str(error))
            continue
        try:
            connection.settimeout(max(share, 0.001))
            connection.connect(target)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _notice_dead_peers(connection)
            return connection
        except OSError as error:
            connection.close()
            failures.append("no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error))
    raise ConnectError(f"cannot connect to {address}: {', '.join(dict.fromkeys(failures))}")


def _notice_dead_peers(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in TCP_OPTIONS.items():
        with suppress(OSError):  # not on every system that has the name
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _resolve(address: Address, deadline: float) -> list[tuple[int, Any]]:
    """Socket families and addresses of a host name. The system's resolver knows no deadline."""
    try:
        found = within(deadline, lambda: socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
    except TimeoutError:
        raise ConnectError(f"cannot connect to {address}: its name was not resolved in time") from None
    except (OSError, UnicodeError) as error:  # the latter: no host name at all
        raise UnknownHostError(f"cannot connect to {address}: {getattr(error, 'strerror', None) or error}") from error
    return list(dict.fromkeys((family, target) for family, _, _, _, target in found))
