"""Shell. Workers that are commands."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agent.multiprocessing.context import PContext, refuse_numa_options
from agent.workers.supervisor.client import launch_supervisor

if TYPE_CHECKING:
    import socket

    from agent.workers.output.logs import LogsSpecs
    from agent.workers.supervisor.messages import StartWorkers


class SubprocessContext(PContext):
    """Runs a command for each worker; arguments of any type are passed as ``str(argument)``.

    ``subprocess_handlers`` has each of them by local rank, once they have been started. See
    `start_processes` for the arguments.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - arguments that others use already
        self,
        name: str,
        entrypoint: str,
        args: dict[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: dict[int, str] | None = None,
        numa_options: None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        refuse_numa_options(numa_options)
        filters = (duplicate_stdout_filters, duplicate_stderr_filters)
        super().__init__(name, entrypoint, args, envs, logs_specs, log_line_prefixes, *filters)
        self.subprocess_handlers: dict[int, SubprocessHandler] = {}

    def start(self) -> None:
        """Start the commands; see `PContext.start`."""
        super().start()
        self.subprocess_handlers = {
            rank: SubprocessHandler(rank, WorkerProcess(self, rank, pid))
            for rank, pid in sorted(self._pids.items())
        }

    def _launch(self) -> tuple[StartWorkers, int, socket.socket]:
        args = {rank: tuple(map(str, self.args[rank])) for rank in range(self.nprocs)}
        command = self._command((str(self.entrypoint),), dict(os.environ), args=args)
        return (command, *launch_supervisor())


class WorkerProcess(subprocess.Popen[bytes]):
    """The process of a worker. Not a child of this one: its supervisor reaps it."""

    stdin = stdout = stderr = None

    def __init__(self, context: SubprocessContext, local_rank: int, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self.args = (str(context.entrypoint), *map(str, context.args[local_rank]))
        self._context, self._local_rank = context, local_rank

    def poll(self) -> int | None:
        """Return its exit code, None while it runs; a signal's number, negated."""
        self.returncode = self._context._exit_codes.get(self._local_rank)  # noqa: SLF001 - its own
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code.

        Raises:
            subprocess.TimeoutExpired: It has not ended in time, in seconds.
            SignalException: See `PContext.start`.
        """
        self._context._wait_for(lambda: self.poll() is not None, timeout)  # noqa: SLF001
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode


class SubprocessHandler:
    """One worker of a `SubprocessContext`: its ``local_rank_id`` and its process, ``proc``."""

    def __init__(self, local_rank_id: int, proc: WorkerProcess) -> None:
        self.local_rank_id, self.proc = local_rank_id, proc

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send a signal, SIGTERM if not given, to the process group that the worker leads."""
        if self.proc.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.proc.pid, death_sig or signal.SIGTERM)
