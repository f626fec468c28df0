"""Shell. What an agent hears from the process that started it, and tells it: signals, its error."""

import asyncio
import signal
from collections.abc import Callable, Sequence

import structlog

from agent.core.effects import Finish
from agent.core.events import Event, SignalReceived, SuspendRequested
from agent.workers.supervisor.messages import WorkerError
from worker_sdk import errors

log = structlog.get_logger()

# For the workers alone, unless they are among those that end the agent.
FORWARDED = frozenset({signal.SIGUSR1, signal.SIGUSR2})


def take_signals(names: Sequence[str], submit: Callable[[Event], None]) -> None:
    """Turn signals into events of the running loop; those with ``names`` end the agent."""
    add = asyncio.get_running_loop().add_signal_handler
    handled = {signal.Signals[name] for name in names}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by ``nohup``
        handled.discard(signal.SIGHUP)
    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:  # where a terminal controls jobs
        add(signal.SIGTSTP, submit, SuspendRequested())
    for signum in handled:
        add(signum, submit, SignalReceived(signum=signum))
    for signum in FORWARDED - handled:
        add(signum, submit, SignalReceived(signum=signum, is_for_workers=True))


def cause_of(finish: Finish) -> WorkerError | None:
    """Return the agent's own error or the run's root cause; of several, the first."""
    if finish.error is not None:
        return WorkerError(message=str(finish.error))
    if finish.report is None or not finish.report.root_causes:
        return None
    worker = finish.report.root_causes[0]
    return WorkerError(
        message=worker.message or f"{worker.headline} recorded no error",
        traceback=worker.traceback,
        # An interruption that the worker survived has none.
        error_code=None if worker.is_survived else worker.exit_code,
    )


def tell_launcher(path: str | None, cause: WorkerError) -> None:
    """Leave ``cause`` in this process's own error file, if it has one; a failure is logged."""
    content = errors.compose(cause.message, stack=cause.traceback, error_code=cause.error_code)
    try:
        if path is not None:
            errors.write(path, content)
    except OSError as error:
        log.warning("launcher not told", reason=f"{path}: {error.strerror}")
