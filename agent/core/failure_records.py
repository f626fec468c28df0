"""Pure. Makes the failure record of a worker, for each way it can end badly."""

from typing import Any

from msgspec.structs import replace

from drumbeat.agent.core.events import WorkerExited, WorkerStartFailed
from drumbeat.agent.core.inprocess.worker import Fault
from drumbeat.agent.core.model import Failure
from drumbeat.agent.failures.exit_status import describe_exit
from drumbeat.agent.model.hang import describe_hang
from drumbeat.agent.model.messages import WorkerError
from drumbeat.model import Assignment

# What a shell answers for a command it can't find; the closest code to "it never ran".
EXIT_NOT_STARTED = 127
NEVER_BEGAN = "the workers' program could not be started, so nothing of it ever ran: see message"
_INNERMOST = "(the innermost process ended by "


def ended_by(assignment: Assignment, event: WorkerExited, fault: Fault | None = None) -> Failure:
    """Describe a worker that exited badly, or was ended because it hung.

    ``fault`` is what it did to an iteration of in-process restart, if it took part in one.
    """
    hang, error = event.hang, event.error or WorkerError(message="")
    messages = [describe_hang(hang) if hang else "", _message(error, event.exit_code)]
    return _seated(
        assignment,
        event.local_rank,
        fault,
        happened_at=event.failed_at,
        pid=event.pid,
        exit_code=event.exit_code,
        message="\n".join(filter(None, messages)),
        traceback=error.traceback,
        stderr_tail=event.stderr_tail,
        output_files=event.output_files,
        # One that hung before it was stopped is no victim of whatever stopped it.
        is_stopped_by_agent=event.is_stopped and not event.is_faulty,
        explanation=event.explanation,
        hang=hang,
        matched_rules=event.matched_rules,
        is_out_of_memory=event.is_out_of_memory,
        suspect_rank=error.suspect_rank,
    )


def interrupted_by(assignment: Assignment, fault: Fault) -> Failure:
    """Describe what a worker that lives on did to an iteration."""
    local_rank = fault.interruption.local_rank
    return _seated(assignment, local_rank, fault, happened_at=fault.at, pid=fault.pid)


def not_started(assignment: Assignment, event: WorkerStartFailed, *, now: float) -> Failure:
    """Describe a worker that could not be started."""
    return _seated(
        assignment,
        event.local_rank,
        happened_at=now,
        exit_code=EXIT_NOT_STARTED,
        message=event.message,
        explanation=NEVER_BEGAN,
    )


def _message(error: WorkerError, exit_code: int) -> str:
    code = error.error_code
    # A launcher in between has said it already, and ended in a way of its own.
    if not code or code == exit_code or _INNERMOST in error.message:
        return error.message
    return f"{error.message}\n{_INNERMOST}{describe_exit(code)})"


def _seated(
    assignment: Assignment, local_rank: int, fault: Fault | None = None, **how: Any
) -> Failure:
    """Add where the worker was, and what it did to an iteration at the rank it had there."""
    failure = Failure(
        round_id=assignment.round_id,
        rank=assignment.rank_first + local_rank,
        local_rank=local_rank,
        group_rank=assignment.group_rank,
        role_rank=assignment.role_rank_first + local_rank,
        **how,
    )
    if fault is None:
        return failure
    why = fault.interruption
    return replace(
        failure,
        rank=failure.rank if fault.rank is None else fault.rank,
        # It may have said so long before its process ended.
        happened_at=min(failure.happened_at, fault.at),
        message=failure.message or why.message,
        traceback=failure.traceback or why.traceback,
        is_stopped_by_agent=fault.is_victim,
        interruption=why.kind,
        iteration=fault.iteration,
    )
