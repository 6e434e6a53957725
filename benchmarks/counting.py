"""Counts connections to brokers and the requests on them, by API, in what proxies see pass."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

APIS = {1: "Fetch", 2: "ListOffsets", 3: "Metadata"}
OTHERS = "others"
CONNECTIONS = "connections"
_LENGTH_BYTES, _API_KEY_BYTES = 4, 2


class Requests:
    """Finds the requests in what a client sends, however it is cut into pieces."""

    def __init__(self) -> None:
        self._pending = b""
        self._to_skip = 0

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The APIs of the requests whose beginning is known with this chunk."""
        skipped = min(self._to_skip, len(chunk))
        self._to_skip -= skipped
        self._pending += chunk[skipped:]
        while len(self._pending) >= _LENGTH_BYTES + _API_KEY_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._pending[:_LENGTH_BYTES], "big")
            key = int.from_bytes(self._pending[_LENGTH_BYTES : _LENGTH_BYTES + _API_KEY_BYTES], "big")
            self._to_skip = max(0, end - len(self._pending))
            self._pending = self._pending[end:]
            yield APIS.get(key, OTHERS)


class Count:
    """Of connections and requests, over any number of proxies: `TcpProxy(watch=count.watch)`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: Counter[str] = Counter()

    def so_far(self) -> Counter[str]:
        with self._lock:
            return self._counted.copy()

    def watch(self) -> Callable[[bytes], None]:
        """One more connection, and what takes the bytes that its client sends."""
        requests = Requests()
        self._add([CONNECTIONS])
        return lambda chunk: self._add(requests.feed(chunk))

    def _add(self, seen: Iterable[str]) -> None:
        with self._lock:
            self._counted.update(seen)
