"""A TCP proxy between a client and its server that a test can cut, stall, delay and refuse with."""

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Self

_BYTES = 64 * 1024


class Proxy:
    """Passes bytes on in both directions; one thread; a context manager.

    Args:
        target: HOST:PORT to connect to, again for every connection.
        caller: Tells who connects from a port, for a cut that not every client feels.
    """

    def __init__(self, target: str, *, caller: Callable[[int], str] = lambda _: "") -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._directions: dict[socket.socket, str] = {}
        self._is_stalled = {"up": False, "down": False}
        self._caller = caller
        self._callers: dict[socket.socket, str] = {}
        self._is_refusing = False
        self._refused: set[str] = set()
        self._delay_s = 0.0
        # What is held back for the delay, in the order in which it came.
        self._delayed: deque[tuple[float, socket.socket, bytes]] = deque()
        self._accepted = 0
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._doorbell = socket.socketpair()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="proxy")

    @property
    def address(self) -> str:
        """HOST:PORT to give to a client."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def accepted(self) -> int:
        """Connections made through it so far."""
        with self._lock:
            return self._accepted

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_closing = True
        self._ring()
        self._thread.join()
        self.cut()
        for opened in (self._listener, self._wakeup, self._doorbell):
            opened.close()
        self._selector.close()

    def cut(self, *, refuse: bool = False, caller: str | None = None) -> None:
        """Reset every connection; with ``refuse``, each new one too until ``restore``.

        With ``caller``, only those of that one.
        """
        with self._lock:
            if refuse and caller is None:
                self._is_refusing = True
            elif refuse:
                self._refused.add(caller or "")
            for client, name in list(self._callers.items()):
                if caller in {None, name} and client in self._pairs:
                    self._drop(client)
        self._ring()

    def stall(self, *, up: bool = False, down: bool = False) -> None:
        """Hold back what clients say (``up``) or are told (``down``), now and later."""
        with self._lock:
            self._is_stalled = {"up": up, "down": down}
        self._ring()

    def delay(self, up_s: float) -> None:
        """Pass on what clients say that much later, in its order."""
        with self._lock:
            self._delay_s = up_s
        self._ring()

    def restore(self, *, caller: str | None = None) -> None:
        """Pass everything on again, what was held back first.

        With ``caller``, only refuse that one no more.
        """
        with self._lock:
            if caller is not None:
                self._refused.discard(caller)
                return
            self._is_refusing, self._delay_s = False, 0.0
            self._refused.clear()
        self.stall()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            self._doorbell.send(b"!")

    def _run(self) -> None:
        while True:
            ready = [key.fileobj for key, _ in self._selector.select(self._wait_s())]
            with self._lock:
                if self._is_closing:
                    return
                for opened in ready:
                    assert isinstance(opened, socket.socket), "only sockets are registered"
                    if opened is self._wakeup:
                        self._wakeup.recv(_BYTES)
                    elif opened is self._listener:
                        self._accept()
                    else:
                        self._pass_on(opened)
                self._pass_on_delayed()
                self._watch()

    def _wait_s(self) -> float | None:
        with self._lock:
            return max(self._delayed[0][0] - time.monotonic(), 0.0) if self._delayed else None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            client, (_, port) = self._listener.accept()
            name = self._caller(port)
            if self._is_refusing or name in self._refused:
                client.close()
                return
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()
                return
            server.settimeout(None)
            self._accepted += 1
            self._callers[client] = name
            self._pairs[client], self._pairs[server] = server, client
            self._directions[client], self._directions[server] = "up", "down"

    def _pass_on(self, source: socket.socket) -> None:
        if source not in self._pairs:
            return  # dropped meanwhile
        try:
            data = source.recv(_BYTES)
            is_late = self._directions[source] == "up" and (self._delay_s or self._delayed)
            if data and is_late:
                self._delayed.append((time.monotonic() + self._delay_s, source, data))
            elif data:
                self._pairs[source].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(source)

    def _pass_on_delayed(self) -> None:
        while self._delayed and self._delayed[0][0] <= time.monotonic():
            _, source, data = self._delayed.popleft()
            if source in self._pairs:
                try:
                    self._pairs[source].sendall(data)
                except OSError:
                    self._drop(source)

    def _watch(self) -> None:
        """Listen to exactly those whose direction is not held back."""
        for opened in self._pairs:
            is_wanted = not self._is_stalled[self._directions[opened]]
            is_watched = opened.fileno() in self._selector.get_map()
            if is_wanted and not is_watched:
                self._selector.register(opened, selectors.EVENT_READ)
            elif is_watched and not is_wanted:
                self._selector.unregister(opened)

    def _drop(self, opened: socket.socket) -> None:
        """Reset a connection, both sides of it."""
        for side in (opened, self._pairs.pop(opened)):
            self._pairs.pop(side, None)
            self._directions.pop(side, None)
            self._callers.pop(side, None)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(side)
            with contextlib.suppress(OSError):
                # Zero linger: the other end sees a reset, not a polite end.
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            side.close()
