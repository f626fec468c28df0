"""Pure. What a failure record says, for each way a worker can end badly."""

from __future__ import annotations

from dataclasses import replace

from agent.events import WorkerExited, WorkerStartFailed
from agent.model import Assignment, Failure

# What a shell answers for a command it can't find; the closest code to "it never ran".
EXIT_NOT_STARTED = 127
_SIGKILL = 9


def ended_by(assignment: Assignment, event: WorkerExited, sequence: int) -> Failure:
    """Describe a worker that exited badly."""
    failure = _seated(assignment, event.local_rank, sequence, happened_at=event.ended_at)
    return replace(
        failure,
        pid=event.pid,
        exit_code=event.exit_code,
        message=event.error.message if event.error else "",
        traceback=event.error.traceback if event.error else "",
        is_stopped_by_agent=event.is_stopped,
    )


def not_started(
    assignment: Assignment, event: WorkerStartFailed, sequence: int, *, now: float
) -> Failure:
    """Describe a worker that could not be started."""
    failure = _seated(assignment, event.local_rank, sequence, happened_at=now)
    return replace(failure, exit_code=EXIT_NOT_STARTED, message=event.message)


def killed_with_supervisor(
    assignment: Assignment, local_rank: int, ending: str, sequence: int, *, now: float
) -> Failure:
    """Describe a worker that died because its supervisor did."""
    failure = _seated(assignment, local_rank, sequence, happened_at=now)
    message = f"the agent's supervisor {ending}; its workers were killed with it"
    return replace(failure, exit_code=-_SIGKILL, message=message)


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
