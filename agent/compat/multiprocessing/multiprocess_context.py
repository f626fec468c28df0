"""Shell. Workers that are functions.

Each is a process object of the standard library's multiprocessing, which a worker of the
supervisor turns itself into: an interpreter of its own that unpacks it (``spawn``, and
``forkserver``, which means the same here), or a fork of this process (``fork``).
"""

import io
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import popen_spawn_posix, reduction, resource_tracker, spawn, util
from multiprocessing.context import set_spawning_popen
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import IO, Any

from drumbeat.access.exposure import TOKEN_VARIABLE
from drumbeat.agent.compat.multiprocessing.context import PContext
from drumbeat.agent.compat.multiprocessing.signals import HANDLERS
from drumbeat.agent.model.messages import StartWorkers, WorkerStart
from drumbeat.agent.workers.output.logs import LogsSpecs
from drumbeat.agent.workers.supervisor.launch import launch_supervisor
from drumbeat.agent.workers.supervisor.process import serve
from drumbeat.agent.workers.supervisor.process_tree import die_with
from drumbeat.agent.workers.supervisor.spawner import opened_outputs
from worker_sdk import record

_LOGGER = logging.getLogger(__name__)

# As the standard library's own, but for the end of the launcher, which a pidfd tells.
_SPAWNED = """\
import os, sys
from multiprocessing import resource_tracker, spawn
call, resource_tracker._resource_tracker._fd, launcher = map(int, sys.argv[1:4])
sys.exit(spawn._main(call, os.pidfd_open(launcher)))
"""


