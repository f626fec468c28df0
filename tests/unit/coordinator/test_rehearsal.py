"""A rehearsal: which faults come when, what they cost, and what is known of them afterwards."""

from typing import Any

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import RehearsalAsked, StopAsked
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.rehearsal.model import Fault, Outcome, Rehearsal, RehearsalPlan
from drumbeat.coordinator.core.run.records import RoundEnd, RoundEnded
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.coordinator.errors import WrongPhase
from drumbeat.coordinator.observe.goodput.stretches import Cause
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.coordinator.wire.control import rehearsal_message
from drumbeat.model import FaultKind, FaultOrder, FaultReport, GroupState
from tests.support.operator import ask
from tests.support.world import RUN, Story, a_story

NAMES = ("a", "b", "c")
POLICY = Policy(checkpoint_grace_s=0.0, allows_rehearsals=True)


def a_plan(*kinds: FaultKind, **fields: Any) -> RehearsalPlan:
    given: dict[str, Any] = {"every_s": 600.0, "at_most": 1, "pause_s": 30.0, "seed": 1}
    return RehearsalPlan(kinds=kinds or (FaultKind.WORKER,), **(given | fields))


def training(
    *, policy: Policy = POLICY, able: tuple[str, ...] = NAMES, agents_min: int = 2, **fields: Any
) -> Story:
    """Return a story whose agents a, b and c train, two workers each, at step 10."""
    story = a_story(agents_min, 3, policy=policy, **fields)
    for name in NAMES:
        story.join(name, can_rehearse=name in able, local_world_size=2)
    if story.state().round is None:
        story.advance(story.spec.last_call_s)
    story.obey_all()
    step_all(story, 10)
    return story


def step_all(story: Story, step: int, loss: float | None = None) -> None:
    story.now += 0.5
    for name, agent in story.agents.items():
        if agent.session_id is not None and agent.state is GroupState.RUNNING:
            step_one(story, name, step, loss)


def step_one(story: Story, name: str, step: int, loss: float | None = None) -> None:
    workers = tuple(
        WorkerProgress(local_rank=rank, step=step, heartbeat_age_s=0.0, loss=loss)
        for rank in range(2)
    )
    story.beat(name, workers=workers)
    story.agents[name].workers = ()  # its later beats tell of no other step


def rehearse(story: Story, plan: RehearsalPlan | None, **fields: Any) -> Any:
    return ask(story, RehearsalAsked, plan=plan, **fields)


def ordered(story: Story) -> tuple[str, FaultOrder]:
    """Return who was told of a fault by the latest event."""
    (effect,) = story.of(fx.InjectFault)
    return story.sessions[effect.session_id], effect.order


def begin(story: Story, plan: RehearsalPlan) -> tuple[str, FaultOrder]:
    assert rehearse(story, plan).is_new
    return ordered(story)


def answer(story: Story, name: str, number: int, refusal: str = "") -> None:
    story.agents[name].more["fault"] = FaultReport(number=number, refusal=refusal)
    story.beat(name)


def rehearsal(story: Story) -> Rehearsal:
    found = story.state().rehearsal
    assert found is not None
    return found


def only(story: Story) -> Fault:
    (fault,) = rehearsal(story).faults
    return fault


def events(story: Story) -> list[tuple[str, str]]:
    kinds = ("fault injected", "fault over", "rehearsal ended")
    return [(e.decision, e.reason) for e in story.state().history if e.decision in kinds]


def ends(story: Story) -> list[RoundEnd]:
    return [record.cause for record in story.records(RoundEnded)]


def kill_worker(story: Story) -> str:
    """Have a worker killed, and the next round begin; return the agent."""
    name, order = begin(story, a_plan(is_first_now=True))
    answer(story, name, order.number)
    story.now += 0.2
    story.fail(name)
    story.obey_all()  # the others stop their workers
    story.obey_all()
    return name


