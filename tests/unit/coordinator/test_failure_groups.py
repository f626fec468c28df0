"""Failures of a run by their causes, and what that says of where to look."""

from __future__ import annotations

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