class MultiprocessContext(PContext):
    """Runs a function for each worker; what it raises is recorded in its error file."""

    def __init__(  # noqa: PLR0913, PLR0917 - arguments that others use already
        self,
        name: str,
        entrypoint: Callable[..., Any],
        args: dict[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        start_method: str,
        logs_specs: LogsSpecs,
        log_line_prefixes: dict[int, str] | None = None,
        numa_options: None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        self._factory: Any = multiprocessing.get_context(start_method)
        more = (log_line_prefixes, numa_options, duplicate_stdout_filters, duplicate_stderr_filters)
        super().__init__(name, entrypoint, args, envs, logs_specs, *more)
        self._is_fork = start_method == "fork"
        self._results: list[IO[bytes]] = []

    def _launch(self) -> tuple[StartWorkers, int, socket.socket]:
        self._results = [self._unnamed_file() for _ in range(self.nprocs)]
        calls = [(self.entrypoint, tuple(self.args[rank])) for rank in range(self.nprocs)]
        if self._is_fork:
            name = getattr(self.entrypoint, "__qualname__", repr(self.entrypoint))
            workers = [self._process(rank, call) for rank, call in enumerate(calls)]
            return (self._command((name,), {}), *fork_supervisor(workers))
        packed = [self._pack(rank, call) for rank, call in enumerate(calls)]
        flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
        command = self._command(
            (os.fsdecode(spawn.get_executable()), *flags, "-c", _SPAWNED),
            dict(os.environ),
            args={rank: args for rank, (args, _) in enumerate(packed)},
            fds={rank: fds for rank, (_, fds) in enumerate(packed)},
        )
        return (command, *launch_supervisor({fd for _, fds in packed for fd in fds}))

    def _process(self, rank: int, call: object) -> BaseProcess:
        made: BaseProcess = self._factory.Process(
            target=_work, args=(call, self._results[rank].fileno()), name=f"{self.name}{rank}"
        )
        return made

    def _pack(self, rank: int, call: object) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return arguments and descriptors of the interpreter that is to make a call."""
        tracker = resource_tracker.getfd()
        assert tracker is not None, "it was just started"
        # Packing asks it for descriptors; here each is inherited under the same number.
        collector: Any = popen_spawn_posix.Popen.__new__(popen_spawn_posix.Popen)
        collector._fds = []  # noqa: SLF001
        content = io.BytesIO()
        set_spawning_popen(collector)
        try:
            # The call is unpacked by itself, where a failure of that is recorded.
            worker = self._process(rank, bytes(ForkingPickler.dumps(call)))
            reduction.dump(spawn.get_preparation_data(worker.name), content)
            reduction.dump(worker, content)
        finally:
            set_spawning_popen(None)
        file = self._unnamed_file()
        file.write(content.getbuffer())
        file.seek(0)
        args = (str(file.fileno()), str(tracker), str(os.getpid()), "--multiprocessing-fork")
        return args, (file.fileno(), self._results[rank].fileno(), tracker, *collector._fds)  # noqa: SLF001

    def _take_return_values(self) -> dict[int, Any]:
        values: dict[int, Any] = {}
        for rank, file in enumerate(self._results):
            is_empty = not file.seek(0, os.SEEK_END)
            file.seek(0)
            try:
                values[rank] = None if is_empty else pickle.load(file)  # noqa: S301 - our own
            except Exception:
                # Whatever the constructors of the user's types may raise.
                _LOGGER.exception("the return value of %s%d cannot be read", self.name, rank)
                self._failures[rank] = self._failure(rank, 1)
        return values

    def _unnamed_file(self) -> IO[bytes]:
        """Return a file of any size that is gone when the last process has closed it."""
        return self._files.enter_context(tempfile.TemporaryFile(prefix="drumbeat_call_"))


@record
def _work(call: bytes | tuple[Callable[..., object], tuple[Any, ...]], result_fd: int) -> None:
    """Make a call, in the worker, and write what it returns to an unnamed file."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    function, args = pickle.loads(call) if isinstance(call, bytes) else call  # noqa: S301 - our own
    value = function(*args)
    if value is None:
        return
    with open(result_fd, "wb", closefd=False) as file:
        try:
            pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
            kind = type(value).__qualname__
            raise TypeError(f"the return value, a {kind}, cannot be pickled: {error}") from error


def fork_supervisor(processes: Sequence[BaseProcess]) -> tuple[int, socket.socket]:
    """Fork a supervisor whose workers are these processes; return its pid and the connection."""
    launcher_pid = os.getpid()
    ours, theirs = socket.socketpair()
    util._flush_std_streams()  # type: ignore[attr-defined]  # noqa: SLF001

    def make_spawner(handlers: Mapping[int, Any]) -> ForkSpawner:
        return ForkSpawner(processes, theirs, os.pidfd_open(launcher_pid), handlers)

    def supervise() -> int:
        ours.close()
        return serve(theirs, launcher_pid, make_spawner)

    with theirs:
        return _fork(supervise), ours


@dataclass
class ForkSpawner:
    """Forks workers from these processes, by local rank; they must not keep the connection."""

    processes: Sequence[BaseProcess]
    connection: socket.socket
    launcher_fd: int
    handlers: Mapping[int, Any]  # dispositions of signals that the workers are to have

    def __call__(self, _command: StartWorkers, worker: WorkerStart) -> int:
        """Return the pid of the worker, when it leads its own session; may raise."""
        supervisor_pid = os.getpid()
        with opened_outputs(worker) as outputs:
            ready_fd, begun_fd = os.pipe2(os.O_CLOEXEC)
            try:
                try:
                    pid = _fork(partial(self._work, supervisor_pid, worker, outputs, begun_fd))
                finally:
                    os.close(begun_fd)
                # Signals for its process group must find the group. Should what libraries do in a
                # forked child never end, the end of the launcher interrupts this.
                os.read(ready_fd, 1)
            except OSError as error:
                raise OSError(error.errno, f"cannot fork: {error.strerror}") from error
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
        for number, handler in self.handlers.items():
            if HANDLERS.is_ours(handler):
                default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                signal.signal(number, default)
            else:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for number in (signal.SIGCHLD, signal.SIGCONT):
            signal.signal(number, signal.SIG_DFL)
        self.connection.close()
        os.environ.pop(TOKEN_VARIABLE, None)
        os.environ.update(worker.env)
        for number, fd in outputs.items():
            os.dup2(fd, number)
            stream = sys.stdout if number == 1 else sys.stderr
            with suppress(AttributeError, OSError, ValueError):
                # In a forked launcher the stream may lead somewhere else.
                os.dup2(fd, stream.fileno())
        os.close(begun_fd)
        process: Any = self.processes[worker.local_rank]
        return int(process._bootstrap(parent_sentinel=self.launcher_fd))  # noqa: SLF001


def _fork(run: Callable[[], int]) -> int:
    """Fork a process that ends with what is run there; return its pid."""
    with warnings.catch_warnings():
        # Threads that an import has started are told of forks by their libraries.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = run()
    except BaseException:  # noqa: BLE001 - it must not return into the code of another
        traceback.print_exc()
    finally:
        os._exit(code)
