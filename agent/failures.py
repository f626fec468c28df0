"""Pure. What a failure record says, for each way a worker can end badly."""

from __future__ import annotations

from dataclasses import replace
from signal import Signals

from agent.events import SupervisorDied, WorkerExited, WorkerStartFailed
from agent.model import Assignment, Failure, WorkerError
from agent.watchdog.words import describe_hang

# What a shell answers for a command it can't find; the closest code to "it never ran".
EXIT_NOT_STARTED = 127
NEVER_BEGAN = "the workers' program could not be started, so nothing of it ever ran: see message"
_SIGKILL = 9
_SIGNAL_NAMES = {int(number): number.name for number in Signals}
_INNERMOST = "(the innermost process ended by "


def signal_name(exit_code: int) -> str:
    """Return the name of the signal behind a negative exit code, empty for an exit."""
    if exit_code >= 0:
        return ""
    return _SIGNAL_NAMES.get(-exit_code, f"signal {-exit_code}")


def ended_by(assignment: Assignment, event: WorkerExited, sequence: int) -> Failure:
    """Describe a worker that exited badly, or was ended because it hung."""
    hang, happened_at = event.hang, event.ended_at
    if hang is not None:
        # What others did meanwhile, because they waited for it, came after that.
        happened_at = min(happened_at, hang.noticed_at)
    message = _message(event.error, event.exit_code) if event.error else ""
    if hang is not None:
        message = "\n".join(text for text in (describe_hang(hang), message) if text)
    failure = _seated(assignment, event.local_rank, sequence, happened_at=happened_at)
    return replace(
        failure,
        pid=event.pid,
        exit_code=event.exit_code,
        message=message,
        traceback=event.error.traceback if event.error else "",
        stderr_tail=event.stderr_tail,
        # One that hung before it was stopped is no victim of whatever stopped it.
        is_stopped_by_agent=event.is_stopped and hang is None,
        explanation=event.explanation,
        hang=hang,
    )


def not_started(
    assignment: Assignment, event: WorkerStartFailed, sequence: int, *, now: float
) -> Failure:
    """Describe a worker that could not be started."""
    failure = _seated(assignment, event.local_rank, sequence, happened_at=now)
    return replace(
        failure,
        exit_code=EXIT_NOT_STARTED,
        message=event.message,
        explanation=NEVER_BEGAN,
    )


def killed_with_supervisor(
    assignment: Assignment, local_rank: int, event: SupervisorDied, sequence: int, *, now: float
) -> Failure:
    """Describe a worker that died because its supervisor did."""
    failure = _seated(assignment, local_rank, sequence, happened_at=now)
    message = f"the agent's supervisor {event.ending}; its workers were killed with it"
    return replace(failure, exit_code=-_SIGKILL, message=message, explanation=event.explanation)


def _message(error: WorkerError, exit_code: int) -> str:
    """Return the message; if it is that of a process further in, with how that one ended."""
    code = error.error_code
    # A launcher in between has said it already, and ended in a way of its own.
    if not code or code == exit_code or _INNERMOST in error.message:
        return error.message
    return f"{error.message}\n{_INNERMOST}{signal_name(code) or f'exit code {code}'})"


def _seated(
    assignment: Assignment, local_rank: int, sequence: int, *, happened_at: float
) -> Failure:
    """Return a failure that says who and when, and nothing yet of how."""
    return Failure(
        sequence=sequence,
        round_id=assignment.round_id,
        rank=assignment.rank_first + local_rank,
        local_rank=local_rank,
        group_rank=assignment.group_rank,
        role_rank=assignment.role_rank_first + local_rank,
        happened_at=happened_at,
        pid=0,
        exit_code=0,
        message="",
    )
