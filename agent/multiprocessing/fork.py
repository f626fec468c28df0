"""Shell. A supervisor that is a fork of its launcher, and whose workers are forks of it.

What a function finds in its process is then what the launcher has, as users of ``fork`` expect.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
import warnings
from contextlib import suppress
from functools import partial
from multiprocessing import util
from typing import TYPE_CHECKING, Any, NoReturn

from agent.multiprocessing.signals import HANDLERS
from agent.workers.supervisor.process import SpawnError, opened_outputs, serve
from agent.workers.supervisor.process_tree import die_with

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.process import BaseProcess

    from agent.workers.supervisor.messages import StartWorkers, WorkerStart


def fork_supervisor(processes: Sequence[BaseProcess]) -> tuple[int, socket.socket]:
    """Fork a supervisor whose workers are these processes; return its pid and the connection."""
    launcher_pid = os.getpid()
    ours, theirs = socket.socketpair()
    util._flush_std_streams()  # type: ignore[attr-defined]  # noqa: SLF001
    with theirs:
        if not (pid := _fork()):
            ours.close()
            make_spawner = partial(ForkSpawner, processes, theirs, launcher_pid)
            _run_and_exit(lambda: serve(theirs, launcher_pid, make_spawner))
        return pid, ours


class ForkSpawner:
    """Forks workers from these processes, by local rank; they must not keep the connection.

    ``handlers`` are the dispositions of signals that the workers are to have.
    """

    def __init__(
        self,
        processes: Sequence[BaseProcess],
        connection: socket.socket,
        launcher_pid: int,
        handlers: Mapping[int, Any],
    ) -> None:
        self._processes = processes
        self._connection = connection
        self._launcher_fd = os.pidfd_open(launcher_pid)
        self._handlers = handlers

    def __call__(self, _command: StartWorkers, worker: WorkerStart) -> int:
        """Return the pid of the worker, when it leads its own session; may raise."""
        supervisor_pid = os.getpid()
        with opened_outputs(worker) as outputs:
            ready_fd, begun_fd = os.pipe2(os.O_CLOEXEC)
            try:
                try:
                    if not (pid := _fork()):
                        _run_and_exit(lambda: self._work(supervisor_pid, worker, outputs, begun_fd))
                finally:
                    os.close(begun_fd)
                # Signals for its process group must find the group. Should what libraries do in a
                # forked child never end, the end of the launcher interrupts this.
                os.read(ready_fd, 1)
            except OSError as error:
                raise SpawnError(error.errno or 0, f"cannot fork: {error.strerror}") from error
            finally:
                os.close(ready_fd)
            return pid

    def _work(
        self, supervisor_pid: int, worker: WorkerStart, outputs: Mapping[int, int], begun_fd: int
    ) -> int:
        """Become the worker, and be it; return the exit code."""
        os.setsid()
        die_with(supervisor_pid)
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, _in_worker(number, handler))
        for number in (signal.SIGCHLD, signal.SIGCONT):
            signal.signal(number, signal.SIG_DFL)
        self._connection.close()
        os.environ.update(worker.env)
        for number, fd in outputs.items():
            _redirect(number, fd)
        os.close(begun_fd)
        process: Any = self._processes[worker.local_rank]
        return int(process._bootstrap(parent_sentinel=self._launcher_fd))  # noqa: SLF001


def _fork() -> int:
    with warnings.catch_warnings():
        # Threads that an import has started are told of forks by their libraries.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _run_and_exit(run: Callable[[], int]) -> NoReturn:
    """End this process, a fork, with a code: it must not return into the code of another."""
    code = 1
    try:
        code = run()
    except BaseException:  # noqa: BLE001 - as above
        traceback.print_exc()
    finally:
        os._exit(code)


def _in_worker(number: int, handler: Any) -> Any:
    """Return what a worker is to do on a signal for which the launcher has this handler."""
    if HANDLERS.is_ours(handler):
        return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    return signal.SIG_DFL if handler is None else handler


def _redirect(number: int, fd: int) -> None:
    os.dup2(fd, number)
    with suppress(AttributeError, OSError, ValueError):
        # In a forked launcher the stream may lead somewhere else.
        stream = sys.stdout if number == 1 else sys.stderr
        if stream.fileno() != number:
            os.dup2(fd, stream.fileno())
