"""A TCP proxy between an agent and its coordinator that a test can cut, stall and refuse with."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_BYTES = 64 * 1024


class Proxy:
    """Passes bytes on in both directions; one thread; a context manager.

    Args:
        target: HOST:PORT to connect to, again for every connection.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._directions: dict[socket.socket, str] = {}
        self._is_stalled = {"up": False, "down": False}
        self._is_refusing = False
        self._accepted = 0
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._doorbell = socket.socketpair()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="proxy")

    @property
    def address(self) -> str:
        """HOST:PORT to give to an agent."""
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

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._is_closing = True
        self._ring()
        self._thread.join()
        self.cut()
        for opened in (self._listener, self._wakeup, self._doorbell):
            opened.close()
        self._selector.close()

    def cut(self, *, refuse: bool = False) -> None:
        """Reset every connection; with ``refuse``, each new one too until ``restore``."""
        with self._lock:
            self._is_refusing = refuse
            while self._pairs:
                self._drop(next(iter(self._pairs)))
        self._ring()

    def stall(self, *, up: bool = False, down: bool = False) -> None:
        """Hold back what agents say (``up``) or are told (``down``), now and later."""
        with self._lock:
            self._is_stalled = {"up": up, "down": down}
        self._ring()

    def restore(self) -> None:
        """Pass everything on again, what was held back first."""
        with self._lock:
            self._is_refusing = False
        self.stall()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            self._doorbell.send(b"!")

    def _run(self) -> None:
        while True:
            ready = [key.fileobj for key, _ in self._selector.select()]
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
                self._watch()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            agent, _ = self._listener.accept()
            if self._is_refusing:
                agent.close()
                return
            try:
                coordinator = socket.create_connection(self._target, timeout=5)
            except OSError:
                agent.close()
                return
            coordinator.settimeout(None)
            self._accepted += 1
            self._pairs[agent], self._pairs[coordinator] = coordinator, agent
            self._directions[agent], self._directions[coordinator] = "up", "down"

    def _pass_on(self, source: socket.socket) -> None:
        if source not in self._pairs:
            return  # dropped meanwhile
        try:
            data = source.recv(_BYTES)
            if data:
                self._pairs[source].sendall(data)
        except OSError:
            data = b""
        if not data:
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
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(side)
            with contextlib.suppress(OSError):
                # Zero linger: the other end sees a reset, not a polite end.
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            side.close()
