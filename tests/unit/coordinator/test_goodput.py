"""What the time of a run went into: each scenario against what is to be read in its account."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from drumbeat.coordinator.api.documents import goodput_document
from drumbeat.coordinator.command.looking.screens import goodput_screen, text_of
from drumbeat.coordinator.core.model import GroupState, Hang, HangKind, VerdictCause
from drumbeat.coordinator.core.run.records import EndingStarted, RoundEnded, RunEnded
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.observe.goodput import HOSTS_MAX, SEGMENTS_MAX, Ledger
from drumbeat.coordinator.observe.messages import goodput_message
from drumbeat.coordinator.observe.meter import NOTE_INTERVAL_S
from drumbeat.coordinator.observe.observer import account
from drumbeat.coordinator.observe.stretches import (
    Cause,
    Found,
    Marks,
    Part,
    ProgressNoted,
    Stretch,
    cut,
)
from drumbeat.coordinator.observe.worker_progress import WorkerProgress
from drumbeat.durations import SECOND
from drumbeat.mapping import duration
from drumbeat.v1 import query_pb2
from tests.support.world import Story, a_running_story, a_spec


def account_of(story: Story) -> Ledger:
    run = story.run()
    found = account(run.state.observed, run.members.observer, now=story.now)
    found.check_invariants()
    return found


def parts(story: Story) -> dict[str, float]:
    """Return the seconds of each part."""
    found = account_of(story).parts
    return {part.lower(): time.run / SECOND for part, time in found.items() if time.run}


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


def start(story: Story) -> None:
    """Let the agents start the workers that they were told to."""
    story.obey_all()


def test_waiting_starting_and_training_without_heartbeats_go_by_who_is_there() -> None:
    story = Story(spec=a_spec(2))
    story.join("a")
    story.advance(30.0)
    story.join("b")
    story.advance(5.0)
    assert parts(story) == {"waiting": 30.0, "starting": 5.0}
    start(story)
    story.advance(65.0)
    assert parts(story) == {"waiting": 30.0, "starting": 5.0, "training": 65.0}
    found = account_of(story)
    assert (found.ratio, found.failures) == (0.65, 0)
    assert found.parts[Part.WAITING].hosts == 30 * SECOND
    assert found.parts[Part.TRAINING].hosts == 130 * SECOND


def test_after_a_loss_only_the_hosts_that_are_left_are_accounted_for() -> None:
    story = a_running_story(2)
    story.advance(10.0)
    story.leave("b")
    story.advance(30.0)
    assert account_of(story).parts[Part.STOPPING].hosts == 30 * SECOND


def test_starting_lasts_until_all_ranks_have_told_a_heartbeat() -> None:
    story = a_running_story(2)
    story.advance(10.0)
    story.beat("a", **at(0))
    story.agents["a"].workers = ()
    story.advance(5.0)
    story.beat("b", **at(0, age_s=1.0))
    story.agents["b"].workers = ()
    story.advance(6.0)
    assert parts(story) == {"starting": 14.0, "training": 7.0}


def test_ranks_that_never_tell_are_not_waited_for_once_others_train() -> None:
    story = a_running_story(2)
    story.advance(10.0)
    for step in range(4):
        story.advance(1.0)
        story.beat("a", **at(step))
    story.agents["a"].workers = ()
    story.advance(6.0)
    assert parts(story) == {"starting": 13.0, "training": 7.0}


def test_steps_that_were_done_before_are_repeated() -> None:
    story = a_running_story(2, restarts_max=1)
    train(story, range(20))
    story.fail("b")
    story.obey_all()
    story.advance(9.0)
    train(story, range(10, 25))
    # Until step 20 is told, which no round had reached: 10 seconds from the first, of step 10.
    assert parts(story) == {"starting": 1.0 + 10.0, "training": 19.0 + 4.0, "repeated": 10.0}
    found = account_of(story)
    assert (found.reached, found.failures) == (19, 1)
    assert found.restarts == {Cause.WORKER_FAILED: 1}
    assert found.causes[Cause.WORKER_FAILED].run == 20 * SECOND


def test_without_steps_nothing_is_said_to_be_repeated() -> None:
    story = a_running_story(2, restarts_max=1)
    train(story, [None] * 20)
    story.fail("b")
    story.obey_all()
    train(story, [None] * 10)
    assert parts(story) == {"starting": 2.0, "training": 28.0}


def test_a_hang_lasts_from_the_last_progress_until_it_is_found() -> None:
    story = a_running_story(2, restarts_max=1)
    train(story, range(20))
    story.advance(40.0)
    hang = Hang(kind=HangKind.PROGRESS, limit_s=30.0, elapsed_s=40.0)
    story.record("b", hang=hang)
    story.fail("b")
    assert parts(story) == {"starting": 1.0, "training": 19.0, "hanging": 40.0}
    found = account_of(story)
    assert found.causes[Cause.HANG].run == 40 * SECOND
    assert found.hosts_lost["b"].hosts == 80 * SECOND
    assert found.line().startswith("trained 31.7% of 1 min; no progress 66.7%, starting 1.7%")


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


def test_a_machine_that_fell_silent_is_time_without_progress() -> None:
    story = a_running_story(2, 2, agents_min=1, restarts_max=1)
    train(story, range(20))
    story.silence("b")
    began = story.now
    story.advance(60.0)
    (ended,) = story.records(RoundEnded)
    assert parts(story)["hanging"] == pytest.approx(ended.at_s - began)
    assert account_of(story).hosts_lost["b"].run >= round((ended.at_s - began) * SECOND)
    assert Cause.AGENT_LOST in account_of(story).restarts


def test_workers_of_the_round_before_have_to_stop_first() -> None:
    story = a_running_story(2, restarts_max=1)
    train(story, range(20))
    story.fail("b")
    # Another round is assigned at once; the workers of a need 7 seconds to end.
    story.advance(7.0)
    story.beat("a", GroupState.STOPPING, workers_alive=0)
    story.advance(1.0)
    story.obey_all()
    train(story, range(10, 12))
    assert parts(story) == {
        "starting": 1.0 + 2.0,
        "training": 19.0,
        "stopping": 7.0,
        "repeated": 1.0,
    }


def test_the_end_of_a_failed_run_is_stopping() -> None:
    story = a_running_story(2)
    train(story, range(20))
    story.fail("b")
    assert story.records(EndingStarted)
    story.advance(3.0)
    story.record("b", sequence=1)
    story.beat("a", GroupState.IDLE, workers_alive=0)
    story.advance(60.0)
    (ended,) = story.records(RunEnded)
    story.advance(100.0)
    stopping = parts(story)["stopping"]
    assert stopping == pytest.approx(ended.at_s - story.records(EndingStarted)[0].at_s)
    assert account_of(story).whole == round((ended.at_s - 1000.0) * SECOND)
    assert ended.verdict.goodput == account_of(story).line()
    assert ended.verdict.cause is VerdictCause.WORKER_FAILED


def test_an_interruption_in_process_lasts_until_the_next_iteration_begins() -> None:
    story = a_running_story(2)
    for name in ("a", "b"):
        story.enter(name)
    story.obey_all()
    train(story, range(10))
    story.interrupt("a")
    story.advance(2.0)
    story.interrupt("b")
    story.enter("a")
    story.advance(3.0)
    story.enter("b")
    train(story, range(8, 15))
    # Of the first step that is told it is not known when it began.
    assert parts(story) == {
        "starting": 1.0,
        "training": 9.0 + 4.0,
        "interrupted": 5.0,
        "repeated": 3.0,
    }
    found = account_of(story)
    assert (found.failures, found.restarts) == (1, {Cause.INTERRUPTED: 1})


def test_what_an_interruption_lost_is_known_over_a_restart_of_the_coordinator() -> None:
    story = a_running_story(2)
    train(story, range(20))
    before = parts(story)
    story.advance(NOTE_INTERVAL_S)  # so that all of it is noted
    story.restart()
    assert before == {"starting": 1.0, "training": 19.0}


def test_a_coordinator_that_was_away_counts_what_both_sides_have_seen() -> None:
    story = a_running_story(2)
    train(story, range(20))
    story.beat("a", **at(20))
    story.agents["a"].workers = ()
    noted = max(record.at_s for record in story.records(ProgressNoted))
    story.now += 100.0
    story.restart()
    for name in ("a", "b"):
        story.agents[name].workers = at(120)["workers"]
        story.back(name)
    train(story, range(121, 131))
    away_s = parts(story)["away"]
    assert away_s == pytest.approx(story.now - 10.0 - noted)
    assert away_s <= 100.0 + NOTE_INTERVAL_S, "no more is lost than what was not noted yet"
    assert sum(parts(story).values()) == 130.0
    assert parts(story)["starting"] == 1.0
    assert account_of(story).ratio == pytest.approx(129 / 130)


def test_a_round_that_failed_while_the_coordinator_was_away_trained_until_its_last_progress() -> (
    None
):
    story = a_running_story(2, restarts_max=1)
    train(story, range(20))
    story.advance(NOTE_INTERVAL_S)
    story.now += 100.0
    story.restart()
    a, b = (story.agents[name] for name in "ab")
    a.workers = b.workers = at(79, age_s=100.0)["workers"]
    b.state, b.workers_alive = GroupState.FAILED, 0
    story.back("a")
    story.back("b")
    found = parts(story)
    # Step 79 was told as of the instant 80; what failed when after it nobody says.
    assert found == {"starting": 1.0, "training": 60.0, "away": 19.0, "hanging": 100.0}


def test_a_machine_that_never_comes_back_to_a_coordinator_trained_until_that_was_away() -> None:
    story = a_running_story(2, 2, agents_min=1, restarts_max=1)
    story.advance(200.0)  # no worker tells a heartbeat
    story.restart()
    story.back("a")
    story.advance(120.0)
    (ended,) = story.records(RoundEnded)
    found = parts(story)
    assert found["training"] + found["hanging"] == pytest.approx(ended.at_s - 1000.0, abs=1.0)
    assert found["training"] > 100.0
    assert account_of(story).hosts_lost["b"].run > 0


def test_a_rank_that_told_a_heartbeat_and_ended_is_not_waited_for() -> None:
    story = Story(spec=a_spec(1))
    story.join("a", local_world_size=2)
    story.obey_all()
    story.advance(1.0)
    story.beat("a", workers=(WorkerProgress(local_rank=0, heartbeat_age_s=0.0),))
    story.advance(4.0)
    story.beat("a", workers=(WorkerProgress(local_rank=1, heartbeat_age_s=0.0),))
    story.agents["a"].workers = ()
    story.advance(5.0)
    assert parts(story) == {"starting": 5.0, "training": 5.0}


def test_what_interrupted_an_iteration_for_good_is_the_cause_of_the_next_round() -> None:
    story = a_running_story(2, restarts_max=1)
    for name in ("a", "b"):
        story.enter(name)
    story.obey_all()
    train(story, range(10))
    story.interrupt("a")
    story.fail("b")
    found = account_of(story)
    assert Cause.WORKER_FAILED in found.restarts
    assert found.host == "b"


def test_beats_are_noted_once_a_minute_and_no_more() -> None:
    story = a_running_story(2)
    train(story, range(5))
    before = len(story.journal)
    train(story, range(5, 5 + 10 * round(NOTE_INTERVAL_S)))
    noted = story.journal[before:]
    assert {type(record) for _, record in noted} == {ProgressNoted}
    assert 9 <= len(noted) <= 10


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


def test_hosts_beyond_a_limit_are_told_together() -> None:
    ledger = Ledger()
    for number in range(HOSTS_MAX + 10):
        now = 10.0 * (number + 1)
        ledger.follow(now, Stretch.ROUND, hosts=2)
        ledger.note(ProgressNoted(marks=Marks(began=round(now * SECOND)), at_s=now + 5))
        found = Found(cause=Cause.HANG, host=f"h{number}", since=round((now + 1) * SECOND))
        ledger.note(ProgressNoted(marks=ledger.marks or Marks(), at_s=now + 5, found=found))
        ledger.follow(now + 5, Stretch.GATHERING, hosts=2)
        ledger.check_invariants()
    assert len(ledger.hosts_lost) == HOSTS_MAX + 1
    assert ledger.hosts_lost[""].run > 0


def test_segments_tell_what_the_run_did_when_and_what_for() -> None:
    story = a_running_story(2, restarts_max=1)
    train(story, range(20))
    story.advance(40.0)
    story.record("b", hang=Hang(kind=HangKind.PROGRESS, limit_s=30.0, elapsed_s=40.0))
    story.fail("b")
    story.obey_all()
    train(story, range(10, 25))
    story.advance(5.0)
    message = goodput_message(story.state(), story.run(), now=story.now, with_segments=True)
    document = goodput_document("run", message, with_segments=True)
    told = [
        (row["age_s"], row["time_s"], row["part"], row["cause"], row["host"], row["round_id"])
        for row in document["segments"]
    ]
    assert told == [
        (80.0, 1.0, "starting", "start", None, 0),
        (79.0, 19.0, "training", None, None, 0),
        (60.0, 40.0, "hanging", "hang", "b", 0),
        (20.0, 1.0, "starting", "hang", "b", 1),
        (19.0, 10.0, "repeated", "hang", "b", 1),
        (9.0, 9.0, "training", None, None, 1),
    ]
    assert "segments" not in goodput_document("run", message)
    unasked = goodput_message(story.state(), story.run(), now=story.now)
    assert not unasked.segments


def test_segments_name_the_iteration() -> None:
    story = a_running_story(2)
    for name in ("a", "b"):
        story.enter(name)
    story.obey_all()
    train(story, range(10))
    story.interrupt("a")
    story.advance(2.0)
    story.interrupt("b")
    story.enter("a")
    story.enter("b")
    train(story, range(10, 15))
    told = [(each.part, each.iteration) for each in account_of(story).segments]
    assert told == [
        (Part.STARTING, 0),
        (Part.TRAINING, 0),
        (Part.INTERRUPTED, 0),
        (Part.TRAINING, 1),
    ]


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


def test_marks_in_any_disorder_make_no_gap() -> None:
    marks = Marks(is_stopping=True, stopped=90, began=10, caught_up=5, away=((70, 20), (50, 300)))
    found = list(cut(Stretch.ROUND, marks, 0, 100, reached=3, since=2))
    assert [first for _, first, _ in found] == [0, *[last for _, _, last in found][:-1]]
    assert found[-1][2] == 100
