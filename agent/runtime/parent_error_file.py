"""Shell. Tells the launcher that this agent itself runs under why its run failed."""

import structlog

from agent.core.effects import Finish
from agent.workers.supervisor.messages import WorkerError
from worker_sdk.errors import error_file

log = structlog.get_logger()


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
    if path is None:
        return
    content = error_file.compose(cause.message, stack=cause.traceback, error_code=cause.error_code)
    try:
        error_file.write(path, content)
    except OSError as error:
        log.warning("launcher not told", reason=f"{path}: {error.strerror}")
