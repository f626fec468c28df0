"""Carries packets between the hosts of a round, and loses, delays and repeats them as it is told.

``python -m tests.chaos.wire CONTROL TUN...``: numbers of inherited descriptors, a socket and the
``tun`` of host 1, 2, 3 and so on, which has the address ``10.77.0.HOST``. A line on the socket has
the faults of all links, as JSON: ``[[from, to, {"loss": 0.1}], ...]``; it is answered by a line
once it holds. Ends with the socket. It does what ``netem`` would, on kernels without it.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import selectors
import socket
import sys
import time
from contextlib import suppress
from typing import Any

PACKET_BYTES_MAX = 65_535
PACKETS_AT_ONCE = 64


class Wire:
    """All links; each packet has a source and a destination, of which the last byte counts."""

    def __init__(self, control: socket.socket, tuns: list[int]) -> None:
        self._control = control
        self._text = b""
        self._tuns = dict(enumerate(tuns, start=1))
        self._faults: dict[tuple[int, int], dict[str, float]] = {}
        self._late: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        for tun in tuns:
            os.set_blocking(tun, False)
            self._selector.register(tun, selectors.EVENT_READ)

    def run(self) -> None:
        """Carry packets until the control socket ends."""
        while True:
            wait_s = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            for key, _ in self._selector.select(wait_s):
                if key.fileobj is not self._control:
                    self._read(key.fd)
                elif not self._obey():
                    return
            while self._late and self._late[0][0] <= time.monotonic():
                _, _, tun, packet = heapq.heappop(self._late)
                self._write(tun, packet)

    def _obey(self) -> bool:
        text = self._control.recv(1 << 20)
        self._text += text
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            given: list[tuple[int, int, dict[str, float]]] = json.loads(line)
            self._faults = {(source, to): fault for source, to, fault in given}
            self._control.sendall(b"done\n")
        return bool(text)

    def _read(self, tun: int) -> None:
        for _ in range(PACKETS_AT_ONCE):
            try:
                packet = os.read(tun, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            if packet[0] >> 4 == 4:
                self._pass_on(packet)

    def _pass_on(self, packet: bytes) -> None:
        source, to = packet[15], packet[19]
        tun = self._tuns.get(to)
        if tun is None:
            return
        fault = self._faults.get((source, to))
        if fault is None:
            self._write(tun, packet)
            return
        copies = 2 if random.random() < fault.get("repeat", 0.0) else 1
        for _ in range(copies):
            if random.random() < fault.get("loss", 0.0):
                continue
            late_s = fault.get("delay_s", 0.0) + random.random() * fault.get("jitter_s", 0.0)
            if late_s == 0.0:
                self._write(tun, packet)
                continue
            due = time.monotonic() + late_s
            heapq.heappush(self._late, (due, next(self._numbers), tun, packet))

    @staticmethod
    def _write(tun: int, packet: bytes) -> None:
        with suppress(OSError):  # as a host whose queue is full
            os.write(tun, packet)


def main(arguments: list[str]) -> None:
    """Be the wire."""
    control, *tuns = (int(argument) for argument in arguments)
    wire: Any = Wire(socket.socket(fileno=control), tuns)
    wire.run()


if __name__ == "__main__":
    main(sys.argv[1:])
