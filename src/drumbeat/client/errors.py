"""Pure. Why a launcher gets no other assignment, and how its run ended."""

from __future__ import annotations

from msgspec import Struct

from drumbeat.agent import errors
from drumbeat.agent.core.effects import Finish
from drumbeat.agent.core.model import DesiredState, Exit


class Verdict(Struct, frozen=True, kw_only=True):
    """How a run ended; ``cause`` is that of a failed one, e.g. WORKER_FAILED."""

    is_success: bool
    reason: str
    cause: str = ""


class ClientError(Exception):
    """Base of all errors of a client. Each one ends the client."""


class RunOver(ClientError):
    """The run has ended; ``verdict`` says how."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class Drained(ClientError):
    """An operator took this host out of the run, which goes on without it."""


class Refused(ClientError):
    """The coordinator refused this launcher: its token, its settings or its message."""


class Disconnected(ClientError):
    """No coordinator answered in time."""


def error_of(finish: Finish, desired: DesiredState) -> ClientError:
    """Return why a membership has ended."""
    error = finish.error
    text = str(error) if error is None or not error.hint else f"{error}; {error.hint}"
    match error:
        case errors.AgentDrained():
            return Drained(text)
        case errors.RunEnded():
            return RunOver(Verdict(is_success=error.exit_code == 0, reason=text))
        case errors.RunRefused() if not isinstance(desired, Exit):
            return Refused(text)
        case errors.CoordinatorUnreachable() | errors.CoordinatorLost():
            return Disconnected(text)
    if isinstance(desired, Exit):
        return RunOver(
            Verdict(is_success=desired.is_success, reason=desired.reason, cause=desired.cause)
        )
    return Refused(text)
