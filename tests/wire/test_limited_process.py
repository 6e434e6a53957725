"""A process that may not open files or start threads: its connections work, other calls raise typed errors."""

from __future__ import annotations

import resource
import socket
import threading
import time

import pytest

from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.kafka.network.failed_addresses import FailedAddresses
from pyspark_kafka_meta.kafka.network.sockets import connect, is_readable
from pyspark_kafka_meta.model import Address


def test_open_connections_are_waited_for_though_no_file_is_left() -> None:
    here, there = socket.socketpair()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    there.send(b"x")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
        with pytest.raises(OSError, match="Too many open files"):
            socket.socketpair()
        assert [is_readable(here), is_readable(there)] == [True, False]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        here.close()
        there.close()


def test_no_thread_to_connect_with_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ConnectError, match="cannot start a thread, raise the limit"):
        connect(Address("localhost", 9), time.monotonic() + 5, FailedAddresses())
