"""Shell. The one call that starts workers, whatever they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.multiprocessing.context import PContext, validate_full_rank
from agent.multiprocessing.multiprocess_context import MultiprocessContext
from agent.multiprocessing.subprocess_context import SubprocessContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.workers.output.logs import LogsSpecs


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

    Args:
        name: What the workers are; part of the prefix of their lines.
        entrypoint: A function, or a program by name or path.
        args: Arguments by local rank, which goes from 0 without a gap; those of a program are
            passed as ``str(argument)``.
        envs: Environment variables by local rank, on top of this process's.
        logs_specs: Where output goes.
        log_line_prefixes: What a line on the console begins with, by local rank; if not given,
            ``[<name><local_rank>]:``.
        start_method: For a function: ``spawn`` or ``forkserver``, the same here, or ``fork``.
        numa_options: Must be None.
        duplicate_stdout_filters: Lines of the standard output that are also shown on the console
            and contain one of these are written to one file for all workers.
        duplicate_stderr_filters: The same for the standard error.

    Raises:
        RuntimeError: `args` or `envs` lack a local rank.
        ValueError: The start method or the arguments are impossible.
        OSError: The program cannot be started; the message names what is wrong.
    """
    validate_full_rank(args, len(args), "args")
    validate_full_rank(envs, len(args), "envs")
    common: dict[str, Any] = {
        "name": name,
        "args": args,
        "envs": envs,
        "logs_specs": logs_specs,
        "log_line_prefixes": log_line_prefixes,
        "numa_options": numa_options,
        "duplicate_stdout_filters": duplicate_stdout_filters,
        "duplicate_stderr_filters": duplicate_stderr_filters,
    }
    context: PContext
    if isinstance(entrypoint, str):
        context = SubprocessContext(entrypoint=entrypoint, **common)
    else:
        context = MultiprocessContext(entrypoint=entrypoint, start_method=start_method, **common)
    try:
        context.start()
    except BaseException:
        context.close()
        raise
    return context
