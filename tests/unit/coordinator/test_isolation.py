"""One run can't hurt another: what happens when a run's core raises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import DeadlineReached, LimitsReset, OutageEnded, RunRead
from drumbeat.coordinator.core.registry.isolation import BREAKS_AGAIN_WITHIN_S
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.core.run.records import Record, RunEnded
from drumbeat.coordinator.core.run.run import Run
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.errors import RunClosed, Unavailable
from drumbeat.model import GroupState
from tests.support import breaks
from tests.support.journal import fold, round_trip, take_over
from tests.support.status import status_of
from tests.support.world import Story, a_spec


class Bug(Exception):
    """A mistake of ours."""


@dataclass
class Bugs:
    """Makes the core of run "x" raise at the end of each event, with its state changed."""

    left: int = 0

    def install(self, patch: pytest.MonkeyPatch) -> Bugs:
        original = Run.handle

        def handle(run: Run, event: object, *, now: float) -> list[fx.Effect]:
            effects = original(run, event, now=now)  # type: ignore[arg-type]
            if run.state.run_id == "x" and self.left:
                self.left -= 1
                raise Bug("of the test")
            return effects

        patch.setattr(Run, "handle", handle)
        return self


class BreakableStory(Story):
    """Reads a run from the journal when it is told to."""

    def read(self, run_id: str = "x") -> list[fx.Effect]:
        state = fold(round_trip(self.journal)).get(run_id)
        effects = self.handle(RunRead(run_id=run_id, state=state))
        self.registry.check_invariants()
        return effects

    def answers(self) -> dict[str, object]:
        """Return what sessions and requests were told by the last call, by run."""
        answers: dict[str, object] = {}
        for effect in self.effects:
            if isinstance(effect, fx.Welcome | fx.Direct | fx.Reject):
                answers[self.agents[self.sessions[effect.session_id]].run_id] = effect
        return answers


@pytest.fixture(autouse=True)
def _contained() -> Iterator[None]:
    with breaks.contained():
        yield


@pytest.fixture
def bugs(monkeypatch: pytest.MonkeyPatch) -> Bugs:
    return Bugs().install(monkeypatch)


@pytest.fixture
def story() -> BreakableStory:
    """Return two runs of two agents each, both in their first round."""
    story = BreakableStory(spec=a_spec(2, restarts_max=3))
    for run_id in ("x", "y"):
        for name in ("a", "b"):
            story.join(run_id + name, run_id=run_id)
    story.obey_all()
    return story


def comes_back(story: BreakableStory, *names: str) -> None:
    for name in names:
        story.back(name)
        story.obey(name)


def test_a_run_that_breaks_lets_go_of_its_sessions_and_is_read_again(
    story: BreakableStory, bugs: Bugs
) -> None:
    before, other = story.state("x"), list(story.state("y").history)
    bugs.left = 1
    effects = story.fail("xa")  # decides the next round, and breaks
    (read,) = story.of(fx.ReadRun)
    assert (read.run_id, type(read.error)) == ("x", Bug)
    assert not story.of(fx.Persist), "half a decision is none"
    rejected = {e.session_id: e.error for e in effects if isinstance(e, fx.Reject)}
    assert len(rejected) == 2
    assert {type(error) for error in rejected.values()} == {Unavailable}
    assert set(story.answers()) == {"x"}

    story.read()
    assert story.state("x") is not before
    assert (story.state("x").round_id, story.state("x").restart_count) == (0, 0)
    comes_back(story, "xb")
    story.back("xa")  # and says again what had failed
    assert (story.state("x").round_id, story.state("x").restart_count) == (1, 1)
    assert story.state("y").history == other
    story.registry.check_invariants()


def test_workers_of_a_run_that_is_read_again_are_left_alone(
    story: BreakableStory, bugs: Bugs
) -> None:
    bugs.left = 1
    story.beat("xa")
    story.read()
    for name in ("xa", "xb"):
        story.back(name)
        assert story.assignment(name).round_id == 0
    story.advance(60.0)
    assert (story.state("x").round_id, len(story.state("x").members)) == (0, 2)


def test_a_run_that_breaks_again_ends_with_a_reason_its_users_can_read(
    story: BreakableStory, bugs: Bugs
) -> None:
    bugs.left = 2
    story.beat("xa")
    story.read()
    story.back("xa")
    assert story.of(fx.ReadRun)
    story.read()
    (ended,) = story.of(fx.Persist)
    assert isinstance(ended.record, RunEnded)
    assert list(story.registry.ended) == ["x"]
    for name in ("xa", "xb"):
        story.back(name)
        verdict = story.verdict(name)
        assert not verdict.is_success
        assert "internal error of the coordinator, Bug: of the test" in verdict.reason
    run = story.run("x")
    shown = status_of(run.state, run, now=story.now)
    assert "Bug: of the test" in shown.verdict.reason
    assert fold(round_trip(story.journal))["x"].phase is Phase.ENDED
    assert story.state("y").phase is Phase.RUNNING
    assert isinstance(story.join("xc", run_id="x")[0], fx.Reject)


def test_a_run_that_breaks_even_when_it_has_ended_is_closed(
    story: BreakableStory, bugs: Bugs
) -> None:
    bugs.left = 3
    for _ in range(2):
        story.back("xa")
        story.read()
    story.back("xa")
    story.read()
    assert not story.of(fx.Persist)
    (reject,) = story.back("xa")
    assert isinstance(reject, fx.Reject)
    assert isinstance(reject.error, RunClosed)
    assert "Bug: of the test" in str(reject.error)
    story.registry.check_invariants()


def test_a_run_that_breaks_once_in_a_long_time_goes_on(story: BreakableStory, bugs: Bugs) -> None:
    for _ in range(3):
        bugs.left = 1
        story.beat("xa")
        story.read()
        comes_back(story, "xa", "xb")
        story.advance(BREAKS_AGAIN_WITHIN_S + 1)
    assert story.state("x").phase is Phase.RUNNING


def test_while_a_run_is_read_its_agents_are_told_to_come_again(
    story: BreakableStory, bugs: Bugs
) -> None:
    bugs.left = 1
    story.beat("xa")
    assert not story.run("x").is_sound
    for effects in (story.back("xa"), story.beat("xb"), story.leave("xb")):
        (reject,) = effects
        assert isinstance(reject, fx.Reject)
        assert isinstance(reject.error, Unavailable)
    assert story.break_session("xb") == []
    (refused,) = story.record("xa")
    assert isinstance(refused, fx.Answer)
    assert isinstance(refused.result, Unavailable), "an answer would end the record"
    (refused,) = story.handle(LimitsReset(run_id="x", request_id=77))
    assert isinstance(refused, fx.Answer)
    assert isinstance(refused.result, Unavailable)
    story.advance(100.0)
    assert story.state("y").phase is Phase.RUNNING
    story.registry.check_invariants()


def test_a_record_that_breaks_its_run_is_not_acknowledged(
    story: BreakableStory, bugs: Bugs
) -> None:
    bugs.left = 1
    story.record("xa")
    (answer,) = story.of(fx.Answer)
    assert isinstance(answer.result, Unavailable)


def test_what_comes_behind_a_refused_record_in_its_stream_is_refused_too(
    story: BreakableStory, bugs: Bugs
) -> None:
    """Acknowledged, it would make the one before it look like one that was counted before."""
    bugs.left = 1
    story.record("xa", is_first=True)
    story.read()
    comes_back(story, "xa", "xb")
    story.record("xa")
    (answer,) = story.of(fx.Answer)
    assert isinstance(answer.result, Unavailable)
    story.record("xb")
    assert [answer.result for answer in story.of(fx.Answer)] == [True], "the streams of others"
    for sequence in (1, 2):
        story.record("xa", sequence=sequence, is_first=sequence == 1)
        assert [answer.result for answer in story.of(fx.Answer)] == [True]


def test_a_deadline_that_breaks_one_run_comes_to_the_others(
    story: BreakableStory, bugs: Bugs
) -> None:
    for run_id in ("x", "y"):
        story.break_session(f"{run_id}a")
    due = story.registry.next_deadline()
    assert due is not None
    bugs.left, story.now = 1, due
    story.handle(DeadlineReached())
    assert [effect.run_id for effect in story.of(fx.ReadRun)] == ["x"]
    assert "ya.1" not in story.state("y").members


def test_a_run_that_breaks_when_it_is_created_is_read_again(bugs: Bugs) -> None:
    story = BreakableStory(spec=a_spec(1))
    bugs.left = 1
    story.join("xa", run_id="x")
    story.read()
    comes_back(story, "xa")
    assert story.state("x").phase is Phase.RUNNING


def test_a_run_that_was_forgotten_while_it_was_read_stays_forgotten(
    story: BreakableStory, bugs: Bugs
) -> None:
    bugs.left = 1
    story.beat("xa")
    assert story.handle(RunRead(run_id="z", state=fold(story.journal)["x"])) == []
    assert "z" not in story.registry.runs


def test_a_run_whose_journal_cannot_be_read_is_closed(story: BreakableStory, bugs: Bugs) -> None:
    bugs.left = 1
    story.beat("xa")
    story.handle(RunRead(run_id="x", state=None))
    (reject,) = story.back("xa")
    assert isinstance(reject, fx.Reject)
    assert isinstance(reject.error, RunClosed)


def test_what_was_read_and_not_asked_for_changes_nothing(story: BreakableStory) -> None:
    before = story.state("x")
    assert story.read() == []
    assert story.state("x") is before


def test_a_run_that_cannot_begin_after_a_restart_ends_and_the_others_go_on(
    story: BreakableStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Run.__init__

    def begin(run: Run, state: RunState, *rest: Any, **arguments: Any) -> None:
        if state.run_id == "x" and state.phase is not Phase.ENDED:
            raise Bug("of the test")
        original(run, state, *rest, **arguments)

    monkeypatch.setattr(Run, "__init__", begin)
    registry = Registry(story.policy)
    effects = take_over(registry, fold(story.journal).values(), now=story.now)
    records: list[Record] = [e.record for e in effects if isinstance(e, fx.Persist)]
    assert [type(record) for record in records] == [RunEnded]
    assert [run.state.phase for run in registry.runs.values()] == [Phase.ENDED, Phase.RUNNING]
    assert list(registry.ended) == ["x"]
    registry.check_invariants()


# After an outage of the journal.


def test_agents_whose_streams_broke_in_an_outage_have_time_to_come_back(
    story: BreakableStory,
) -> None:
    """Meanwhile they were refused, so that their next attempt may be a second away."""
    story.break_session("xa")
    story.handle(OutageEnded())
    story.advance(10.0)
    assert "xa.1" in story.state("x").members
    story.back("xa")
    story.advance(60.0)
    assert (story.state("x").round_id, story.agents["xa"].state) == (0, GroupState.RUNNING)
