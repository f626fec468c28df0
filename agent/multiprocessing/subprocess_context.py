"""Shell. Workers that are commands."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from agent.multiprocessing.context import PContext
from agent.multiprocessing.handlers import SubprocessHandler, WorkerProcess
from agent.multiprocessing.keeper import ROUND_ID, CommandKeeper
from agent.workers.supervisor import messages

if TYPE_CHECKING:
    from agent.workers.output.logs import LogsSpecs


class SubprocessContext(PContext):
    """Runs a command for each worker; arguments of any type are passed as ``str(argument)``.

    All of them are below one supervisor process, which ends them when this process dies.

    ``subprocess_handlers`` has each of them by local rank, once they have been started.

    Args:
        name: What the workers are, for people.
        entrypoint: The program.
        args: Its arguments by local rank.
        envs: Environment variables by local rank, on top of this process's.
        logs_specs: Where output goes.
        log_line_prefixes: What a line on the console begins with, by local rank; if not given,
            ``[<name><local_rank>]:``.
        numa_options: Must be None; use ``numactl`` as the program.
        duplicate_stdout_filters: Lines of the standard output that contain one of these are
            also written to one file for all workers.
        duplicate_stderr_filters: The same for the standard error.
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
        self.subprocess_handlers: dict[int, SubprocessHandler] = {}

    def _start(self) -> None:
        workers = tuple(
            messages.WorkerStart(
                local_rank=rank,
                env=self.envs[rank],
                args=tuple(str(arg) for arg in self.args[rank]),
                stdout=self.stdouts[rank],
                stderr=self.stderrs[rank],
            )
            for rank in range(self.nprocs)
        )
        if not workers:
            return
        keeper = CommandKeeper(tuple(range(self.nprocs)))
        self._add_keeper(keeper)
        argv = (str(self.entrypoint),)
        keeper.send(
            messages.StartWorkers(
                round_id=ROUND_ID, argv=argv, env=dict(os.environ), workers=workers
            )
        )
        self._pump(None, self._is_start_over)
        failure = self._start_failure
        if failure is not None and failure.errno:
            raise OSError(failure.errno, failure.message)
        if failure is not None:
            raise ValueError(failure.message)
        if not keeper.is_started:
            raise RuntimeError("the supervisor of the workers has ended while starting them")
        for worker in workers:
            rank = worker.local_rank
            look = partial(self._exit_code, rank)
            process = WorkerProcess(self._pids[rank], (*argv, *worker.args), look)
            self.subprocess_handlers[rank] = SubprocessHandler(rank, process)

    def _exit_code(self, local_rank: int, timeout_s: float | None) -> int | None:
        """Return how a worker has ended, None if it has not within the time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._pump(deadline, lambda: local_rank in self._exit_codes)
        return self._exit_codes.get(local_rank)

    def _take_return_values(self) -> dict[int, Any]:
        return dict.fromkeys(range(self.nprocs))

    def _release(self) -> None:
        pass


def refuse_numa_options(numa_options: object) -> None:
    """Check that nobody counts on them.

    Raises:
        ValueError: They are given.
    """
    if numa_options is not None:
        raise ValueError(
            f"numa_options: {numa_options!r} is not supported, allowed is None; "
            f"start the workers through numactl instead"
        )
