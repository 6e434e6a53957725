"""TCP connections, and blocking calls of other libraries, with a deadline; and which address of a host failed last."""

from __future__ import annotations

import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from pyspark_kafka_meta.errors import ConnectError, UnknownHostError
from pyspark_kafka_meta.model import Address

T = TypeVar("T")


# poll() needs no extra file descriptor; select() fails in processes with more than 1024 open files.
Selector = selectors.PollSelector


KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S = 30, 2
"""Probes keep a NAT or a load balancer from dropping connections that are idle for minutes."""
UNACKNOWLEDGED_S = 5
"""The kernel closes a connection whose data is unacknowledged for this long. The kernel of a broker that hangs still
acknowledges, until its buffer is full."""
if sys.platform == "darwin":
    UNACKNOWLEDGED_OPTION = 0x80  # TCP_RXT_CONNDROPTIME
    TCP_OPTIONS = {
        socket.TCP_KEEPALIVE: KEEPALIVE_IDLE_S,
        socket.TCP_KEEPINTVL: KEEPALIVE_INTERVAL_S,
        UNACKNOWLEDGED_OPTION: UNACKNOWLEDGED_S,
    }
elif sys.platform == "linux":
    UNACKNOWLEDGED_OPTION = socket.TCP_USER_TIMEOUT
    TCP_OPTIONS = {
        socket.TCP_KEEPIDLE: KEEPALIVE_IDLE_S,
        socket.TCP_KEEPINTVL: KEEPALIVE_INTERVAL_S,
        UNACKNOWLEDGED_OPTION: UNACKNOWLEDGED_S * 1000,
    }
else:
    UNACKNOWLEDGED_OPTION = 0
    TCP_OPTIONS = {}

TOO_MANY_CONNECTIONS = (
    "the broker may refuse connections because it has too many (max.connections.per.ip, max.connections): run fewer "
    "tasks at a time, or raise the limit"
)
"""Ends the error of a new connection that its peer closes before any response."""


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a daemon thread, which does not delay the end of the process. Raises ConnectError: this process
    cannot start another thread."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)

    try:
        threading.Thread(target=run, daemon=True, name="kafkameta-within").start()
    except RuntimeError as error:
        raise ConnectError(
            "cannot start a thread, raise the limit of processes of this user, or spark.executor.pyspark.memory if it "
            f"is set: {error}"
        ) from error
    return done


def within(deadline: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises. After the deadline its thread continues alone.

    Raises:
        TimeoutError: `deadline`, in seconds of `time.monotonic`, has passed.
        ConnectError: this process cannot start another thread.
    """
    return in_thread(work).result(remaining_s(deadline))


def remaining_s(deadline: float) -> float:
    """A timeout for a socket, at least 1 ms: 0 would make the socket non-blocking."""
    return max(deadline - time.monotonic(), 0.001)


def is_readable(connection: socket.socket, timeout_s: float = 0.0) -> bool:
    """Whether bytes or the end of the connection arrive in this time."""
    with Selector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))


def connect(
    address: Address, deadline: float, failed: FailedAddresses, limits_unacknowledged: bool = True
) -> tuple[socket.socket, Candidate]:
    """A socket connected to the first address of the host that accepts, and this address. The addresses share the
    remaining time. Raises ConnectError: no address accepts.

    Args:
        failed: takes the addresses that do not accept.
        limits_unacknowledged: whether `UNACKNOWLEDGED_S` holds.
    """
    failures = []
    candidates = failed.in_order(address, _resolve(address, deadline))
    for index, candidate in enumerate(candidates):
        family, target = candidate
        share = (deadline - time.monotonic()) / (len(candidates) - index)
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # an unsupported address family, or too many open files
            failures.append(error.strerror or str(error))
            continue
        try:
            connection.settimeout(max(share, 0.001))
            connection.connect(target)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            notice_dead_peers(connection, limits_unacknowledged)
            return connection, candidate
        except OSError as error:
            connection.close()
            failed.add(address, candidate)
            failures.append(_failure(error))
    raise ConnectError(f"cannot connect to {address}: {', '.join(dict.fromkeys(failures))}")


def _failure(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no response in time"
    advice = f": {TOO_MANY_CONNECTIONS}" if isinstance(error, ConnectionResetError) else ""
    return f"{error.strerror or error}{advice}"


def notice_dead_peers(connection: socket.socket, limits_unacknowledged: bool) -> None:
    """Args as in `connect`; a later call changes them."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in TCP_OPTIONS.items():
        limit = value if limits_unacknowledged or option != UNACKNOWLEDGED_OPTION else 0
        with suppress(OSError):  # not every system that has the name supports it
            connection.setsockopt(socket.IPPROTO_TCP, option, limit)


def _resolve(address: Address, deadline: float) -> list[Candidate]:
    """The addresses of a host name. The system's resolver has no deadline of its own."""
    try:
        found = within(deadline, lambda: socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
    except TimeoutError:
        raise ConnectError(f"cannot connect to {address}: its name was not resolved in time") from None
    except (OSError, UnicodeError) as error:  # UnicodeError: not a host name
        raise UnknownHostError(f"cannot connect to {address}: {getattr(error, 'strerror', None) or error}") from error
    return list(dict.fromkeys((family, target) for family, _, _, _, target in found))


Candidate: TypeAlias = tuple[int, Any]
"""A socket family and an address of a host, as `socket.connect` takes it."""

MAX_NAMES = 1_000


class FailedAddresses:
    """Which address of a host name failed last: the next connection to the name begins after it. Otherwise each would
    begin with the address that the resolver names first, which may accept connections and stay silent, or lose all
    packets. Follows `client.dns.lookup=use_all_dns_ips` of Kafka's `ClusterConnectionStates`.

    Of one client, whose threads open connections: no method leaves it in between two states.
    """

    def __init__(self) -> None:
        self._last: dict[Address, Candidate] = {}

    def __len__(self) -> int:
        return len(self._last)

    def add(self, name: Address, failed: Candidate) -> None:
        """Take an address that refused a connection, or did not respond, or not as a broker does."""
        if len(self._last) >= MAX_NAMES:
            self._last.clear()
        self._last[name] = failed

    def in_order(self, name: Address, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The addresses of a name, as the resolver returns them, in the order to try them. An address that works stays
        first."""
        failed = self._last.get(name)
        after = next((index + 1 for index, candidate in enumerate(candidates) if candidate == failed), 0)
        return [*candidates[after:], *candidates[:after]]
