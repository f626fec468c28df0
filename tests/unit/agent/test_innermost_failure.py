"""What a failure record says of a worker that was a launcher itself."""

import pytest

from drumbeat.agent.core.events import WorkerExited
from drumbeat.agent.core.failure_records import ended_by
from drumbeat.agent.model.messages import WorkerError
from drumbeat.model import Assignment

ASSIGNMENT = Assignment(
    round_id=0,
    restart_count=0,
    group_rank=0,
    group_world_size=1,
    rank_first=0,
    world_size=1,
    role_rank_first=0,
    role_world_size=1,
    master_addr="head",
    master_port=1,
    reason="all are there",
)


def message_of(text: str, code: int | None) -> str:
    event = WorkerExited(
        round_id=0,
        local_rank=0,
        pid=7,
        exit_code=1,
        is_stopped=False,
        ended_at=1.0,
        error=WorkerError(message=text, error_code=code),
    )
    return ended_by(ASSIGNMENT, event).message


@pytest.mark.parametrize("code", [None, 0, 1])
def test_a_code_that_says_nothing_new_is_left_out(code: int | None) -> None:
    assert message_of("boom", code) == "boom"


@pytest.mark.parametrize(
    ("code", "ending"), [(3, "exit code 3"), (-11, "SIGSEGV"), (-200, "signal 200")]
)
def test_the_innermost_ending_is_told_once(code: int, ending: str) -> None:
    text = f"boom\n(the innermost process ended by {ending})"
    assert message_of("boom", code) == text
    assert message_of(text, 2) == text
