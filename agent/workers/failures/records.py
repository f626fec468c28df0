"""Pure. What a failure record says, for each way a worker can end badly."""

from __future__ import annotations

from dataclasses import replace

from agent.core.events import SupervisorDied, WorkerExited, WorkerStartFailed
from agent.core.inprocess.worker import Fault
from agent.core.model import Assignment, Failure, WorkerError
from agent.watchdog.core.format import describe_hang
from agent.workers.failures.exit_status import describe_exit

# What a shell answers for a command it can't find; the closest code to "it never ran".
EXIT_NOT_STARTED = 127
NEVER_BEGAN = "the workers' program could not be started, so nothing of it ever ran: see message"
_SIGKILL = 9
_INNERMOST = "(the innermost process ended by "


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


def left_by(assignment: Assignment, event: WorkerExited, fault: Fault, sequence: int) -> Failure:
    """Describe a worker that ended, and with that what it did to an iteration."""
    failure = ended_by(assignment, event, sequence)
    why = fault.interruption
    return replace(
        _marked(failure, assignment, fault),
        # It may have said so long before its process ended.
        happened_at=min(failure.happened_at, fault.at),
        message=failure.message or why.message,
        traceback=failure.traceback or why.traceback,
        is_stopped_by_agent=fault.is_victim,
    )


def interrupted_by(assignment: Assignment, fault: Fault, sequence: int) -> Failure:
    """Describe what a worker that lives on did to an iteration."""
    why = fault.interruption
    failure = _seated(assignment, why.local_rank, sequence, happened_at=fault.at)
    return replace(
        _marked(failure, assignment, fault),
        pid=fault.pid,
        message=why.message,
        traceback=why.traceback,
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
    return replace(
        failure,
        exit_code=-_SIGKILL,
        message=killed_with_it(event),
        explanation=event.explanation,
    )


def killed_with_it(event: SupervisorDied) -> str:
    """Say what the end of a supervisor is to its workers."""
    return f"the agent's supervisor {event.ending}; its workers were killed with it"


def lost_by(assignment: Assignment, event: SupervisorDied, fault: Fault, sequence: int) -> Failure:
    """Describe a worker that took part in an iteration and died because its supervisor did."""
    failure = interrupted_by(assignment, fault, sequence)
    return replace(
        failure,
        exit_code=-_SIGKILL,
        is_stopped_by_agent=fault.is_victim,
        explanation=event.explanation,
    )


def _message(error: WorkerError, exit_code: int) -> str:
    """Return the message; if it is that of a process further in, with how that one ended."""
    code = error.error_code
    # A launcher in between has said it already, and ended in a way of its own.
    if not code or code == exit_code or _INNERMOST in error.message:
        return error.message
    return f"{error.message}\n{_INNERMOST}{describe_exit(code)})"


def _marked(failure: Failure, assignment: Assignment, fault: Fault) -> Failure:
    """Add which iteration it was, and the rank that the worker had in it."""
    rank = assignment.rank_first + failure.local_rank if fault.rank is None else fault.rank
    return replace(
        failure, rank=rank, interruption=fault.interruption.kind, iteration=fault.iteration
    )


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
