"""Shell. The process that forks, signals and reaps workers: `…supervisor.process FD PID`.

It is the agent's child and holds one end of a socketpair, over which it takes commands and tells
events. It outlives a dying agent just long enough to end every process below it. To be that
dependable it has one thread, no event loop, few imports, and does only what it is told. It
waits in one place, for its descriptors; a start, which may take long on a sick file system, is
given up when the agent ends.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from drumbeat.agent.model import messages
from drumbeat.agent.workers.supervisor import process_tree, protocol, worker_group
from drumbeat.agent.workers.supervisor.spawner import Spawner, WorkerSpawner

if TYPE_CHECKING:
    from drumbeat.agent.workers.supervisor.warm_starts import WarmStarts

_READ_BYTES = 256 * 1024  # taken from the socket at once
_POLL_S_MAX = 86_400.0  # longest wait at a time: the system refuses more than some days

_KEPT_SIGNALS = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGCHLD),
    # These say that this process itself is broken.
    *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV),
    *(signal.SIGSYS, signal.SIGTRAP),
}
"""Signals left alone; all others are ignored, so that only the agent or SIGKILL ends us."""


class _AgentGone(Exception):
    """The agent ended while its workers were being started."""


class Supervisor:
    """Serves the agent at the other end of a connection, which a fork of it may hold too."""

    def __init__(self, agent: socket.socket, spawner: WorkerSpawner, agent_pid: int) -> None:
        agent.setblocking(False)
        self._agent = agent
        self._spawn = spawner
        self._group = worker_group.WorkerGroup()
        self._warm: WarmStarts | None = None  # from when the agent asks for it
        self._commands: protocol.Decoder[messages.Command] = protocol.Decoder(messages.Command)
        self._outbox = bytearray()
        self._is_agent_gone = False
        self._is_starting = False
        self._hang_up = select.poll()
        self._hang_up.register(self._agent, 0)  # Poll always reports the end of a connection.
        self._agent_fd = os.pidfd_open(agent_pid)
        self._hang_up.register(self._agent_fd, select.POLLIN)
        self._wakeup_fd, self._signal_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        for readable in (self._agent, self._agent_fd, self._wakeup_fd):
            self._poll.register(readable, select.POLLIN)
        signal.set_wakeup_fd(self._signal_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._continued = signal.signal(signal.SIGCONT, self._on_continued)

    def run(self) -> None:
        """Serve until the agent is gone, and close; raises what a broken agent causes."""
        try:
            with suppress(_AgentGone):
                self._serve()
        finally:
            signal.signal(signal.SIGCONT, self._continued or signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            for fd in (self._agent_fd, self._wakeup_fd, self._signal_fd):
                os.close(fd)

    def _serve(self) -> None:
        while not self._is_agent_gone:
            timeout_s = self._timeout_s()
            masks = dict(self._poll.poll(None if timeout_s is None else timeout_s * 1000))
            if self._wakeup_fd in masks:
                with suppress(BlockingIOError):
                    os.read(self._wakeup_fd, _READ_BYTES)
                self._reap()
            if self._agent_fd in masks:
                return
            mask = masks.get(self._agent.fileno(), 0)
            if mask & ~select.POLLOUT:
                self._read_commands()
            if mask & select.POLLOUT:
                self._flush()
            if _is_due(self._group.deadline):
                self._reap()
                if _is_due(self._group.deadline):
                    left = process_tree.list_remaining(exclude=self._spared)
                    self._dispatch(worker_group.DeadlineReached(pids=left))
            if self._warm is not None:
                self._warm.hear()
                self._warm.look_at_clock()

    def _timeout_s(self) -> float | None:
        of_warm = None if self._warm is None else self._warm.deadline
        deadlines = (self._group.deadline, of_warm)
        due = min((deadline for deadline in deadlines if deadline is not None), default=None)
        return None if due is None else min(max(0.0, due - time.monotonic()), _POLL_S_MAX)

    def _read_commands(self) -> None:
        try:
            data = self._agent.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""  # It died with unread events.
        # What an agent asked for that has ended since is not begun any more.
        if not data or self._hang_up.poll(0):
            self._is_agent_gone = True
            return
        for command in self._commands.feed(data):
            # What ended before a stop arrived was not stopped by it.
            self._reap()
            self._take(command)

    def _take(self, command: messages.Command) -> None:
        if self._warm is not None:
            self._warm.handle(command)
        elif not isinstance(command, messages.Preload):
            self._dispatch(command)
        else:
            # Loaded here: every start would wait for it.
            from drumbeat.agent.workers.supervisor.warm_starts import WarmStarts  # noqa: PLC0415

            self._warm = WarmStarts(
                command,
                self._spawn_template,
                self._poll,
                carry=self._dispatch,
                report=self._report,
                end_everything=end_everything,
            )
            self._warm.start()

    def _dispatch(self, event: worker_group.Event) -> None:
        """Hand an event to the group, and do what it wants."""
        for effect in self._group.handle(event, now=time.monotonic()):
            match effect:
                case messages.StartWorkers():
                    self._dispatch(self._spawn_workers(effect))
                case worker_group.SendSignal(pids=pids, signum=signum, is_for_group=is_for_group):
                    for pid in pids:
                        # One that changed its user is not ours to signal; the kill will tell.
                        with suppress(ProcessLookupError, PermissionError):
                            (os.killpg if is_for_group else os.kill)(pid, signum)
                case messages.KillWorkers():
                    process_tree.kill_descendants(exclude=self._spared)
                case messages.WorkerExited():
                    if self._warm is not None:
                        self._warm.handle(effect)
                    self._report(effect)
                case messages.WorkersStopped():
                    self._report(effect)
                    if self._warm is not None and self._group.state is worker_group.State.IDLE:
                        self._warm.round_ended()
                case report:
                    self._report(report)

    def _report(self, report: messages.SupervisorEvent) -> None:
        self._outbox += protocol.encode(report)
        self._flush()

    @property
    def _spared(self) -> tuple[int, ...]:
        return () if self._warm is None else self._warm.spared

    def _on_continued(self, _number: int, _frame: object) -> None:
        """Leave a start that waits, on the signal which comes when the agent ends."""
        if self._is_starting and self._hang_up.poll(0):
            self._is_starting = False
            raise _AgentGone

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """What is done here is given up if the agent ends meanwhile."""
        was_starting, self._is_starting = self._is_starting, True
        try:
            yield
        finally:
            self._is_starting = was_starting

    def _spawn_template(
        self, command: messages.StartWorkers, template: messages.WorkerStart
    ) -> int:
        with self._starting():
            return self._spawn(command, template)

    def _spawn_workers(self, command: messages.StartWorkers) -> worker_group.SpawnFinished:
        if self._warm is not None:
            with self._starting():
                if (finished := self._warm.fork(command)) is not None:
                    return finished
        pids: dict[int, int] = {}
        failure = None
        try:
            with self._starting():
                for worker in command.workers:
                    if self._hang_up.poll(0):
                        raise _AgentGone
                    pids[worker.local_rank] = self._spawn(command, worker)
        except OSError as error:
            failure = messages.WorkerStartFailed(
                round_id=command.round_id,
                local_rank=worker.local_rank,
                message=error.strerror or str(error),
                errno=error.errno or 0,
            )
        finally:
            for fd in {fd for worker in command.workers for fd in worker.fds}:
                os.close(fd)
        return worker_group.SpawnFinished(pids=pids, failure=failure)

    def _reap(self) -> None:
        reaped = _reap_ended()
        is_any_left = reaped.is_any_left
        if self._warm is not None and is_any_left:
            is_any_left = bool(process_tree.list_own_children() - {*self._spared})
            if is_any_left and self._group.state is worker_group.State.IDLE:
                # What the imports of a template have started, and it has left.
                process_tree.kill_descendants(exclude=self._spared)
                is_any_left = False
        if reaped.exit_codes or not is_any_left:
            self._dispatch(replace(reaped, is_any_left=is_any_left))
        if self._warm is not None:
            self._warm.reaped(dict(reaped.exit_codes))

    def _flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: self._agent.send(self._outbox)]
        except BlockingIOError as error:
            if len(self._outbox) > protocol.OUTBOX_BYTES_MAX:
                left = f"the agent left {len(self._outbox)} bytes unread"
                raise protocol.ProtocolError(left) from error
        except (BrokenPipeError, ConnectionResetError):
            self._is_agent_gone = True
            self._outbox.clear()
        self._poll.modify(self._agent, select.POLLIN | (select.POLLOUT if self._outbox else 0))


def end_everything() -> bool:
    """SIGKILL and reap all below this process; return whether nothing is left.

    Takes at most `KILL_WAIT_S`; what is left then is stuck in the kernel. Independent of the
    worker group: it also cleans up after a mistake in it.
    """
    deadline = time.monotonic() + worker_group.KILL_WAIT_S
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while _reap_ended().is_any_left:
        process_tree.kill_descendants()
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        signal.sigtimedwait({signal.SIGCHLD}, left_s)
    return True


def serve(
    agent: socket.socket, agent_pid: int, make_spawner: Callable[[Mapping[int, Any]], WorkerSpawner]
) -> int:
    """Make this process the supervisor of an agent, its parent.

    Returns 0 when the agent is gone and with it every process below. `make_spawner` gets the
    dispositions that the signals had which are ignored from now on.
    """
    if os.getsid(0) != os.getpid():
        # A terminal's Ctrl-C is for the agent, which then ends the workers in its own way.
        with suppress(PermissionError):
            os.setsid()
    handlers: dict[int, Any] = {
        number: signal.signal(number, signal.SIG_IGN)
        for number in signal.valid_signals() - _KEPT_SIGNALS
    }
    # A mask outlives exec: with SIGCHLD in it no worker would ever be seen to end.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    process_tree.become_subreaper()
    process_tree.signal_at_parents_end(signal.SIGCONT)
    with agent:
        try:
            if os.getppid() == agent_pid:
                Supervisor(agent, make_spawner(handlers), agent_pid).run()
        finally:
            # The socket closes after this: the end of the connection means that all is gone.
            is_all_gone = end_everything()
            # Last words may wait for a console that takes nothing, and must not wait alone.
            process_tree.die_with(agent_pid)
    return 0 if is_all_gone else 1


def _is_due(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _reap_ended() -> worker_group.ChildrenReaped:
    exit_codes: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return worker_group.ChildrenReaped(exit_codes=exit_codes, is_any_left=False)
        if pid == 0:
            return worker_group.ChildrenReaped(exit_codes=exit_codes, is_any_left=True)
        exit_codes[pid] = os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), Spawner))
