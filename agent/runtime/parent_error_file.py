"""Shell. Tells the launcher that this agent itself runs under why its run failed."""

from __future__ import annotations

import structlog

from agent.core.model import WorkerError
from worker_sdk.errors import error_file

log = structlog.get_logger()


def tell_launcher(path: str | None, cause: WorkerError) -> None:
    """Leave ``cause`` in this process's own error file, as a worker would; ``path`` None: nobody.

    A failed attempt is logged: the agent ends in the same way without it.
    """
    if path is None:
        return
    content = error_file.compose(cause.message, stack=cause.traceback, error_code=cause.error_code)
    try:
        error_file.write(path, content)
    except OSError as error:
        log.warning("launcher not told", reason=f"{path}: {error.strerror}")
