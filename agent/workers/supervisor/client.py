"""Shell. The agent's side of its supervisor: starts it, exchanges messages, notices its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress

import structlog

from drumbeat.agent.model.messages import Command, SupervisorEvent
from drumbeat.agent.workers.supervisor import protocol
from drumbeat.agent.workers.supervisor.launch import launch_supervisor
from drumbeat.agent.workers.supervisor.process_tree import kill_descendants, list_children
from drumbeat.agent.workers.supervisor.worker_group import KILL_WAIT_S

log = structlog.get_logger()

EXIT_WAIT_S = KILL_WAIT_S + 2.0  # default of `exit_wait_s`: killing everything, and a margin
DRAIN_WAIT_S = 1.0  # that a dead supervisor's connection may stay open; last words need no time
_READ_BYTES = 1024 * 1024  # taken from the connection at once: more than the stream ever holds


class SupervisorClient:
    """Runs one supervisor at a time; ``pid`` is its process, None if there is none.

    ``on_event`` gets each event in order; ``on_death`` the exit code (negative: signal) of a
    supervisor that ended unexpectedly, after its last event and the end of all it left behind,
    when `start` may be called again; ``on_mistake`` what one of these two has raised, and the
    supervisor goes on. If this process ``is_subreaper``, all its children but those it had at
    `start` are leftovers when a supervisor has died. One that takes longer than ``exit_wait_s`` to
    end everything and exit gets SIGKILL.
    """

    _writer: asyncio.StreamWriter  # kept: it closes the connection when it is let go

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
        self.pid: int | None = None
        self._queued: list[Command] = []
        self._is_closing = False
        self._life: asyncio.Task[None] | None = None

    async def start(self, greeting: Command | None = None) -> None:
        """Start a supervisor; it takes commands at once, the ``greeting`` before all others.

        Raises ``OSError``.
        """
        assert self.pid is None, "a supervisor is running already"
        older_children = list_children() if self._is_subreaper else set()
        pid, connection = self._launch()
        older_children.discard(pid)  # it may have been started before
        # In a program around us, its children are its own.
        self._reaper = StrangerReaper(pid, is_init=self._is_subreaper and os.getpid() == 1)
        with ExitStack() as undo:
            undo.callback(os.waitpid, pid, 0)  # It has no workers to end first.
            undo.callback(_kill, pid)
            undo.callback(connection.close)
            pidfd = os.pidfd_open(pid)
            undo.callback(os.close, pidfd)
            reader, self._writer = await asyncio.open_unix_connection(sock=connection)
            undo.pop_all()
        self.pid, self._is_closing = pid, False
        for command in (greeting, *self._queued):
            if command is not None:
                self.send(command)
        self._queued.clear()
        self._life = asyncio.create_task(self._attend(pid, pidfd, reader, older_children))

    def send(self, command: Command) -> None:
        """Send a command, without blocking; without a supervisor, to the next one.

        A supervisor that leaves more than `OUTBOX_BYTES_MAX` unread is killed. Raises
        ``ProtocolError`` if the command is longer than `LINE_BYTES_MAX`.
        """
        if self.pid is None:
            self._queued.append(command)
            return
        line, transport = protocol.encode(command), self._writer.transport
        if transport.get_write_buffer_size() + len(line) > protocol.OUTBOX_BYTES_MAX:
            _kill(self.pid)
            transport.abort()
        elif not transport.is_closing():
            transport.write(line)

    def forget(self) -> None:
        """Drop the commands that wait for the next supervisor."""
        self._queued.clear()

    async def close(self) -> None:
        """End the supervisor and with it every worker; returns when they are gone.

        Bounded by `exit_wait_s` and the time a last kill may take. `on_death` is not called.
        Harmless if there is no supervisor.
        """
        if self.pid is not None:
            self._is_closing = True
            self._disconnect()
        if self._life is not None:
            # Not awaited directly: the clean end goes on if the caller is cancelled.
            await asyncio.wait({self._life})

    def _disconnect(self) -> None:
        """Close at once, without waiting for a supervisor that does not read."""
        with suppress(OSError):
            # A process that was forked meanwhile may hold a copy of the socket.
            self._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._writer.transport.abort()

    async def _attend(
        self, pid: int, pidfd: int, reader: asyncio.StreamReader, older_children: set[int]
    ) -> None:
        """Follow a supervisor to its end, and that of what it has left behind."""
        try:
            returncode = await self._ended(pid, pidfd, reader)
            self._reaper.close()  # else it takes what is waited for here
            if self._is_subreaper and returncode != 0:  # 0 says that it left nothing.
                await _end_leftovers(older_children)
            self.pid = None
            if not self._is_closing:
                self._on_death(returncode)
        except Exception as error:  # noqa: BLE001 - of the callback, which has no other caller
            self._on_mistake(error)

    async def _ended(self, pid: int, pidfd: int, reader: asyncio.StreamReader) -> int:
        """Wait until a supervisor has ended and its last event is delivered; return its code.

        Whichever end comes first, the other is waited for only for a bounded time.
        """
        talk = asyncio.create_task(self._listen(pid, reader))
        exit_ = asyncio.create_task(_exit_of(pidfd))
        try:
            await asyncio.wait({talk, exit_}, return_when=asyncio.FIRST_COMPLETED)
            if exit_.done():
                await asyncio.wait({talk}, timeout=DRAIN_WAIT_S)
            elif not (await asyncio.wait({exit_}, timeout=self._exit_wait_s))[0]:
                _kill(pid)
                await asyncio.wait({exit_}, timeout=KILL_WAIT_S)
            self._disconnect()
            await asyncio.wait({talk})
        finally:
            exit_.cancel()
        try:
            reaped, status = os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - does not wait
        except ChildProcessError:
            return 0  # The program around us reaps what it does not know.
        return os.waitstatus_to_exitcode(status) if reaped else -signal.SIGKILL

    async def _listen(self, pid: int, reader: asyncio.StreamReader) -> None:
        """Hand events on until the connection ends."""
        decoder: protocol.Decoder[SupervisorEvent] = protocol.Decoder(SupervisorEvent)
        with suppress(OSError):  # It died with commands unread.
            while data := await reader.read(_READ_BYTES):
                try:
                    events = decoder.feed(data)
                except protocol.ProtocolError as error:
                    log.warning("supervisor broken", reason=str(error))
                    _kill(pid)
                    self._disconnect()
                    return
                for event in events:
                    try:
                        self._on_event(event)
                    except Exception as error:  # noqa: BLE001 - costs neither it nor its workers
                        self._on_mistake(error)


class StrangerReaper:
    """Reaps the children of a process with pid 1 that it has not started, as an init does.

    In a container they are orphans of whatever runs there. ``own`` is left to its owner. Does
    nothing unless it ``is_init``.
    """

    def __init__(self, own: int, *, is_init: bool) -> None:
        self._own, self._is_init = own, is_init
        if is_init:
            asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)
            self.reap()

    def reap(self) -> None:
        """Reap those that have ended; the others are left alone."""
        for pid in list_children() - {self._own}:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def close(self) -> None:
        """Leave children alone from now on."""
        if self._is_init:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)


async def _end_leftovers(spared: set[int]) -> None:
    """SIGKILL and reap what a dead supervisor left to this process, its new parent."""
    deadline = asyncio.get_running_loop().time() + KILL_WAIT_S
    while children := list_children() - spared:
        kill_descendants(exclude=spared)
        for pid in children:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await _exit_of(os.pidfd_open(pid))
            if os.waitpid(pid, os.WNOHANG)[0] == 0:  # noqa: ASYNC222 - does not wait
                spared.add(pid)  # Stuck in the kernel.


async def _exit_of(pidfd: int) -> None:
    """Return when a process has ended, without reaping it; closes its descriptor."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _kill(pid: int) -> None:
    # Not reaped yet: the number is still its own.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
