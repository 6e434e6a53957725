"""`Cable`: joins two network switches, and loses or delays Ethernet frames between them, like `tc netem` and a packet
filter, which not every kernel has. Linux only, as root."""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import random
import select
import socket
import struct
import subprocess
import threading
import time
from typing import NamedTuple

LONGEST_FRAME_BYTES = 65_536
IDLE_S = 60.0
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_IPV4 = b"\x08\x00"
_TYPE, _SOURCE, _TARGET = slice(12, 14), slice(26, 30), slice(30, 34)
"""Of an Ethernet frame: its type and, if it holds an IPv4 packet, the addresses."""


class Route(NamedTuple):
    """A direction between two addresses."""

    source: str
    target: str


class Cable:
    """Carries frames between a new TAP device at each switch, in a thread, until the process ends.

    Attributes:
        delay_s: of each frame, in either direction.
        loss: the share of frames that are lost.
        cut: no packet passes on these routes.
    """

    def __init__(self, switches: tuple[str, str], seed: int) -> None:
        """`switches` are bridges."""
        one, other = map(_tap, switches)
        self._opposite = {one: other, other: one}
        self._chance = random.Random(seed)
        self.delay_s, self.loss = 0.0, 0.0
        self.cut: frozenset[Route] = frozenset()
        threading.Thread(target=self._carry, daemon=True).start()

    def _carry(self) -> None:
        late: list[tuple[float, int, int, bytes]] = []
        numbers = itertools.count()  # frames that are due at the same time keep their order
        while True:
            timeout_s = max(late[0][0] - time.monotonic(), 0) if late else IDLE_S
            for device in select.select(list(self._opposite), [], [], timeout_s)[0]:
                frame = os.read(device, LONGEST_FRAME_BYTES)
                if not self._is_lost(frame):
                    due = time.monotonic() + self.delay_s
                    heapq.heappush(late, (due, next(numbers), self._opposite[device], frame))
            while late and late[0][0] <= time.monotonic():
                _, _, device, frame = heapq.heappop(late)
                os.write(device, frame)

    def _is_lost(self, frame: bytes) -> bool:
        return route_of(frame) in self.cut or self._chance.random() < self.loss


def route_of(frame: bytes) -> Route | None:
    """None if the frame holds no IPv4 packet."""
    if frame[_TYPE] != _IPV4:
        return None
    return Route(socket.inet_ntoa(frame[_SOURCE]), socket.inet_ntoa(frame[_TARGET]))


def _tap(switch: str) -> int:
    """A new TAP device at the switch, which exists as long as the returned descriptor."""
    name, device = f"cable-{switch}", os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    subprocess.run(["ip", "link", "set", name, "master", switch, "up"], check=True)
    return device
