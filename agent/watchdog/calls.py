"""Pure. What workers' calls are handed to, and why one is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agent.core.inprocess.model import WorkerStep
from agent.watchdog.core.events import Call
from agent.watchdog.core.model import WorkerKey


class Refusal(Exception):
    """Base of all; the message is for the worker's author. ``status`` as gRPC names it."""

    status = "INVALID_ARGUMENT"


class NotAuthenticated(Refusal):
    """The call has no token, or one that is not known."""

    status = "UNAUTHENTICATED"


class WorkerIsGone(Refusal):
    """The worker has ended, or its round is over."""

    status = "FAILED_PRECONDITION"

    def __init__(self) -> None:
        super().__init__("the worker has ended, or its round is over")


class TooManyTimers(Refusal):
    """The worker has as many timers open as one may."""

    status = "RESOURCE_EXHAUSTED"


class InvalidField(Refusal):
    """A field is missing or out of range; the message names it."""


class StreamReplaced(Refusal):
    """A later stream of the same worker took this one's place."""

    status = "ABORTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Takes the calls of workers; each may raise ``Refusal``."""

    authenticate: Callable[[str], Awaitable[WorkerKey]]
    """Returns whose token it is, once that worker is known to run."""
    submit: Callable[[Call], None]
    sync: Callable[[WorkerKey], None]
    """Takes note of all that the worker's board says."""
    step: Callable[[WorkerStep], None]
    """Takes note of how far the worker is in an iteration."""
