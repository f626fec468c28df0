"""Shell. The process that forks, signals and reaps workers: `…supervisor.process FD PID`.

It is the agent's child and holds one end of a socketpair, over which it takes commands and tells
events. It outlives a dying agent just long enough to end every process below it. To be that
dependable it has one thread, no event loop, few imports, and does nothing it was not told. It
waits in one place, for its descriptors; a start, which may take long on a sick file system, is
given up when the agent ends.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from agent.workers.supervisor import messages, protocol, worker_group
from agent.workers.supervisor.process_tree import (
    become_subreaper,
    die_with,
    kill_descendants,
    list_remaining,
    signal_at_parents_end,
)

_READ_BYTES = 256 * 1024  # taken from the socket at once
_SCRIPT_LINE_BYTES_MAX = 256  # what the kernel reads of a script's first line
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
        self._commands: protocol.Decoder[messages.Command] = protocol.Decoder(messages.Command)
        self._outbox = bytearray()
        self._is_agent_gone = False
        self._is_starting = False
        self._hang_up = select.poll()
        self._hang_up.register(self._agent, 0)  # The end of a connection is always told.
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
            if self._timeout_s() == 0:
                self._reap()
                if self._timeout_s() == 0:
                    self._dispatch(worker_group.DeadlineReached(pids=list_remaining()))

    def _timeout_s(self) -> float | None:
        deadline = self._group.next_deadline()
        if deadline is None:
            return None
        return min(max(0.0, deadline - time.monotonic()), _POLL_S_MAX)

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
            self._dispatch(command)

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
                    kill_descendants()
                case report:
                    self._outbox += protocol.encode(report)
                    self._flush()

    def _on_continued(self, _number: int, _frame: object) -> None:
        """Leave a start that waits, on the signal which comes when the agent ends."""
        if self._is_starting and self._hang_up.poll(0):
            self._is_starting = False
            raise _AgentGone

    def _spawn_workers(self, command: messages.StartWorkers) -> worker_group.SpawnFinished:
        pids: dict[int, int] = {}
        failure = None
        try:
            self._is_starting = True
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
            self._is_starting = False
            for fd in {fd for worker in command.workers for fd in worker.fds}:
                os.close(fd)
        return worker_group.SpawnFinished(pids=pids, failure=failure)

    def _reap(self) -> None:
        reaped = _reap_ended()
        if reaped.exit_codes or not reaped.is_any_left:
            self._dispatch(reaped)

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
        kill_descendants()
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
    become_subreaper()
    signal_at_parents_end(signal.SIGCONT)
    with agent:
        try:
            if os.getppid() == agent_pid:
                Supervisor(agent, make_spawner(handlers), agent_pid).run()
        finally:
            # The socket closes after this: the end of the connection means that all is gone.
            is_all_gone = end_everything()
            # Last words may wait for a console that takes nothing, and must not wait alone.
            die_with(agent_pid)
    return 0 if is_all_gone else 1


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


WorkerSpawner: TypeAlias = "Callable[[messages.StartWorkers, messages.WorkerStart], int]"
"""Returns the pid of a worker that has begun, and that the caller reaps.

