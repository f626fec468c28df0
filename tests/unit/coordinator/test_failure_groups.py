"""Failures of a run by their causes, and what that says of where to look."""

import msgspec
import pytest

from drumbeat.coordinator.observe.failures import (
    GROUPS_MAX,
    KEPT_MAX,
    LOOP_PERIOD_S,
    LOST,
    FailureHistory,
)
from drumbeat.coordinator.observe.goodput.stretches import Cause, StretchEnd
from drumbeat.model import GroupState
from tests.support.world import a_record, a_running_story

ERROR = "ValueError at train.py:33"


def failure(cause: str, rank: int | None, *names: str) -> StretchEnd:
    kind = Cause.AGENT_LOST if cause == LOST else Cause.WORKER_FAILED
    ranks = () if rank is None else (rank,)
    return StretchEnd(cause=kind, host=names[0], signature=cause, ranks=ranks, names=names)


def history(*ends: StretchEnd, every_s: float = 10.0) -> FailureHistory:
    failures = FailureHistory()
    for number, end in enumerate(ends):
        failures.take(end, every_s * number, number, f"round {number} failed")
    return failures


@pytest.mark.parametrize(
    ("ends", "hosts", "advice"),
    [
        (
            [failure(ERROR, 7, "a2"), failure(ERROR, 7, "a1"), failure(ERROR, 7, "a2")],
            2,
            "always rank 7, on a2 and a1: likely code or data, not a host",
        ),
        (
            [failure(ERROR, 7, "a2"), failure(ERROR, 5, "a2")],
            2,
            "ranks 5 and 7, always on a2: look at this host",
        ),
        (
            [failure(ERROR, 7, "a2"), failure(ERROR, 7, "a2")],
            2,
            "always rank 7 on a2: look at this host, or at the data of this rank",
        ),
        (
            [failure(ERROR, 0, "a2"), failure(ERROR, 0, "a2")],
            1,
            "always rank 0 on a2: likely code or data",
        ),
        (
            [failure(ERROR, 1, "a1"), failure(ERROR, 9, "a2")],
            2,
            "ranks 1 and 9 on a2 and a1: likely code or data",
        ),
        ([failure(ERROR, 7, "a2")], 2, ""),
        ([failure(LOST, None, "a2")], 3, ""),
        (
            [failure(LOST, None, "a2"), failure(LOST, None, "a1"), failure(LOST, None, "a2")],
            3,
            "a2 was lost 2 times: look at this host",
        ),
        (
            [failure(LOST, None, "a1", "a2", "a3")],
            9,
            "3 hosts at once: look at what they share, not at one of them",
        ),
    ],
)
def test_what_failures_have_in_common_says_where_to_look(
    ends: list[StretchEnd], hosts: int, advice: str
) -> None:
    (group,) = history(*ends).groups
    assert group.count == len(ends)
    assert group.advice(hosts) == advice


def test_a_place_that_is_known_later_belongs_to_the_same_cause() -> None:
    (group,) = history(failure("ValueError", 1, "a"), failure(ERROR, 1, "b")).groups
    assert (group.cause, group.count) == (ERROR, 2)
    assert len(history(failure("ValueError", 1, "a"), failure("ValueErrors", 1, "a")).groups) == 2


def test_a_record_that_comes_after_its_failure_was_counted_tells_the_place() -> None:
    failures = history(failure("ValueError", 1, "a"), failure("SIGBUS", 2, "a"))
    failures.learn("KeyError at train.py:1")
    failures.learn("ValueErrors at train.py:2")
    assert [group.cause for group in failures.groups] == ["ValueError", "SIGBUS"]
    failures.learn(ERROR)
    failures.learn("ValueError at other.py:1")
    assert [group.cause for group in failures.groups] == [ERROR, "SIGBUS"]


def test_records_that_are_always_late_name_the_place_of_a_crash_loop() -> None:
    story = a_running_story(1, restarts_max=9)
    text, trace = "ValueError: loss is nan", 'File "/home/user/train.py", line 33, in step'
    for number in range(1, 4):
        round_id = story.state().round_id or 0
        told = a_record(
            incarnation="a.1", sequence=number, round_id=round_id, message=text, host="a"
        )
        story.beat("a", GroupState.FAILED, workers_alive=0, sequence=number, failure=told)
        (group,) = story.state().observed.failures.groups
        assert (group.cause, group.count) == (ERROR if number > 1 else "ValueError", number)
        story.record("a", sequence=number, round_id=round_id, message=text, traceback=trace)
        story.obey_all()
    assert group.cause == ERROR


def test_a_host_that_fails_in_two_ways_is_named_unless_its_failures_follow_a_rank() -> None:
    two = history(failure(ERROR, 7, "a2"), failure("SIGBUS", 3, "a2"))
    assert two.host_advice() == f"a2 failed in 2 ways (SIGBUS; {ERROR}): look at this host"
    moved = history(failure(ERROR, 7, "a2"), failure(ERROR, 7, "a1"), failure("SIGBUS", 3, "a2"))
    assert moved.host_advice() == ""


@pytest.mark.parametrize(
    ("causes", "every_s", "since_s", "is_loop"),
    [
        ([ERROR] * 3, 1800.0, 60.0, True),  # one cause may take its time
        ([ERROR] * 3, 1800.0, 3700.0, False),  # and is over when it stays away
        ([ERROR] * 2, 1.0, 1.0, False),
        ([ERROR, "SIGBUS", "SIGSEGV"], 60.0, 60.0, True),  # several fast ones
        ([ERROR, "SIGBUS", "SIGSEGV"], LOOP_PERIOD_S + 1, 60.0, False),
        ([ERROR] * 3, 1.0, 301.0, False),
        ([LOST] * 3, LOOP_PERIOD_S + 1, 60.0, False),  # hosts of a large machine are lost
    ],
)
def test_a_crash_loop_is_failures_that_are_alike_or_close(
    causes: list[str], every_s: float, since_s: float, is_loop: bool
) -> None:
    failures = history(*(failure(cause, 7, "a") for cause in causes), every_s=every_s)
    loop_s = failures.loop_s(every_s * (len(causes) - 1) + since_s)
    assert loop_s == (2 * every_s if is_loop else None)


def test_what_is_kept_has_limits_and_is_read_as_it_was_written() -> None:
    many = [
        failure(f"E{i}", i, *(f"h{j}" for j in range(3 * i + 1))) for i in range(2 * GROUPS_MAX)
    ]
    failures = history(*many)
    assert len(failures.groups) == GROUPS_MAX
    assert [group.cause for group in failures.groups][-1] == f"E{2 * GROUPS_MAX - 1}"
    assert max(len(group.names) for group in failures.groups) == KEPT_MAX
    written = msgspec.json.encode(failures)
    assert msgspec.json.decode(written, type=FailureHistory) == failures
