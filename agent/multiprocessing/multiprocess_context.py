"""Shell. Workers that are functions."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import tempfile
from functools import partial
from multiprocessing import util
from typing import IO, TYPE_CHECKING, Any

from agent.multiprocessing import guard
from agent.multiprocessing.context import PContext
from agent.multiprocessing.keeper import ROUND_ID, FunctionKeeper
from agent.multiprocessing.subprocess_context import refuse_numa_options
from agent.workers.supervisor import messages

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from multiprocessing.context import ForkContext, ForkServerContext, SpawnContext
    from multiprocessing.process import BaseProcess

    from agent.workers.output.logs import LogsSpecs

_LOGGER = logging.getLogger(__name__)

_FINALIZE_PRIORITY = 100
"""Before the standard library waits for its processes at exit, which ours would never end by."""


class MultiprocessContext(PContext):
    """Runs a function for each worker, in processes of the standard library's multiprocessing.

    Each is below a supervisor of its own, which ends it when this process dies, and also when
    this process just exits.

    Args:
        name: What the workers are, for people.
        entrypoint: The function. What it raises is recorded in its error file.
        args: Its arguments by local rank.
        envs: Environment variables by local rank, on top of this process's.
        start_method: ``spawn``, ``fork`` or ``forkserver``.
        logs_specs: Where output goes.
        log_line_prefixes: What a line on the console begins with, by local rank; if not given,
            ``[<name><local_rank>]:``.
        numa_options: Must be None.
        duplicate_stdout_filters: Lines of the standard output that contain one of these are
            also written to one file for all workers.
        duplicate_stderr_filters: The same for the standard error.

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
        self.start_method = start_method
        self._function = entrypoint
        self._results: dict[int, IO[bytes]] = {}
        self._finalizer: util.Finalize | None = None

    def _start(self) -> None:
        self._finalizer = util.Finalize(
            self, _abandon, args=(self._keepers,), exitpriority=_FINALIZE_PRIORITY
        )
        for rank in range(self.nprocs):
            self._results[rank] = tempfile.TemporaryFile(prefix="drumbeat_result_")  # noqa: SIM115
            keeper = FunctionKeeper(rank, partial(self._make_process, rank))
            self._add_keeper(keeper)
            keeper.send(
                messages.StartWorkers(
                    round_id=ROUND_ID,
                    argv=(getattr(self._function, "__qualname__", repr(self._function)),),
                    env={},
                    workers=(
                        messages.WorkerStart(
                            local_rank=rank,
                            env=self.envs[rank],
                            stdout=self.stdouts[rank],
                            stderr=self.stderrs[rank],
                        ),
                    ),
                )
            )

    def _make_process(self, rank: int, end: socket.socket) -> BaseProcess:
        call = guard.Call(self._function, tuple(self.args[rank]))
        result = guard.ResultFile(self._results[rank].fileno())
        return self._factory.Process(
            target=guard.serve, args=(end, call, result), name=f"{self.name}{rank}", daemon=False
        )

    def _take_return_values(self) -> dict[int, Any]:
        values: dict[int, Any] = {}
        for rank, file in self._results.items():
            file.seek(0, os.SEEK_END)
            if not file.tell():
                values[rank] = None
                continue
            file.seek(0)
            try:
                values[rank] = pickle.load(file)  # noqa: S301 - from our own worker
            except Exception:
                # Whatever the constructors of the user's types may raise.
                _LOGGER.exception("the return value of %s%d cannot be read", self.name, rank)
                self._fail(rank, 1)
        return values

    def _release(self) -> None:
        for file in self._results.values():
            file.close()
        self._results.clear()
        if self._finalizer is not None:
            self._finalizer.cancel()


def _abandon(keepers: list[FunctionKeeper]) -> None:
    for keeper in keepers:
        keeper.abandon()
