"""Workers that do what a test tells them: where they come to, and how they are told.

A worker connects as its first act, and its connection closes when it ends, so that both are seen
at once and nothing has to be slept for.
"""

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from tests.support.processes import DEADLINE_S, ROOT

WORKER_SCRIPT = ROOT / "tests" / "support" / "workers" / "steered.py"
LOOPBACK = "127.0.0.1"

_READ_BYTES = 64 * 1024


@dataclass(slots=True)
class Worker:
    """A worker that has come to a ``WorkerServer``."""

    connection: socket.socket
    rank: int
    local_rank: int
    pid: int
    round_id: int
    restart_count: int
    argv: list[str]
    environment: dict[str, str]
    _unread: bytes = field(default=b"", repr=False)

    @classmethod
    def announced(cls, connection: socket.socket, timeout_s: float) -> Self | None:
        """Read the announcement of a new connection; None if its worker is gone already."""
        line, _, unread = _read_line(connection, b"", timeout_s).partition(b"\n")
        if not line:
            return None
        said = json.loads(line)
        return cls(
            connection=connection,
            rank=said["rank"],
            local_rank=said["local_rank"],
            pid=said["pid"],
            round_id=said["round"],
            restart_count=said["restart_count"],
            argv=said["argv"],
            environment=said["environment"],
            _unread=unread,
        )

    def order(self, order: str) -> None:
        """Give an order, see ``workers/steered.py``, that it may not live to answer."""
        # A worker that is gone needs no orders; what became of it is for the test to see.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.sendall(f"{order}\n".encode())

    def ask(self, order: str, timeout_s: float = DEADLINE_S) -> Any:
        """Give an order and return the answer."""
        self.order(order)
        data = _read_line(self.connection, self._unread, timeout_s)
        assert data, f"rank {self.rank} of round {self.round_id} ended over {order!r}"
        line, _, self._unread = data.partition(b"\n")
        return json.loads(line)

    def wait_gone(self, timeout_s: float = DEADLINE_S) -> None:
        """Return when its process has ended."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.connection.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                if not self.connection.recv(_READ_BYTES):
                    return
            except ConnectionResetError:
                return
            except TimeoutError:
                raise AssertionError(
                    f"rank {self.rank} of round {self.round_id} (pid {self.pid}) "
                    f"is still there after {timeout_s:g} s"
                ) from None

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended."""
        self.connection.setblocking(False)
        try:
            # What it said before is of no matter here, but stands before the end.
            while data := self.connection.recv(_READ_BYTES):
                self._unread += data
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
        return True


class WorkerServer:
    """Where the workers of one run come to for orders."""

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe
        self._listener = socket.create_server((LOOPBACK, 0), backlog=1024)
        self._workers: list[Worker] = []
        self._ahead: list[Worker] = []

    @property
    def address(self) -> str:
        """HOST:PORT, the first argument of a worker."""
        return f"{LOOPBACK}:{self._listener.getsockname()[1]}"

    @property
    def command(self) -> tuple[str, str]:
        """The script with its first argument, to be appended to an agent's options."""
        return str(WORKER_SCRIPT), self.address

    def wait_for(self, count: int, timeout_s: float = DEADLINE_S) -> list[Worker]:
        """Return the next ``count`` workers by rank, of whatever round."""
        deadline = time.monotonic() + timeout_s
        found = [self._next(deadline, f"{count} workers") for _ in range(count)]
        return sorted(found, key=lambda worker: (worker.round_id, worker.rank))

    def wait_for_round(
        self, round_id: int, count: int, timeout_s: float = DEADLINE_S
    ) -> list[Worker]:
        """Return ``count`` workers of one round by rank, passing over those of older ones."""
        deadline = time.monotonic() + timeout_s
        found = [worker for worker in self._ahead if worker.round_id == round_id]
        self._ahead = [worker for worker in self._ahead if worker.round_id > round_id]
        while len(found) < count:
            worker = self._next(deadline, f"{count} workers of round {round_id}")
            if worker.round_id == round_id:
                found.append(worker)
            elif worker.round_id > round_id:
                self._ahead.append(worker)
        return sorted(found, key=lambda worker: worker.rank)

    def is_quiet(self) -> bool:
        """Whether nobody has come that was not waited for."""
        return not self._ahead and not select.select([self._listener], [], [], 0)[0]

    def _next(self, deadline: float, wanted: str) -> Worker:
        while True:
            self._listener.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                came = [(worker.round_id, worker.rank) for worker in self._workers]
                raise AssertionError(
                    f"waited for {wanted} in vain; came so far (round, rank): {came}\n"
                    f"{self._describe()}"
                ) from None
            worker = Worker.announced(connection, max(0.001, deadline - time.monotonic()))
            if worker is not None:
                self._workers.append(worker)
                return worker
            connection.close()

    def close(self) -> None:
        """Send everybody home."""
        self._listener.close()
        for worker in self._workers:
            worker.connection.close()


def exit_all(workers: Iterable[Worker], code: int = 0) -> None:
    """Order workers to exit."""
    for worker in workers:
        worker.order(f"exit {code}")


def _read_line(connection: socket.socket, data: bytes, timeout_s: float) -> bytes:
    """Read until there is a whole line after ``data``; nothing if the other side is gone."""
    deadline = time.monotonic() + timeout_s
    while b"\n" not in data:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            received = connection.recv(_READ_BYTES)
        except ConnectionResetError:
            return b""
        except TimeoutError:
            raise AssertionError(f"a worker said nothing for {timeout_s:g} s") from None
        if not received:
            return b""
        data += received
    return data
