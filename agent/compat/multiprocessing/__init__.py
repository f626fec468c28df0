"""Shell. Starts the workers of one host and reports how they ended, for launchers of one's own.

Takes the place of ``torch.distributed.elastic.multiprocessing``: same names, same arguments.
"""

from collections.abc import Callable
from typing import Any

from drumbeat.agent.compat.multiprocessing.context import (
    PContext,
    RunProcsResult,
    SubprocessContext,
)
from drumbeat.agent.compat.multiprocessing.multiprocess_context import MultiprocessContext
from drumbeat.agent.compat.multiprocessing.signals import SignalException
from drumbeat.agent.errors import ProcessFailure
from drumbeat.agent.settings.std import Std, to_map
from drumbeat.agent.workers.output.logs import DefaultLogsSpecs, LogsDest, LogsSpecs

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "start_processes",
    "to_map",
]


def start_processes(  # noqa: PLR0913, PLR0917 - arguments that others use already
    name: str,
    entrypoint: Callable[..., Any] | str,
    args: dict[int, tuple[Any, ...]],
    envs: dict[int, dict[str, str]],
    logs_specs: LogsSpecs,
    log_line_prefixes: dict[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: None = None,
    duplicate_stdout_filters: list[str] | None = None,
    duplicate_stderr_filters: list[str] | None = None,
) -> PContext:
    """Start one worker for each entry of `args` and return the context that holds them.

    `args` and `envs` (on top of this process's environment) are by local rank, from 0 without a
    gap; a program gets each argument as ``str(argument)``. Lines on the console begin with
    `log_line_prefixes`, by default ``[<name><local_rank>]:``; those that contain one of the
    filters are also written to one file for all workers. `start_method` is that of functions:
    ``spawn`` or ``forkserver``, the same here, or ``fork``. `numa_options` must be None.

    Raises ``RuntimeError`` if a local rank is missing, ``ValueError`` for impossible arguments and
    ``OSError``, which names what is wrong, if a program cannot be started.
    """
    filters = (duplicate_stdout_filters, duplicate_stderr_filters)
    more = (logs_specs, log_line_prefixes, numa_options, *filters)
    context: PContext
    if isinstance(entrypoint, str):
        context = SubprocessContext(name, entrypoint, args, envs, *more)
    else:
        context = MultiprocessContext(name, entrypoint, args, envs, start_method, *more)
    try:
        context.start()
    except BaseException:
        context.close()
        raise
    return context
