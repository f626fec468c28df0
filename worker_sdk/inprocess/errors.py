"""Pure. What in-process restart raises."""


class RestartError(Exception):
    """Base of the errors of in-process restart."""


class RestartAbort(BaseException):
    """This worker takes no further part: raised by user code, or when no iteration follows."""


class HealthCheckError(RestartError):
    """The worker is not fit to take part any more; its cause says why."""


class TimeoutError(RestartError):  # noqa: A001 - the name under which users know it
    """Something did not end within the time it was given."""


class FaultCounterExceeded(RestartError):
    """The function has failed here more often than ``FaultCounter`` allows."""


class RankShouldRestart(BaseException):
    """Raised in the main thread to end the function of an interrupted iteration.

    No ``Exception``, so that code which handles errors lets it pass. What stops it gets it again.
    """
