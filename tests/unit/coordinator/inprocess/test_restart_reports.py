"""What is charged, reported and kept of a run whose workers restart in process."""

import msgspec
import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.inprocess.records import (
    BEGAN,
    COMPLETED,
    INTERRUPTED,
    InprocessSpec,
    IterationBegan,
)
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import RoundEnd, RoundEnded
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.inprocess import InterruptionKind
from drumbeat.model import GroupState, Standby
from tests.support.inprocess.runs import an_iterating_story, enter_all, go_on
from tests.support.journal import fold
from tests.support.status import RunStatus, kind, status_of
from tests.support.world import RUN, Story, a_running_story


def message(story: Story) -> RunStatus:
    return status_of(story.run().state, story.run(), now=story.now)


def test_a_round_that_cannot_go_on_in_process_is_charged_and_told_in_one_view() -> None:
    story = an_iterating_story(2, restarts_max=1)
    story.interrupt("a")
    go_on(story)
    for agent in story.agents.values():
        agent.iterates().spec = InprocessSpec(world_size_min=2)
    story.complete("a")
    story.complete("b")
    story.obey_all()
    enter_all(story)
    story.terminate("b")
    story.obey_all()
    story.enter("a")
    (ended,) = story.records(RoundEnded)
    assert (ended.cause, story.state().restart_count) == (RoundEnd.WORKER_FAILED, 1)
    assert ended.reason.endswith(
        "1 worker left, at least 2 must take part; restart 1 of 1; 1 restart in process"
    )
    story.obey_all()
    story.fail("a")
    story.beat("b", GroupState.IDLE, workers_alive=0)
    story.advance(60)
    verdict = story.verdict("a")
    assert verdict.reason == (
        "round 1 failed: a worker on a; restarts: 1 of 1 used; 1 restart in process"
    )
    assert message(story).iterations_restarted == 1


def test_the_cause_of_a_failed_round_is_of_its_last_iteration() -> None:
    story = an_iterating_story(2)
    story.interrupt("a", message="healed")
    _record(story, "a", iteration=0, message="healed")
    go_on(story)
    story.advance(5)
    story.terminate("b", message="too much")
    _record(story, "b", iteration=1, message="too much")
    story.agents["a"].iterates().spec = InprocessSpec(world_size_min=2)
    story.obey_all()
    story.enter("a")
    story.obey_all()
    story.advance(60)
    report = story.verdict("a").report
    assert report is not None
    assert [cause.message for cause in report.root_causes] == ["too much"]
    assert report.victims == ()


def _record(story: Story, name: str, *, iteration: int, message: str) -> None:
    kind = InterruptionKind.EXCEPTION if message == "healed" else InterruptionKind.TERMINATED
    story.record(name, interruption=kind, iteration=iteration, message=message, exit_code=0)


def test_people_see_the_iteration_and_what_was_decided() -> None:
    story = an_iterating_story(2)
    story.interrupt("b")
    go_on(story)
    shown = message(story)
    assert (shown.HasField("iteration"), shown.iteration, shown.iterations_restarted) == (
        True,
        1,
        1,
    )
    found = [kind(event) for event in shown.history if kind(event).startswith("iteration")]
    assert found == [BEGAN, INTERRUPTED, BEGAN]
    story.complete("a")
    story.complete("b")
    assert [kind(event) for event in message(story).history][-1] == COMPLETED


def test_calls_that_nothing_interrupts_are_told_but_not_kept() -> None:
    story = an_iterating_story(2)
    for _ in range(3):
        story.complete("a")
        story.complete("b")
        go_on(story)
    assert len(story.records(IterationBegan)) == 4
    kept = [e for e in story.state().history if e.decision.startswith("iteration")]
    assert [e.reason for e in kept] == [
        "iteration 0, called by 2 workers; 2 hosts entered iteration 0"
    ]


def test_many_iterations_leave_room_in_the_history_for_the_rest() -> None:
    policy = Policy(history_max=10)
    story = an_iterating_story(2, policy=policy)
    for _ in range(20):
        story.interrupt("b")
        go_on(story)
    decisions = [entry.decision for entry in story.state().history]
    assert decisions.count("agent admitted") == 2
    assert sum(decision in {BEGAN, INTERRUPTED} for decision in decisions) == 5
    assert story.state().iterations_restarted == 20


def test_restarts_in_process_are_counted_over_all_rounds() -> None:
    story = an_iterating_story(2, restarts_max=3)
    for _ in range(2):
        story.interrupt("b")
        go_on(story)
        story.fail("a")
        story.obey_all()
        enter_all(story)
    assert (story.state().restart_count, story.state().iterations_restarted) == (2, 2)


def test_a_snapshot_amid_an_iteration_is_read_as_it_was_written() -> None:
    story = an_iterating_story(3)
    story.leave("c")
    state = story.state()
    again = msgspec.json.decode(msgspec.json.encode(state), type=RunState)
    assert again == state == fold(story.journal)[RUN]
    go_on(story)
    assert again != story.state()


def test_an_iteration_without_a_round_is_no_journal_of_ours() -> None:
    story = a_running_story(1)
    story.succeed("a")
    record = IterationBegan(
        round_id=0, iteration=0, active_world_size=1, master_addr="10.a", master_port=1
    )
    with pytest.raises(ValueError, match="no round runs"):
        story.state().apply(record)


def test_people_hear_what_a_long_wait_is_for_and_not_too_often() -> None:
    story = a_running_story(2)
    story.join("c")
    story.enter("a")
    heard: list[tuple[float, str]] = []
    standby: list[str] = []

    def watch(effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Decided(decision="iteration waiting", reason=reason):
                    heard.append((story.now, reason))
                case fx.Direct() as desired if isinstance(desired.state, Standby):
                    standby.append(desired.state.reason)
                case _:
                    pass

    story.watch, begun = watch, story.now
    story.advance(20)
    assert [at - begun for at, _ in heard] == [2.0, 4.0, 8.0, 16.0]
    assert heard[-1][1] == "1 of 2 hosts entered iteration 0, waiting for b, 104 s left"
    assert standby[-1].endswith(heard[-1][1])
    assert [e for e in story.state().history if e.decision == "iteration waiting"] == []
    story.enter("b")
    heard.clear()
    story.advance(20)
    assert heard == []
