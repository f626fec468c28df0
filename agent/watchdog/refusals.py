"""Pure. Why a worker's call is refused; ``agent.watchdog.service`` has the status of each."""

from __future__ import annotations


class Refusal(Exception):
    """Base of all; the message is for the worker's author."""


class NotAuthenticated(Refusal):
    """The call has no token, or one that is nobody's."""


class WorkerIsGone(Refusal):
    """The worker has ended, or its round is over."""

    def __init__(self, message: str = "the worker has ended, or its round is over") -> None:
        super().__init__(message)


class TooManyTimers(Refusal):
    """The worker has as many timers open as one may."""


class InvalidField(Refusal):
    """A field is missing or out of range; the message names it."""


class StreamReplaced(Refusal):
    """A later stream of the same worker took this one's place."""
