"""Pure. What workers' calls are handed to, and why one is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agent.core.model import WorkerStep
from agent.watchdog.core.messages import Call
from agent.watchdog.core.model import WorkerKey


class Refusal(Exception):
    """A call is not for this agent to take; ``status`` as gRPC names it, ``why`` for its author."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


class WorkerIsGone(Refusal):
    """The worker is watched no more."""

    def __init__(self) -> None:
        super().__init__("FAILED_PRECONDITION", "the worker has ended, or its round is over")


class TooManyTimers(Refusal):
    """The worker has as many timers open as one may."""

    def __init__(self, timers_max: int) -> None:
        super().__init__("RESOURCE_EXHAUSTED", f"{timers_max} timers are open")


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
