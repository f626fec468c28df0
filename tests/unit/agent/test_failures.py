"""What a record says of each bad end."""

from drumbeat.agent.core.events import WorkerExited, WorkerStartFailed
from drumbeat.agent.core.failure_records import (
    NEVER_BEGAN,
    ended_by,
    not_started,
)
from drumbeat.agent.core.model import Failure
from drumbeat.agent.model.messages import WorkerError
from tests.support.agents import an_assignment

ASSIGNMENT = an_assignment(5, group_rank=2, rank_first=8, role_rank_first=4)


def an_exit(**fields: object) -> WorkerExited:
    given = {
        "round_id": 5,
        "local_rank": 1,
        "pid": 77,
        "exit_code": 3,
        "is_stopped": False,
        "ended_at": 12.5,
    }
    return WorkerExited(**(given | fields))  # type: ignore[arg-type]


def a_failure(**fields: object) -> Failure:
    given = {
        "round_id": 5,
        "rank": 9,
        "local_rank": 1,
        "group_rank": 2,
        "role_rank": 5,
        "happened_at": 12.5,
        "pid": 77,
        "exit_code": 3,
        "message": "",
    }
    return Failure(**(given | fields))  # type: ignore[arg-type]


def test_an_exit_is_recorded_at_its_own_instant() -> None:
    assert ended_by(ASSIGNMENT, an_exit()) == a_failure()


def test_the_error_file_speaks() -> None:
    error = WorkerError(message="CUDA error", traceback="Traceback: …")
    failure = ended_by(ASSIGNMENT, an_exit(error=error))
    assert failure == a_failure(message="CUDA error", traceback="Traceback: …")


def test_a_victim_is_marked() -> None:
    failure = ended_by(ASSIGNMENT, an_exit(exit_code=-15, is_stopped=True))
    assert failure == a_failure(exit_code=-15, is_stopped_by_agent=True)


def test_a_worker_ended_for_a_fatal_line_failed_when_it_wrote_it() -> None:
    """Also if it was being stopped by the time it ended, with whatever code."""
    error = WorkerError(message="a line …")
    event = an_exit(exit_code=0, is_stopped=True, fatal_at=11.0, error=error)
    assert ended_by(ASSIGNMENT, event) == a_failure(
        exit_code=0, happened_at=11.0, message="a line …", is_stopped_by_agent=False
    )


def test_a_worker_that_never_ran_has_no_pid() -> None:
    event = WorkerStartFailed(round_id=5, local_rank=1, message="cannot start x")
    failure = not_started(ASSIGNMENT, event, now=3.0)
    assert failure == a_failure(
        happened_at=3.0, pid=0, exit_code=127, message="cannot start x", explanation=NEVER_BEGAN
    )
