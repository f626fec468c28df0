"""What the time of a run went into: each scenario against what is to be read in its account."""

from typing import Any

import msgspec
import pytest

from drumbeat.coordinator.api.documents import goodput_document
from drumbeat.coordinator.command.looking.screens import goodput_screen, text_of
from drumbeat.coordinator.core.run.records import RoundEnded
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.observe.goodput.ledger import HOSTS_MAX, SEGMENTS_MAX, Ledger
from drumbeat.coordinator.observe.goodput.meter import NOTE_INTERVAL_S
from drumbeat.coordinator.observe.goodput.stretches import (
    Cause,
    Marks,
    Part,
    ProgressNoted,
    Stretch,
    StretchEnd,
)
from drumbeat.coordinator.observe.messages import goodput_message
from drumbeat.coordinator.observe.observer import account
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.model import GroupState, Health, HealthState
from drumbeat.text.durations import SECOND
from drumbeat.v1 import query_pb2
from drumbeat.wire.mapping import duration
from tests.support.world import Story, a_running_story, a_spec


def account_of(story: Story) -> Ledger:
    run = story.run()
    found = account(run.state.observed, run.members.observer, now=story.now)
    found.check_invariants()
    return found


def at(step: int | None, age_s: float = 0.0) -> dict[str, Any]:
    worker = WorkerProgress(local_rank=0, step=step, heartbeat_age_s=age_s)
    return {"workers": (worker,)}


def train(story: Story, steps: range | list[int | None]) -> None:
    """Let all agents of a running story make a step a second, and say so."""
    for step in steps:
        story.advance(1.0)
        for name, agent in story.agents.items():
            if agent.session_id is not None and not agent.is_silent:
                story.beat(name, GroupState.RUNNING, **at(step))
    for agent in story.agents.values():
        agent.workers = ()


@pytest.mark.parametrize(("ran_s", "is_told"), [(0.9, False), (1.0, True)])
def test_of_a_run_that_ended_within_a_second_no_line_tells_the_parts(
    ran_s: float, is_told: bool
) -> None:
    story = a_running_story(1)
    story.advance(ran_s)
    story.fail("a")
    assert bool(account_of(story).line()) == is_told
    answer = query_pb2.GetGoodputResponse(whole=duration(ran_s), effective_ratio=0.5)
    document = goodput_document("r", answer)
    assert ("too soon to tell" in text_of(goodput_screen(document))) != is_told


def test_beats_are_noted_once_a_minute_and_no_more() -> None:
    story = a_running_story(2)
    train(story, range(5))
    before = len(story.journal)
    train(story, range(5, 5 + 10 * round(NOTE_INTERVAL_S)))
    noted = story.journal[before:]
    assert {type(record) for _, record in noted} == {ProgressNoted}
    assert 9 <= len(noted) <= 10


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_coordinator_was_there_when_it_noted_how_a_host_is(is_noted: bool) -> None:
    story = a_running_story(2)
    train(story, range(5))
    unhealthy = Health(state=HealthState.UNHEALTHY, reason="no disk")
    story.advance(20.0)
    story.beat("b", more={"health": unhealthy} if is_noted else {})
    story.advance(5.0)
    story.restart()
    away = [each for each in account_of(story).segments if each.part is Part.AWAY]
    assert sum(each.time for each in away) // SECOND == (5 if is_noted else 29)


def test_a_fold_of_the_journal_is_the_account() -> None:
    story = a_running_story(2, restarts_max=1)
    train(story, range(20))
    story.fail("b")
    story.obey_all()
    train(story, range(10, 15))
    ledger = story.state().observed.ledger
    body = msgspec.json.encode(ledger)
    assert msgspec.json.decode(body, type=Ledger) == ledger
    story.restart()
    assert story.state().observed.ledger == ledger


def test_of_a_journal_of_before_what_was_is_unknown() -> None:
    story = a_running_story(2)
    train(story, range(20))
    document = msgspec.json.decode(msgspec.json.encode(story.state()))
    del document["observed"]["ledger"]
    old = msgspec.convert(document, type=RunState)
    assert old.observed.ledger == Ledger()
    old.apply(RoundEnded(cause="AGENT_JOINED", reason="more", at_s=story.now))  # type: ignore[arg-type]
    old.observed.ledger.check_invariants()
    assert old.observed.ledger.parts[Part.UNKNOWN].run == 20 * SECOND
    assert old.observed.ledger.ratio is None
    assert old.observed.ledger.line() == ""


