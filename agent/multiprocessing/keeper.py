"""Shell. The launcher's side of the processes that hold its workers.

Workers are never children of the launcher itself: a supervisor stands between, which finds
whatever a worker has started, ends all of it when asked to, and also when the launcher dies,
however it dies. Here is the launcher's end of the connection, without an event loop.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

from agent.runtime.own_process import own_process
from agent.workers.supervisor import messages, protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

ROUND_ID = 0
"""A context starts its workers once."""

EXIT_WAIT_S = 5.0
"""How long a supervisor that has nothing left to hold may take to end; then it gets SIGKILL."""

_READ_BYTES = 64 * 1024


class _Ends:
    """The launcher's ends of all connections.

    A copy of one in a forked child would hide the launcher's death from the supervisor.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        os.register_at_fork(
            before=self._lock.acquire,
            after_in_parent=self._lock.release,
            after_in_child=self._close_all,
        )

    def open(self) -> tuple[socket.socket, socket.socket]:
        with self._lock:
            ours, theirs = socket.socketpair()
            self._ends.add(ours)
        return ours, theirs

    def close(self, end: socket.socket) -> None:
        with self._lock:
            self._ends.discard(end)
            end.close()

    def _close_all(self) -> None:
        for end in self._ends:
            end.close()
        self._ends.clear()
        self._lock.release()


_ENDS = _Ends()


class Keeper(ABC):
    """A supervisor process and the connection to it.

    Attributes:
        local_ranks: The workers it holds.
        is_started: It has said that its workers run.
        is_done: Nothing of its workers is left, or it is gone itself.
    """

    def __init__(self, local_ranks: tuple[int, ...]) -> None:
        self.local_ranks = local_ranks
        self.is_started = False
        self.is_done = False
        self._events: protocol.Decoder[messages.SupervisorEvent] = protocol.Decoder(
            messages.SupervisorEvent
        )
        self._end, theirs = _ENDS.open()
        try:
            self._launch(theirs)
        except BaseException:
            _ENDS.close(self._end)
            raise
        finally:
            theirs.close()

    @abstractmethod
    def _launch(self, theirs: socket.socket) -> None:
        """Start the process and give it its end of the connection."""

    @abstractmethod
    def interrupt_start(self) -> None:
        """End it if it does not serve yet; one that serves does not mind."""

    @abstractmethod
    def kill(self) -> None:
        """End it, and by that its workers."""

    @abstractmethod
    def _join(self, timeout_s: float) -> int | None:
        """Reap it; return its exit code, or None if it has not ended in time."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when it has something to say."""
        return self._end.fileno()

    def send(self, command: messages.Command) -> None:
        """Send a command; one that is gone does not get it, which `receive` tells.

        Raises:
            ProtocolError: The command is longer than `LINE_BYTES_MAX`.
        """
        with suppress(BrokenPipeError, ConnectionResetError):
            self._end.sendall(protocol.encode(command))

    def receive(self) -> list[messages.SupervisorEvent] | None:
        """Return what it has said since, without waiting; None if it is gone."""
        try:
            data = self._end.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        return self._events.feed(data)

    def close(self) -> int:
        """Break the connection, on which it ends everything and itself; return its exit code."""
        _ENDS.close(self._end)
        code = self._join(EXIT_WAIT_S)
        if code is None:
            self.kill()
            code = self._join(EXIT_WAIT_S)
        return -9 if code is None else code

    def abandon(self) -> None:
        """Only break the connection."""
        _ENDS.close(self._end)


class CommandKeeper(Keeper):
    """Holds all commands of a context: a supervisor as an agent has it."""

    def _launch(self, theirs: socket.socket) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            own_process("agent.workers.supervisor.process", str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )

    def interrupt_start(self) -> None:
        """Do nothing: it serves in no time."""

    def kill(self) -> None:
        """End it, and by that its workers."""
        self._process.kill()

    def _join(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


class FunctionKeeper(Keeper):
    """Holds one function: a process of the standard library that becomes its supervisor.

    Args:
        local_rank: The worker.
        make_process: Returns the process, not yet started, for its end of the connection.
    """

    def __init__(
        self, local_rank: int, make_process: Callable[[socket.socket], BaseProcess]
    ) -> None:
        self._make_process = make_process
        super().__init__((local_rank,))
        del self._make_process

    def _launch(self, theirs: socket.socket) -> None:
        self._process = self._make_process(theirs)
        self._process.start()

    def interrupt_start(self) -> None:
        """End it if it is still importing: it begins to ignore this when it serves."""
        self._process.terminate()

    def kill(self) -> None:
        """End it, and by that its worker."""
        self._process.kill()

    def _join(self, timeout_s: float) -> int | None:
        self._process.join(timeout_s)
        exit_code = self._process.exitcode
        if exit_code is not None:
            self._process.close()
        return exit_code
