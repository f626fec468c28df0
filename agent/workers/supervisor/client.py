"""Shell. The agent's side of its supervisor: starts it, exchanges messages, notices its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import structlog

from agent.runtime.installation import own_process
from agent.workers.supervisor import protocol
from agent.workers.supervisor.messages import Command, SupervisorEvent
from agent.workers.supervisor.process_tree import kill_descendants, list_children
from agent.workers.supervisor.worker_group import KILL_WAIT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

log = structlog.get_logger()

EXIT_WAIT_S = KILL_WAIT_S + 2.0
"""Default of `SupervisorClient.exit_wait_s`: killing everything, and a margin."""

DRAIN_WAIT_S = 1.0
"""How long the connection of a dead supervisor may stay open; its last words need no time."""


def launch_supervisor(pass_fds: Iterable[int] = ()) -> tuple[int, socket.socket]:
    """Start a supervisor; return its pid, to be reaped by the caller, and the connection to it.

    It inherits ``pass_fds`` under the same numbers. Raises ``OSError``.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        fd = theirs.fileno()
        try:
            process = subprocess.Popen(  # noqa: S603 - our own module
                own_process("agent.workers.supervisor.process", str(fd), str(os.getpid())),
                pass_fds=(fd, *pass_fds),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    process.returncode = 0  # The caller reaps; the object must not try.
    return process.pid, ours


class SupervisorClient:
    """Runs one supervisor at a time.

    Args:
        on_event: Gets each event in order.
        on_death: Gets the exit code (negative: signal) of a supervisor that ended unexpectedly,
            after its last event and the end of all it left behind. `start` may be called again.
        on_mistake: Gets what one of these two has raised. The supervisor and its workers go on.
        launch: Starts a supervisor; see `launch_supervisor`.
        is_subreaper: Whether this process is one: then all its children but those it had at
            `start` are leftovers when a supervisor has died.
        exit_wait_s: How long a supervisor may take to end everything and exit; then it gets
            SIGKILL.
    """

    def __init__(
        self,
        *,
        on_event: Callable[[SupervisorEvent], None],
        on_death: Callable[[int], None],
        on_mistake: Callable[[BaseException], None],
        launch: Callable[[], tuple[int, socket.socket]] = launch_supervisor,
        is_subreaper: bool = True,
        exit_wait_s: float = EXIT_WAIT_S,
    ) -> None:
        self._on_event = on_event
        self._on_death = on_death
        self._on_mistake = on_mistake
        self._launch = launch
        self._is_subreaper = is_subreaper
        self._exit_wait_s = exit_wait_s
        self._older_children: set[int] = set()
        self._queued: list[Command] = []
        self._life: _Life | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process of the supervisor, or None if there is none."""
        return None if self._life is None else self._life.pid

    async def start(self) -> None:
        """Start a supervisor; it takes commands at once. Raises ``OSError``."""
        assert self._life is None, "a supervisor is running already"
        self._older_children = list_children() if self._is_subreaper else set()
        life = _Life(*self._launch(), self._take)
        try:
            await life.connect()
        except BaseException:
            life.discard()
            raise
        self._life = life
        for command in self._queued:
            self.send(command)
        self._queued.clear()
        self._watch = asyncio.create_task(self._watch_life(life), name="supervisor")
        self._watch.add_done_callback(self._on_watched)

    def send(self, command: Command) -> None:
        """Send a command, without blocking; without a supervisor, to the next one.

        A supervisor that leaves more than `OUTBOX_BYTES_MAX` unread is killed. Raises
        ``ProtocolError`` if the command is longer than `LINE_BYTES_MAX`.
        """
        if self._life is None:
            self._queued.append(command)
        else:
            self._life.write(protocol.encode(command))

    def forget(self) -> None:
        """Drop what the next supervisor was to be told."""
        self._queued.clear()

    async def close(self) -> None:
        """End the supervisor and with it every worker; returns when they are gone.

        Bounded by `exit_wait_s` and the time a last kill may take. `on_death` is not called.
        Harmless if there is no supervisor.
        """
        if self._life is not None:
            self._life.is_closing = True
            self._life.disconnect()
        if self._watch is not None:
            # Not awaited directly: the clean end goes on if the caller is cancelled.
            await asyncio.wait({self._watch})

    def _take(self, event: SupervisorEvent) -> None:
        try:
            self._on_event(event)
        except Exception as error:  # noqa: BLE001 - raised here, it would break the connection
            self._on_mistake(error)

    def _on_watched(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled() and (error := watch.exception()) is not None:
            self._on_mistake(error)

    async def _watch_life(self, life: _Life) -> None:
        returncode = await life.ended(self._exit_wait_s)
        if self._is_subreaper and returncode != 0:  # 0 says that it left nothing.
            await self._end_leftovers()
        self._life = None
        if not life.is_closing:
            self._on_death(returncode)

    async def _end_leftovers(self) -> None:
        """SIGKILL and reap what the dead supervisor left to this process, its new parent."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KILL_WAIT_S
        spared = set(self._older_children)
        while children := list_children() - spared:
            kill_descendants(exclude=spared)
            for pid in children:
                with _Exit(pid) as exit_:
                    await exit_.wait(deadline - loop.time())
                if os.waitpid(pid, os.WNOHANG)[0] == 0:  # noqa: ASYNC222 - does not wait
                    spared.add(pid)  # Stuck in the kernel.


class _Life(asyncio.Protocol):
    """One supervisor process and the connection to it."""

    _transport: asyncio.Transport

    def __init__(
        self, pid: int, connection: socket.socket, on_event: Callable[[SupervisorEvent], None]
    ) -> None:
        self.pid = pid
        self.is_closing = False
        self._on_event = on_event
        self._reports: protocol.Decoder[SupervisorEvent] = protocol.Decoder(SupervisorEvent)
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._socket = connection

    async def connect(self) -> None:
        """Make it writable; before, only `discard` may be called."""
        self._exit = _Exit(self.pid)
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_unix_connection(lambda: self, sock=self._socket)

    def discard(self) -> None:
        """Kill and reap a supervisor that was not connected: it has no workers."""
        self._socket.close()
        self._kill()
        os.waitpid(self.pid, 0)

    def write(self, line: bytes) -> None:
        if self._transport.get_write_buffer_size() + len(line) > protocol.OUTBOX_BYTES_MAX:
            self._kill()
            self._transport.abort()
        elif not self._transport.is_closing():
            self._transport.write(line)

    def disconnect(self) -> None:
        """Close at once, without waiting for a supervisor that does not read."""
        with suppress(OSError):
            # A process that was forked meanwhile may hold a copy of the socket.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._transport.abort()

    async def ended(self, exit_wait_s: float) -> int:
        """Wait until the process has ended and its last event is delivered; return its code.

        Whichever end comes first, the other is waited for only for a bounded time.
        """
        with self._exit as exit_:
            await asyncio.wait({self._lost, exit_.future}, return_when=asyncio.FIRST_COMPLETED)
            if exit_.future.done():
                await asyncio.wait({self._lost}, timeout=DRAIN_WAIT_S)
                self.disconnect()
            elif not await exit_.wait(exit_wait_s):
                self._kill()
                await exit_.wait(KILL_WAIT_S)
        await asyncio.wait({self._lost})
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)  # noqa: ASYNC222 - does not wait
        except ChildProcessError:
            return 0  # The program around us reaps what it does not know.
        return os.waitstatus_to_exitcode(status) if pid else -signal.SIGKILL

    def _kill(self) -> None:
        # Not reaped yet: the number is still its own.
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def data_received(self, data: bytes) -> None:
        try:
            reports = self._reports.feed(data)
        except protocol.ProtocolError as error:
            log.warning("supervisor broken", reason=str(error))
            self._kill()
            self.disconnect()
            return
        for report in reports:
            self._on_event(report)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's interface
        if not self._lost.done():
            self._lost.set_result(None)


class _Exit:
    """Waits for a child to end, without reaping it; holds a descriptor until left."""

    def __init__(self, pid: int) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = loop.create_future()
        self._fd = os.pidfd_open(pid)
        loop.add_reader(self._fd, self._on_end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):  # The loop is closed already: nothing to unregister.
            asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    async def wait(self, timeout_s: float) -> bool:
        """Return whether the child ended within the time."""
        await asyncio.wait({self.future}, timeout=max(0.0, timeout_s))
        return self.future.done()

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        if not self.future.done():
            self.future.set_result(None)
