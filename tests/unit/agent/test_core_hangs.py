"""What an agent says of hangs of its workers, and when they are held."""

import pytest
from msgspec.structs import replace

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.events import LimitsExceeded, OrderReceived, SessionLost, SessionWelcomed
from drumbeat.agent.core.watchdog.model import Exceeded, WorkerKey
from drumbeat.agent.session import convert
from drumbeat.model import GroupState, HangKind
from drumbeat.v1 import failure_pb2, session_pb2
from drumbeat.wire.mapping import duration
from tests.support.agents import PACE, AgentStory, a_beat, of

LIMIT = Exceeded(
    worker=WorkerKey(0, 1),
    number=3,
    kind=HangKind.SECTION,
    scope="save",
    limit_s=20.0,
    since=75.0,
    is_held=True,
)


def welcomed(attempt: int = 1, *, takes_evidence: bool = True) -> SessionWelcomed:
    return SessionWelcomed(attempt=attempt, pace=PACE, takes_evidence=takes_evidence)


def lost(attempt: int = 1) -> SessionLost:
    return SessionLost(attempt=attempt, reason="the stream broke")


def switches(effects: list[fx.Effect]) -> list[bool]:
    return [each.is_there for each in of(effects, fx.JudgeKnown)]


def sent(effects: list[fx.Effect]) -> list[tuple[Exceeded, ...]]:
    return [each.beat.exceeded for each in of(effects, fx.SendBeat)]


# Whether workers are held.


def test_workers_are_held_once_a_coordinator_takes_evidence() -> None:
    story = AgentStory()
    assert switches(story.feed(welcomed())) == [True]
    assert switches(story.feed(welcomed())) == [], "it is said once"
    assert switches(story.feed(welcomed(takes_evidence=False))) == [], "only another pace"


def test_workers_are_not_held_for_a_coordinator_that_takes_none() -> None:
    story = AgentStory()
    assert switches(story.feed(welcomed(takes_evidence=False), lost())) == []


def test_workers_are_held_no_more_without_a_session_and_again_with_the_next() -> None:
    story = AgentStory()
    story.feed(welcomed())
    assert switches(story.feed(lost())) == [False]
    assert switches(story.feed(lost(2))) == []
    assert switches(story.feed(welcomed(3))) == [True]


def test_another_coordinator_that_takes_no_evidence_does_not_hold_them() -> None:
    story = AgentStory()
    story.feed(welcomed())
    effects = story.feed(lost(), welcomed(2, takes_evidence=False))
    assert switches(effects) == [False]


@pytest.mark.parametrize(("attempt", "is_meant"), [(1, False), (2, True)])
def test_workers_are_released_by_the_present_session_only(attempt: int, *, is_meant: bool) -> None:
    story = AgentStory().running()
    story.feed(lost(), welcomed(2))
    released = fx.HeldReleased(round_id=0, number=7)
    effects = story.feed(OrderReceived(attempt=attempt, order=released))
    assert of(effects, fx.HeldReleased) == [released] * is_meant


# Which limits are exceeded.


def test_a_limit_that_is_news_is_told_at_once() -> None:
    story = AgentStory().running()
    assert sent(story.feed(LimitsExceeded(exceeded=(LIMIT,)))) == [(LIMIT,)]
    assert sent(story.feed(LimitsExceeded(exceeded=(LIMIT,)))) == [], "it is no news"
    more = (LIMIT, replace(LIMIT, number=4))
    assert sent(story.feed(LimitsExceeded(exceeded=more))) == [more]
    assert sent(story.feed(LimitsExceeded(exceeded=()))) == [()]


@pytest.mark.parametrize("round_id", [0, 2])
def test_limits_of_another_round_are_not_told(round_id: int) -> None:
    story = AgentStory().running(round_id=1)
    other = replace(LIMIT, worker=WorkerKey(round_id, 1))
    assert sent(story.feed(LimitsExceeded(exceeded=(other,)))) == []
    ours = replace(LIMIT, worker=WorkerKey(1, 1), number=4)
    assert sent(story.feed(LimitsExceeded(exceeded=(other, ours)))) == [(ours,)]


def test_limits_are_told_to_the_next_coordinator_as_well() -> None:
    story = AgentStory().running()
    story.feed(LimitsExceeded(exceeded=(LIMIT,)))
    (opening,) = of(story.feed(lost()), fx.OpenSession)
    assert opening.beat.exceeded == (LIMIT,)


def test_without_workers_of_its_round_no_limit_is_told() -> None:
    story = AgentStory().connected()
    assert sent(story.feed(LimitsExceeded(exceeded=(LIMIT,)))) == []


# As a message.


def expired(*limits: Exceeded, now: float) -> list[session_pb2.ExpiredLimit]:
    beat = a_beat(GroupState.RUNNING, 0, exceeded=limits)
    return list(convert.beat_message(beat, now=now).expired)


def test_a_beat_says_which_limits_are_exceeded_and_for_how_long() -> None:
    assert expired(LIMIT, now=100.0) == [
        session_pb2.ExpiredLimit(
            number=3,
            local_rank=1,
            kind=failure_pb2.HANG_KIND_SECTION,
            scope="save",
            limit=duration(20.0),
            elapsed=duration(25.0),
            is_held=True,
        )
    ]
    assert expired(now=100.0) == []


@pytest.mark.parametrize("kind", HangKind)
def test_each_kind_has_its_name_in_the_protocol(kind: HangKind) -> None:
    (message,) = expired(replace(LIMIT, kind=kind), now=100.0)
    assert failure_pb2.HangKind.Name(message.kind) == f"HANG_KIND_{kind}"


def test_a_beat_has_room_for_so_many_limits_and_no_time_before_they_began() -> None:
    limits = [replace(LIMIT, number=i) for i in range(1, convert.EXCEEDED_MAX + 2)]
    told = expired(*limits, now=LIMIT.since - 1)
    assert [each.number for each in told] == list(range(1, convert.EXCEEDED_MAX + 1))
    assert {each.elapsed.ToTimedelta().total_seconds() for each in told} == {0.0}
