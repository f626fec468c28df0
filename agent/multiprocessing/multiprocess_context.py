"""Shell. Workers that are functions.

Each is a process object of the standard library's multiprocessing, which a worker of the
supervisor turns itself into: an interpreter of its own that unpacks it (``spawn``, and
``forkserver``, which means the same here), or a fork of this process (``fork``).
"""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import pickle
import sys
import tempfile
from contextlib import suppress
from multiprocessing import process, reduction, resource_tracker, spawn, util
from multiprocessing.context import set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import IO, TYPE_CHECKING, Any

from agent.multiprocessing.context import ROUND_ID, PContext, refuse_numa_options
from agent.multiprocessing.fork import fork_supervisor
from agent.workers.supervisor.client import launch_supervisor
from agent.workers.supervisor.messages import StartWorkers
from worker_sdk import record

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from multiprocessing.context import ForkContext, ForkServerContext, SpawnContext

    from agent.workers.output.logs import LogsSpecs

_LOGGER = logging.getLogger(__name__)

# As the standard library's own, but for the end of the launcher, which a pidfd tells.
_SPAWNED = """\
import os, sys
from multiprocessing import resource_tracker, spawn
call, resource_tracker._resource_tracker._fd, launcher = map(int, sys.argv[1:4])
sys.exit(spawn._main(call, os.pidfd_open(launcher)))
"""


class MultiprocessContext(PContext):
    """Runs a function for each worker; what it raises is recorded in its error file.

    See `start_processes` for the arguments.

    Raises:
        ValueError: There is no such start method.
    """

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
        refuse_numa_options(numa_options)
        self._factory: SpawnContext | ForkContext | ForkServerContext = multiprocessing.get_context(
            start_method
        )  # type: ignore[assignment]  # one of these
        super().__init__(
            name,
            entrypoint,
            args,
            envs,
            logs_specs,
            log_line_prefixes,
            duplicate_stdout_filters,
            duplicate_stderr_filters,
        )
        self._function = entrypoint
        self._is_fork = start_method == "fork"
        self._results: list[IO[bytes]] = []
        self._calls: list[IO[bytes]] = []
        self._processes: list[process.BaseProcess] = []
        self._fds: set[int] = set()

    def _prepare(self) -> StartWorkers:
        name = getattr(self._function, "__qualname__", repr(self._function))
        self._results = [_unnamed_file() for _ in range(self.nprocs)]
        if self._is_fork:
            calls = [(self._function, tuple(self.args[rank])) for rank in range(self.nprocs)]
            self._processes = [self._process(rank, call) for rank, call in enumerate(calls)]
            return StartWorkers(round_id=ROUND_ID, argv=(name,), env={}, workers=self._workers())
        packed = [self._pack(rank) for rank in range(self.nprocs)]
        self._fds = {fd for _, fds in packed for fd in fds}
        flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
        return StartWorkers(
            round_id=ROUND_ID,
            argv=(os.fsdecode(spawn.get_executable()), *flags, "-c", _SPAWNED),
            env=dict(os.environ),
            workers=self._workers(
                args=tuple((*args, "--multiprocessing-fork") for args, _ in packed),
                fds=tuple(fds for _, fds in packed),
            ),
        )

    def _launch(self) -> tuple[int, socket.socket]:
        if self._is_fork:
            return fork_supervisor(self._processes)
        return launch_supervisor(self._fds)

    def _process(self, rank: int, call: object) -> process.BaseProcess:
        return self._factory.Process(
            target=_work, args=(call, self._results[rank].fileno()), name=f"{self.name}{rank}"
        )

    def _pack(self, rank: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return arguments and descriptors of the interpreter that is to make a call."""
        tracker = resource_tracker.getfd()
        collector = _Collector()
        content = io.BytesIO()
        set_spawning_popen(collector)  # type: ignore[arg-type]  # what packing asks it for
        try:
            # The arguments are unpacked where a failure of that is recorded.
            call = bytes(ForkingPickler.dumps((self._function, tuple(self.args[rank]))))
            worker = self._process(rank, call)
            reduction.dump(spawn.get_preparation_data(worker.name), content)
            reduction.dump(worker, content)
        finally:
            set_spawning_popen(None)
        file = _unnamed_file()
        self._calls.append(file)
        file.write(content.getbuffer())
        file.flush()
        file.seek(0)
        assert tracker is not None, "it was just started"
        fds = (file.fileno(), self._results[rank].fileno(), tracker, *collector.fds)
        return (str(file.fileno()), str(tracker), str(os.getpid())), fds

    def _take_return_values(self) -> dict[int, Any]:
        values: dict[int, Any] = {}
        for rank, file in enumerate(self._results):
            file.seek(0, os.SEEK_END)
            is_empty = not file.tell()
            file.seek(0)
            try:
                values[rank] = None if is_empty else pickle.load(file)  # noqa: S301 - our own
            except Exception:
                # Whatever the constructors of the user's types may raise.
                _LOGGER.exception("the return value of %s%d cannot be read", self.name, rank)
                self._fail(rank, 1)
        return values

    def _release(self) -> None:
        for file in (*self._results, *self._calls):
            file.close()


class _Collector:
    """Stands for the process that is being started while its arguments are packed."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        """Note a descriptor that the worker inherits under the same number."""
        self.fds.append(fd)
        return fd

    def DupFd(self, fd: int) -> _InheritedFd:  # noqa: N802 - the standard library's name
        """Return what is packed for a descriptor."""
        return _InheritedFd(self.duplicate_for_child(fd))


class _InheritedFd:
    """A descriptor on its way to another interpreter."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def detach(self) -> int:
        """Return the descriptor."""
        return self._fd


def _unnamed_file() -> IO[bytes]:
    """Return a file of any size that is gone when the last process has closed it."""
    return tempfile.TemporaryFile(prefix="drumbeat_call_")


@record
def _work(call: bytes | tuple[Callable[..., object], tuple[Any, ...]], result_fd: int) -> None:
    """Make a call, in the worker, and write what it returns to an unnamed file.

    Raises:
        TypeError: It cannot be pickled.
        OSError: It does not fit on the disk.
    """
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
