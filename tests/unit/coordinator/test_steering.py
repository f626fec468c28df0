"""What an operator asks of a run: noted with who and why, harmless if repeated."""

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import ForgetAsked, RestartAsked, StopAsked
from drumbeat.coordinator.core.model import Exit, VerdictCause
from drumbeat.coordinator.core.registry.registry import FORGETS_KNOWN_MAX
from drumbeat.coordinator.core.run.state import CALLS_KNOWN_MAX, Phase
from drumbeat.coordinator.errors import InvalidRequest, UnknownRun, WrongPhase
from drumbeat.coordinator.wire.control import grace_of
from drumbeat.model import Assignment
from drumbeat.v1 import control_pb2, query_pb2
from tests.support.operator import ask
from tests.support.status import status_of
from tests.support.world import RUN, a_running_story, a_story


def test_a_stop_is_an_event_with_who_and_why_and_the_verdict_says_so() -> None:
    story = a_running_story(2)
    assert ask(story, StopAsked, reason="wrong data") == fx.Steered(
        outcome="it ends; its workers are being stopped"
    )
    noted = next(entry for entry in story.state().history if entry.decision == "stop asked")
    assert (noted.reason, noted.caller) == ("wrong data", "op")
    story.obey_all()
    verdict = story.state().verdict
    assert verdict is not None
    assert (verdict.cause, verdict.reason) == (VerdictCause.STOPPED, "stopped by op: wrong data")
    assert verdict.report is None
    desired = story.agents["a"].desired
    assert desired is not None
    assert isinstance(desired.state, Exit)
    kinds = [event.kind for event in status_of(story.state(), story.run(RUN), now=0).history]
    assert kinds[-3:] == [
        query_pb2.RUN_EVENT_KIND_STOP_ASKED,
        query_pb2.RUN_EVENT_KIND_RUN_STOPPING,
        query_pb2.RUN_EVENT_KIND_RUN_STOPPED,
    ]


@pytest.mark.parametrize("kind", [StopAsked, RestartAsked, ForgetAsked])
def test_an_unknown_run_is_named(kind: type[StopAsked | RestartAsked | ForgetAsked]) -> None:
    answer = ask(a_running_story(1), kind, run_id="nope")
    assert isinstance(answer, UnknownRun)
    assert "nope" in str(answer)


def test_a_restart_is_repeated_with_another_id_only_and_never_charged() -> None:
    story = a_running_story(2)
    rounds = []
    for call_id in ("1", "1", "2", "1"):
        ask(story, RestartAsked, call_id=call_id)
        rounds.append(story.state().round_id)
        story.obey_all()
        story.restart()
        for name in ("a", "b"):
            story.back(name)
        story.obey_all()
    assert rounds == [1, 1, 2, 2]
    assert story.state().restarts_used == 0


def test_two_operators_at_once_get_one_restart() -> None:
    story = a_running_story(2)
    ask(story, RestartAsked, call_id="1")
    ask(story, RestartAsked, call_id="2", caller="op2")
    assert story.of(fx.Answer)[0].result == fx.Steered(
        outcome="its round 1 starts just now", is_new=False
    )
    story.obey_all()
    assert story.state().round_id == 1
    assert story.state().phase is Phase.RUNNING


def test_stop_wins_over_restart() -> None:
    story = a_running_story(2)
    ask(story, StopAsked)
    assert isinstance(answer := ask(story, RestartAsked), WrongPhase)
    assert "is about to end: stopped by op" in str(answer)
    assert story.state().phase is Phase.ENDING


def test_a_stop_that_is_journaled_is_carried_out_after_a_restart_of_the_coordinator() -> None:
    story = a_running_story(2)
    ask(story, StopAsked, call_id="1")
    story.restart()
    assert story.state().phase is Phase.ENDING
    assert ask(story, StopAsked, call_id="1") == fx.Steered(
        outcome="it was asked before", is_new=False
    )
    for name in ("a", "b"):
        story.back(name)
    story.obey_all()
    verdict = story.state().verdict
    assert verdict is not None
    assert verdict.cause is VerdictCause.STOPPED


def test_a_run_keeps_the_latest_calls_only() -> None:
    story = a_running_story(1)
    for number in range(CALLS_KNOWN_MAX + 5):
        ask(story, RestartAsked, call_id=str(number))
        story.obey_all()
    assert len(story.state().calls) == CALLS_KNOWN_MAX
    assert story.state().calls[-1] == str(CALLS_KNOWN_MAX + 4)
    desired = story.agents["a"].desired
    assert desired is not None
    assert isinstance(desired.state, Assignment)


def test_only_an_ended_run_is_forgotten_once_its_agents_are_gone() -> None:
    story = a_running_story(1)
    assert "`coordinator stop run` ends it" in str(ask(story, ForgetAsked))
    ask(story, StopAsked)
    story.obey("a")
    assert "still tells its agents" in str(ask(story, ForgetAsked))
    story.break_session("a")
    assert ask(story, ForgetAsked, call_id="f") == fx.Steered(outcome="it is forgotten")
    assert story.of(fx.Forget) == [fx.Forget(run_id=RUN)]
    assert RUN not in story.registry.runs
    again = ask(story, ForgetAsked, call_id="f")
    assert again == fx.Steered(outcome="it is forgotten", is_new=False)
    assert isinstance(ask(story, ForgetAsked, call_id="g"), UnknownRun)
    story.registry.check_invariants()


def test_a_run_that_was_set_aside_is_forgotten_with_all_its_generations() -> None:
    story = a_story(1)
    story.registry.set_aside = dict.fromkeys([RUN, f"{RUN}#2", "another"], "it cannot be read")
    assert ask(story, ForgetAsked) == fx.Steered(outcome="it is forgotten")
    assert story.of(fx.Forget) == [fx.Forget(run_id=key) for key in (RUN, f"{RUN}#2")]
    assert list(story.registry.set_aside) == ["another"]


def test_calls_that_made_runs_forgotten_are_bounded() -> None:
    story = a_running_story(1)
    ask(story, StopAsked)
    story.obey("a")
    story.break_session("a")
    story.registry.forgets = fx.KeepForgets(calls=tuple(map(str, range(FORGETS_KNOWN_MAX))))
    ask(story, ForgetAsked, call_id="f")
    assert len(story.registry.forgets.calls) == FORGETS_KNOWN_MAX
    assert story.registry.forgets.calls[-1] == "f"


@pytest.mark.parametrize("seconds", [-1, 31 * 24 * 3600])
def test_a_grace_that_cannot_be_is_named(seconds: int) -> None:
    request = control_pb2.StopRunRequest()
    assert grace_of(request) is None
    request.grace.FromSeconds(0)
    assert grace_of(request) == 0.0
    request.grace.FromSeconds(seconds)
    with pytest.raises(InvalidRequest, match="grace"):
        grace_of(request)