def test_a_killed_worker_costs_no_restart_and_the_run_recovers() -> None:
    story = training()
    kill_worker(story)
    state = story.state()
    assert ends(story) == [RoundEnd.REHEARSED]
    assert (state.restart_count, state.restarts_used, state.round_id) == (0, 0, 1)
    assert only(story).detected_s == pytest.approx(0.2)
    assert only(story).outcome is Outcome.OPEN, "no rank has made a step yet"
    story.now += 2.0
    step_all(story, 4)
    story.advance(1.0)
    fault = only(story)
    assert fault.outcome is Outcome.RECOVERED
    assert fault.steps_repeated == 6
    assert fault.trained_s == pytest.approx(2.7)
    assert [what for what, _ in events(story)] == [
        "fault injected",
        "fault over",
        "rehearsal ended",
    ]
    assert events(story)[1][1].endswith("killed; trains again after 2.7 s; 6 steps repeated")
    assert "recovered from 1 of 1 fault" in events(story)[2][1]
    assert "rehearsed" in story.records(RoundEnded)[0].reason


def test_a_rehearsed_failure_is_no_failure_of_health_goodput_or_host() -> None:
    story = training(exclude_after=1)
    kill_worker(story)
    story.advance(5.0)
    observed = story.state().observed
    assert (observed.failures.groups, observed.lost_count) == ([], 0)
    assert observed.ledger.failures == 0
    assert observed.ledger.cause is Cause.REHEARSED
    assert not observed.ledger.hosts_lost
    assert not story.registry.drains.kept, "no host is excluded"


def test_a_failure_before_the_first_fault_is_charged() -> None:
    story = training(restarts_max=3)
    rehearse(story, a_plan())
    story.fail("b")
    assert ends(story) == [RoundEnd.WORKER_FAILED]
    assert story.state().restarts_used == 1


def test_a_failure_that_happened_before_the_fault_is_charged() -> None:
    story = training(restarts_max=3)
    name, _ = begin(story, a_plan(is_first_now=True))
    other = next(other for other in NAMES if other != name)
    story.now += 1.0
    story.record(other, age_s=5.0, rank=0)
    story.fail(other)
    assert ends(story) == [RoundEnd.WORKER_FAILED]


def test_a_run_that_fails_by_itself_after_a_fault_did_not_recover() -> None:
    story = training()
    kill_worker(story)
    for _ in range(3):
        story.fail("a")
        story.obey_all()
        story.obey_all()
    story.advance(60.0)
    assert story.state().phase is Phase.ENDED
    assert only(story).outcome is Outcome.RUN_FAILED
    assert rehearsal(story).is_over
    assert "did not recover from fault 1" in rehearsal(story).verdict()


def test_an_agent_is_killed_if_enough_are_left() -> None:
    story = training()
    name, order = begin(story, a_plan(FaultKind.AGENT, is_first_now=True))
    assert order.kind is FaultKind.AGENT
    story.break_session(name)
    story.advance(1.0)
    story.obey_all()
    story.advance(30.0)
    step_all(story, 12)
    story.advance(2.0)
    assert only(story).outcome is Outcome.RECOVERED
    assert ends(story) == [RoundEnd.REHEARSED]
    state = story.state()
    assert (state.observed.lost_count, state.blamed) == (0, {})
    assert any("rehearsed: its connection broke" in entry.reason for entry in state.history)


def test_no_agent_is_killed_that_the_run_needs() -> None:
    story = training(agents_min=3)
    outcome = rehearse(story, a_plan(FaultKind.AGENT, is_first_now=True)).outcome
    assert "no agent is killed now: 2 of 3 needed agents would be left" in outcome
    assert story.of(fx.InjectFault) == []
    assert only(story).outcome is Outcome.NOT_INJECTED
    assert rehearsal(story).is_over
    assert "no fault was injected, 1 could not be" in events(story)[-1][1]


def test_a_pause_that_nothing_notices_is_over_once_the_host_goes_on() -> None:
    story = training()
    name, order = begin(story, a_plan(FaultKind.HOST_PAUSE, is_first_now=True))
    assert order.pause_s == 30.0
    answer(story, name, order.number)
    story.advance(31.0)
    assert only(story).outcome is Outcome.OPEN, "its workers have said nothing since"
    step_one(story, name, 11)
    fault = only(story)
    assert (fault.outcome, fault.detected_s) == (Outcome.RECOVERED, None)
    assert "paused for 30 s; trains again after 31 s" in events(story)[1][1]
    assert ends(story) == []