Raises ``OSError`` with the sentence of `WorkerStartFailed`; then nothing is left of the attempt.
"""


class Spawner:
    """Starts processes that die with this one, which must have a single thread.

    Each leads its own session and process group, inherits nothing but the standard streams and its
    ``fds``, and has the default disposition of every signal. ``handlers`` are the dispositions
    from before this process ignored them.
    """

    def __init__(self, handlers: Mapping[int, Any]) -> None:
        self._pid = os.getpid()
        # An ignored signal stays ignored across exec, so a worker would never notice its stop.
        # nohup: what ignores a hangup from the start hands that on.
        self._ignored = tuple(
            number
            for number in signal.valid_signals()
            if signal.getsignal(number) is signal.SIG_IGN
            and not (number == signal.SIGHUP and handlers.get(number) is signal.SIG_IGN)
        )

    def __call__(self, command: messages.StartWorkers, worker: messages.WorkerStart) -> int:
        """Return the pid of a process that has begun to execute the command; may raise."""
        argv, env = (*command.argv, *worker.args), {**command.env, **worker.env}
        with opened_outputs(worker) as outputs:
            try:
                # The child of a single-threaded process may run Python before exec.
                process = subprocess.Popen(  # noqa: S603 - running what the user asked for
                    argv,
                    env=env,
                    stdout=outputs.get(1),
                    stderr=outputs.get(2),
                    pass_fds=worker.fds,
                    start_new_session=True,
                    preexec_fn=partial(self._prepare_child, worker.cpus),  # noqa: PLW1509
                )
            except OSError as error:
                raise OSError(error.errno, _describe_start_failure(argv[0], env, error)) from error
            except (ValueError, subprocess.SubprocessError) as error:
                raise OSError(0, f"cannot start {argv[0]}: {error}") from error
        # The caller reaps; the object must not try, nor warn that it was not done.
        process.returncode = 0
        return process.pid

    def _prepare_child(self, cpus: Collection[int]) -> None:
        if cpus:
            # It fails if all of them were taken from us since they were chosen. Where a worker
            # runs decides how fast it is; that is no reason for it not to run.
            with suppress(OSError):
                os.sched_setaffinity(0, cpus)
        for number in self._ignored:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        die_with(self._pid)


@contextmanager
def opened_outputs(worker: messages.WorkerStart) -> Iterator[dict[int, int]]:
    """Open the emptied files that are to take a worker's output, by 1 and 2.

    Never waits, so a pipe needs a reader by now. Everything is appended, so that a file which
    another process cuts meanwhile gets no hole. A terminal does not become that of this process's
    session. Raises ``OSError`` with a sentence.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    outputs = {}
    with ExitStack() as stack:
        for number, path in ((1, worker.stdout), (2, worker.stderr)):
            if not path:
                continue
            try:
                fd = os.open(path, flags | os.O_NOCTTY | os.O_NONBLOCK, 0o666)
            except OSError as error:
                is_unread = error.errno == errno.ENXIO
                why = "it is a pipe without a reader" if is_unread else error.strerror
                sentence = f"cannot write the worker's output to {path}: {why}"
                raise OSError(error.errno, sentence) from error
            stack.callback(os.close, fd)
            os.set_blocking(fd, True)  # The worker itself is to wait where a pipe is full.
            outputs[number] = fd
        yield outputs


def find_program(program: str, search_path: str | None) -> tuple[str, str]:
    """Return the file that is meant by a path, or a name on ``PATH``, and what is wrong with it."""
    is_path, folders = "/" in program, (search_path or os.defpath).split(os.pathsep)
    meant = [program] if is_path else [str(Path(folder, program)) for folder in folders]
    found = [path for path in meant if os.access(path, os.F_OK)]
    files = [path for path in found if not Path(path).is_dir()]
    usable = [path for path in files if os.access(path, os.X_OK)]
    if usable or files:
        return (usable or files)[0], "" if usable else "it is not executable"
    if is_path:
        return program, "it is a directory" if found else "there is no such file"
    return program, f"there is no such program on PATH, which is {search_path!r}"


def _describe_start_failure(program: str, env: Mapping[str, str], error: OSError) -> str:
    """Return a sentence that names the file and what is wrong with it."""
    path, problem = find_program(program, env.get("PATH"))
    match error.errno:
        case errno.ENOENT if not problem:
            line = b""
            with suppress(OSError), Path(path).open("rb") as file:
                line = file.readline(_SCRIPT_LINE_BYTES_MAX)
            words = line[2:].split(maxsplit=1) if line.startswith(b"#!") else []
            missing = f"interpreter {os.fsdecode(words[0])!r}" if words else "dynamic loader"
            problem = f"its {missing} does not exist"
        case errno.ENOEXEC:
            problem = "it is neither a program nor a script with a #! line"
        case errno.E2BIG:
            problem = (
                "its arguments and environment exceed what the system takes "
                "(128 KiB for one string, usually 2 MiB in all)"
            )
        case errno.EACCES if not os.access(path, os.F_OK):
            problem = f"{error.strerror} to a directory above it"
        case _:
            problem = problem or error.strerror or str(error)
    return f"cannot start {path}: {problem}"


if __name__ == "__main__":
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), Spawner))
