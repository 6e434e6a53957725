"""Proxies that count the connections to brokers and the requests on them, by API, and change nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from pyspark_kafka_meta.metadata.model import Address

CHUNK_BYTES = 1 << 20
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


@contextlib.contextmanager
def counting_proxies(targets: dict[int, Address]) -> Iterator[Counter[str]]:
    """Listen at these ports of this machine, each in front of one address. What it yields counts on within it."""
    counted: Counter[str] = Counter()
    loop = asyncio.new_event_loop()

    async def serve(target: Address, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        counted[CONNECTIONS] += 1
        requests = Requests()
        broker, to_broker = await asyncio.open_connection(target.host, target.port)
        answers = asyncio.create_task(_pass_on(broker, to_client))
        await _pass_on(client, to_broker, lambda chunk: counted.update(requests.feed(chunk)))
        await answers

    async def listen() -> None:
        for port, target in targets.items():
            await asyncio.start_server(lambda *ends, to=target: serve(to, *ends), target.host, port)

    loop.run_until_complete(listen())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield counted
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _pass_on(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, look: Callable[[bytes], None] = lambda _: None
) -> None:
    with contextlib.suppress(OSError):
        while chunk := await source.read(CHUNK_BYTES):
            look(chunk)
            sink.write(chunk)
            await sink.drain()
    sink.close()