def test_a_failure_anywhere_during_a_pause_is_rehearsed() -> None:
    story = training()
    name, order = begin(story, a_plan(FaultKind.HOST_PAUSE, is_first_now=True))
    answer(story, name, order.number)
    story.now += 20.0
    story.fail(next(other for other in NAMES if other != name))
    assert ends(story) == [RoundEnd.REHEARSED]


def test_the_next_fault_waits_until_the_run_trains_again() -> None:
    story = training()
    name, order = begin(story, a_plan(every_s=10.0, at_most=2, is_first_now=True))
    answer(story, name, order.number)
    story.fail(name)
    story.advance(60.0)
    assert len(rehearsal(story).faults) == 1, "the round has not begun"
    story.obey_all()
    story.obey_all()
    story.advance(1.0)
    assert len(rehearsal(story).faults) == 1, "no rank has made a step"
    step_all(story, 11)
    story.advance(1.0)
    assert [fault.order.number for fault in rehearsal(story).faults] == [1, 2]


def test_faults_may_overlap_if_that_is_asked_for() -> None:
    story = training()
    plan = a_plan(FaultKind.HOST_PAUSE, every_s=5.0, at_most=2, is_first_now=True, may_overlap=True)
    begin(story, plan)
    story.advance(8.0)
    first, second = rehearsal(story).faults
    assert first.incarnation != second.incarnation
    assert len(rehearsal(story).open_faults) == 2


def test_a_fault_is_told_again_to_a_new_session_until_it_is_answered() -> None:
    story = training()
    name, order = begin(story, a_plan(is_first_now=True))
    story.beat(name)
    assert story.of(fx.InjectFault) == []
    story.back(name)
    assert ordered(story) == (name, order)
    answer(story, name, order.number)
    story.back(name)
    assert story.of(fx.InjectFault) == []


def test_a_refused_fault_is_reported_and_counts() -> None:
    story = training()
    name, order = begin(story, a_plan(is_first_now=True))
    answer(story, name, order.number, "worker 1 of this host has ended")
    assert only(story).outcome is Outcome.NOT_INJECTED
    assert "not killed: worker 1 of this host has ended" in events(story)[1][1]
    assert rehearsal(story).is_over


def test_an_agent_that_is_lost_before_it_answers_was_not_reached() -> None:
    story = training()
    name, _ = begin(story, a_plan(is_first_now=True))
    story.break_session(name)
    story.advance(2.0)
    assert "its agent was lost before it answered" in events(story)[1][1]
    assert ends(story) == [RoundEnd.AGENT_LOST]


def test_a_rehearsal_goes_on_after_a_restart_of_the_coordinator() -> None:
    story = training()
    name, order = begin(story, a_plan(every_s=100.0, at_most=2, is_first_now=True))
    story.restart()
    for each in NAMES:
        story.back(each)
    assert len(rehearsal(story).faults) == 1
    answer(story, name, order.number)
    story.fail(name)
    assert ends(story) == [RoundEnd.REHEARSED]
    story.obey_all()
    story.obey_all()
    step_all(story, 5)
    story.advance(200.0)
    assert len(rehearsal(story).faults) == 2


def test_the_seed_decides_everything() -> None:
    kinds = tuple(kind for kind in FaultKind if kind is not FaultKind.OTHER)
    draws = []
    for _ in range(2):
        plan = a_plan(*kinds, seed=7)
        draws.append(
            [
                (plan.choose(n, "kind", kinds), plan.choose(n, "host", NAMES), plan.interval_s(n))
                for n in range(1, 40)
            ]
        )
    assert draws[0] == draws[1]
    assert {kind for kind, *_ in draws[0]} == set(kinds)
    assert {name for _, name, _ in draws[0]} == set(NAMES)
    assert all(300.0 <= interval <= 900.0 for *_, interval in draws[0])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"policy": Policy()}, "coordinator serve --allow-rehearsals"),
        ({"able": ()}, "no agent that can inject faults"),
    ],
)
def test_who_can_not_rehearse_is_told_why(fields: dict[str, Any], why: str) -> None:
    refused = rehearse(training(**fields), a_plan())
    assert isinstance(refused, WrongPhase)
    assert why in str(refused)


