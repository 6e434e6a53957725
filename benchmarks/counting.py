"""Counts connections to brokers and their requests by API, in the data of proxies."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

APIS = {1: "Fetch", 2: "ListOffsets", 3: "Metadata"}
OTHERS = "others"
CONNECTIONS = "connections"
_LENGTH_BYTES, _API_KEY_BYTES = 4, 2


class Requests:
    """Finds the requests in the data of a client, which may be split anywhere."""

    def __init__(self) -> None:
        self._pending = b""
        self._to_skip = 0

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The APIs of the requests whose header is complete with this chunk."""
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
    """Counts of connections and requests of any number of proxies: `TcpProxy(watch=count.watch)`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: Counter[str] = Counter()

    def so_far(self) -> Counter[str]:
        with self._lock:
            return self._counted.copy()

    def watch(self) -> Callable[[bytes], None]:
        """Count a connection. Returns a function for the bytes of its client."""
        requests = Requests()
        self._add([CONNECTIONS])
        return lambda chunk: self._add(requests.feed(chunk))

    def _add(self, names: Iterable[str]) -> None:
        with self._lock:
            self._counted.update(names)
