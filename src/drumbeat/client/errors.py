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


def verdict_of(desired: DesiredState) -> Verdict | None:
    """Return the verdict that the coordinator has sent, if it has."""
    if not isinstance(desired, Exit) or desired.is_drained:
        return None
    return Verdict(is_success=desired.is_success, reason=desired.reason, cause=desired.cause)


def error_of(finish: Finish, desired: DesiredState) -> ClientError:
    """Return why a membership has ended."""
    error = finish.error
    text = str(error) if error is None or not error.hint else f"{error}; {error.hint}"
    verdict = verdict_of(desired)
    match error:
        case errors.AgentDrained():
            return Drained(text)
        case errors.CoordinatorUnreachable() | errors.CoordinatorLost():
            return Disconnected(text)
        case errors.RunEnded():
            verdict = verdict or Verdict(is_success=error.exit_code == 0, reason=text)
    if verdict is not None:
        return RunOver(verdict)
    return ClientError("this client is closed") if error is None else Refused(text)