def test_of_records_of_before_a_round_is_unknown_and_waiting_is_not() -> None:
    story = Story(spec=a_spec(2), is_lively=True)
    story.join("a")
    story.advance(10.0)
    story.join("b")
    story.advance(20.0)
    state = None
    for _, record in story.journal:
        if type(record).__name__ == "RunCreated":
            state = RunState.created(record)  # type: ignore[arg-type]
        elif not isinstance(record, ProgressNoted):
            assert state is not None
            state.apply(record)
    assert state is not None
    found = state.observed.ledger.as_of(story.now, None)
    assert {part: time.run for part, time in found.parts.items()} == {
        Part.WAITING: 10 * SECOND,
        Part.UNKNOWN: 20 * SECOND,
    }


def test_the_message_has_all_of_it() -> None:
    story = a_running_story(2, restarts_max=1)
    train(story, range(20))
    story.fail("b")
    story.obey_all()
    train(story, range(10, 15))
    message = goodput_message(story.state(), story.run(), now=story.now)
    assert message.whole.ToNanoseconds() == 25 * SECOND
    assert sum(part.time.ToNanoseconds() for part in message.parts) == 25 * SECOND
    assert message.effective_ratio == pytest.approx(19 / 25)
    assert message.mean_time_between_failures.ToNanoseconds() == 25 * SECOND
    assert message.is_running
    (start, failed) = message.causes
    assert (start.cause, start.restarts_count) == (query_pb2.LOSS_CAUSE_START, 0)
    assert (failed.cause, failed.restarts_count) == (query_pb2.LOSS_CAUSE_WORKER_FAILED, 1)
    assert failed.host_seconds == 10.0
    assert not message.segments
    assert "segments" not in goodput_document("run", message)
    message = goodput_message(story.state(), story.run(), now=story.now, with_segments=True)
    *_, last = goodput_document("run", message, with_segments=True)["segments"]
    assert last == {
        "age_s": 4.0, "time_s": 4.0, "part": "repeated", "cause": "worker_failed", "host": "b",
        "round_id": 1, "iteration": None, "host_s": 8.0,
    }  # fmt: skip


def test_hosts_beyond_a_limit_are_told_together() -> None:
    ledger = Ledger()
    for number in range(HOSTS_MAX + 10):
        now = 10.0 * (number + 1)
        ledger.follow(now, Stretch.ROUND, hosts=2)
        ledger.note(ProgressNoted(marks=Marks(began=round(now * SECOND)), at_s=now + 5))
        end = StretchEnd(cause=Cause.HANG, host=f"h{number}", since=round((now + 1) * SECOND))
        ledger.note(ProgressNoted(marks=ledger.marks or Marks(), at_s=now + 5, end=end))
        ledger.follow(now + 5, Stretch.GATHERING, hosts=2)
        ledger.check_invariants()
    assert len(ledger.hosts_lost) == HOSTS_MAX + 1
    assert ledger.hosts_lost[""].run > 0


def test_a_time_that_a_decision_divides_and_nothing_else_is_one_segment() -> None:
    ledger = Ledger()
    ledger.follow(1.0, Stretch.FORMING, hosts=1)
    for hosts in range(2, 10):
        ledger.follow(float(hosts), Stretch.FORMING, hosts=hosts)
    (segment,) = ledger.segments
    assert (segment.time, segment.part) == (8 * SECOND, Part.WAITING)


def test_of_segments_the_latest_are_kept_and_the_time_of_others_stays_in_the_parts() -> None:
    ledger = Ledger()
    for number in range(SEGMENTS_MAX):
        place = (number, None)
        ledger.follow(2.0 * number + 1.0, Stretch.ROUND, hosts=2, place=place)
        ledger.note(ProgressNoted(marks=Marks(began=(2 * number + 1) * SECOND)))
        ledger.follow(2.0 * number + 2.0, Stretch.ENDING, hosts=2, place=place)
    assert len(ledger.segments) == SEGMENTS_MAX
    assert ledger.whole == (2 * SEGMENTS_MAX - 1) * SECOND
    assert sum(each.time for each in ledger.segments) == SEGMENTS_MAX * SECOND
    assert ledger.segments[-1].round_id == SEGMENTS_MAX - 1
    ledger.check_invariants()
    # About as much as this each takes of a run's snapshot in the journal.
    assert len(msgspec.msgpack.encode(ledger.segments)) < 50 * SEGMENTS_MAX
