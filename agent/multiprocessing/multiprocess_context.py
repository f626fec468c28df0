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
from multiprocessing import popen_spawn_posix, process, reduction, resource_tracker, spawn, util
from multiprocessing.context import set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import IO, TYPE_CHECKING, Any

from agent.multiprocessing.context import PContext, refuse_numa_options
from agent.multiprocessing.fork import fork_supervisor
from agent.workers.supervisor.client import launch_supervisor
from worker_sdk import record

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from agent.workers.output.logs import LogsSpecs
    from agent.workers.supervisor.messages import StartWorkers

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

    See `start_processes` for the arguments. Raises ``ValueError`` if there is no such start method.
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
        self._factory: Any = multiprocessing.get_context(start_method)
        filters = (duplicate_stdout_filters, duplicate_stderr_filters)
        super().__init__(name, entrypoint, args, envs, logs_specs, log_line_prefixes, *filters)
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

    def _process(self, rank: int, call: object) -> process.BaseProcess:
        made: process.BaseProcess = self._factory.Process(
            target=_work, args=(call, self._results[rank].fileno()), name=f"{self.name}{rank}"
        )
        return made

    def _pack(self, rank: int, call: object) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return arguments and descriptors of the interpreter that is to make a call."""
        tracker = resource_tracker.getfd()
        assert tracker is not None, "it was just started"
        collector, content = _Collector(), io.BytesIO()
        set_spawning_popen(collector)  # what packing asks for descriptors
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
        return args, (file.fileno(), self._results[rank].fileno(), tracker, *collector.fds)

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


class _Collector(popen_spawn_posix.Popen):
    """Stands for the process that is being started while its arguments are packed."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        """Note a descriptor that the worker inherits under the same number."""
        self.fds.append(fd)
        return fd


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