def test_one_rehearsal_at_a_time_and_none_of_a_run_that_ends() -> None:
    story = training()
    rehearse(story, a_plan())
    assert "--stop` ends that" in str(rehearse(story, a_plan()))
    ask(story, StopAsked)
    story.obey_all()
    assert rehearsal(story).is_over
    assert "ends or has ended" in str(rehearse(story, a_plan()))


def test_an_end_that_is_asked_for_lets_open_faults_be_seen_to_their_end() -> None:
    story = training()
    name, order = begin(story, a_plan(at_most=5, is_first_now=True))
    assert rehearse(story, None).is_new
    assert not rehearse(story, None).is_new
    assert not rehearsal(story).is_over
    answer(story, name, order.number)
    story.fail(name)
    story.obey_all()
    story.obey_all()
    step_all(story, 11)
    story.advance(1.0)
    assert rehearsal(story).is_over
    assert only(story).outcome is Outcome.RECOVERED


def test_a_repeated_request_begins_nothing_anew() -> None:
    story = training()
    assert rehearse(story, a_plan(), call_id="1").is_new
    assert not rehearse(story, a_plan(), call_id="1").is_new


def test_an_older_agent_is_never_chosen() -> None:
    story = training(able=("b",))
    for seed in range(8):
        name, order = begin(story, a_plan(is_first_now=True, seed=seed))
        assert name == "b"
        answer(story, name, order.number, "not now")


@pytest.mark.parametrize(("first", "before"), [(14, 4.0), (15, 4.0), (12, 5.0), (20, 3.0)])
def test_a_loss_that_training_tells_is_compared_at_the_same_step(first: int, before: float) -> None:
    story = training()
    for step, loss in ((12, 5.0), (14, 4.0), (16, 3.0)):
        step_all(story, step, loss)
    kill_worker(story)
    step_all(story, first, 4.5)
    step_all(story, first + 1, 2.5)
    story.advance(1.0)
    assert (only(story).loss_before, only(story).loss_after) == (before, 4.5)
    (fault,) = rehearsal_message(rehearsal(story), now=story.now).faults
    assert (fault.loss_before, fault.loss_after) == (before, 4.5)
    assert fault.reason.endswith(f"repeated; loss {before:g} before, 4.5 after")


@pytest.mark.parametrize("told", [(None, None), (4.0, None), (None, 4.0), (float("nan"), 4.0)])
def test_a_loss_that_is_not_told_before_and_after_is_not_compared(
    told: tuple[float | None, float | None],
) -> None:
    story = training()
    step_all(story, 12, told[0])
    kill_worker(story)
    step_all(story, 12, told[1])
    story.advance(1.0)
    assert only(story).outcome is Outcome.RECOVERED
    assert only(story).loss_after is None
    (fault,) = rehearsal_message(rehearsal(story), now=story.now).faults
    assert not fault.HasField("loss_before")
    assert "loss" not in fault.reason


def test_a_report_has_times_and_a_verdict() -> None:
    story = training()
    kill_worker(story)
    story.now += 2.0
    step_all(story, 4)
    story.advance(1.0)
    report = rehearsal_message(rehearsal(story), now=story.now)
    assert (report.is_running, report.at_most, report.steps_repeated) == (False, 1, 6)
    assert report.trained_median.ToMilliseconds() == report.trained_worst.ToMilliseconds() == 2700
    assert "recovered from 1 of 1 fault and trained after 2.7 s (median)" in report.verdict
    (fault,) = report.faults
    assert (fault.number, fault.HasField("rank"), fault.steps_repeated) == (1, True, 6)
    assert RUN in story.registry.runs
