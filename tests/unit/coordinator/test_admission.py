"""Whether an agent may take part in a run."""

from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import SessionOpened
from drumbeat.coordinator.core.membership.admission import (
    ROUNDS_AHEAD_MAX,
    differences,
    refusal,
    spec_error,
)
from drumbeat.coordinator.core.model import AgentIdentity, Beat, RunSpec, Verdict, VerdictCause
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import AgentAdmitted, RunCreated, RunEnded
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import (
    Difference,
    InvalidRequest,
    LimitReached,
    RunClosed,
    SpecMismatch,
)
from drumbeat.model import DURATION_MAX_S, GroupState
from drumbeat.restart_rules import RULES_MAX, WINDOWED_RESTARTS_MAX
from drumbeat.v1 import common_pb2
from tests.support.world import a_running_story, a_spec, a_story, an_agent

SPEC = a_spec(1, 4)


def hello(agent: AgentIdentity, spec: RunSpec = SPEC, round_id: int | None = None) -> SessionOpened:
    beat = Beat(state=GroupState.IDLE, round_id=round_id)
    return SessionOpened(
        run_id="run",
        spec=spec,
        session_id="s",
        agent=agent,
        beat=beat,
    )


def a_state(*, has_ended: bool = False) -> RunState:
    state = RunState.created(RunCreated(run_id="run", spec=SPEC))
    state.apply(AgentAdmitted(agent=an_agent("a")))
    if has_ended:
        verdict = Verdict(
            cause=VerdictCause.WORKER_FAILED, reason="too bad", restart_count=0, round_id=None
        )
        state.apply(RunEnded(verdict=verdict))
    return state


def test_strangers_and_members_are_let_in() -> None:
    assert refusal(a_state(), hello(an_agent("b")), Policy(agents_max=9), workers=1) is None
    assert refusal(a_state(), hello(an_agent("a")), Policy(agents_max=1), workers=1) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"agents_min": 4, "agents_max": 4},
        {"agents_min": Policy().agents_max, "agents_max": Policy().agents_max},
        {"join_timeout_s": Policy().join_timeout_max_s},
        {"last_call_s": DURATION_MAX_S},
        {"master_port": 0},
        {"master_port": 65535},
        {"straggler_factor": 100.0, "straggler_steps": 1},
        {"restart_window_s": 0.1, "restarts_max": WINDOWED_RESTARTS_MAX},
        {"restart_delay_max_s": 0.0, "restarts_max": WINDOWED_RESTARTS_MAX + 1},
        {"restart_rules": ("oom:fail",) * RULES_MAX},
    ],
    ids=str,
)
def test_a_spec_may_be_at_its_limits(fields: dict[str, Any]) -> None:
    assert spec_error(replace(SPEC, **fields), Policy()) is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"restart_window_s": 0.0}, "spec.restart_window"),
        (
            {"restart_window_s": 60.0, "restarts_max": WINDOWED_RESTARTS_MAX + 1},
            "spec.restarts_max",
        ),
        ({"restart_delay_max_s": -1.0}, "spec.restart_delay_max"),
        ({"restart_rules": ("oom:fail", "oom:stop")}, "spec.restart_rules"),
        ({"restart_rules": ("oom:fail",) * (RULES_MAX + 1)}, "spec.restart_rules"),
    ],
    ids=str,
)
def test_restarts_that_are_impossible_are_refused(fields: dict[str, Any], field: str) -> None:
    error = spec_error(replace(SPEC, **fields), Policy())
    assert error is not None
    assert error.field == field


def test_agents_with_other_rules_are_told_which_the_run_has() -> None:
    theirs = replace(SPEC, restart_rules=("oom:fail",))
    (difference,) = differences(theirs=theirs, ours=SPEC)
    assert str(difference) == "--restart-rule: the run has 'none', not 'oom:fail'"


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (VerdictCause.SUCCEEDED, 0),
        (VerdictCause.STOPPED, 4),
        (VerdictCause.NO_PROGRESS, 5),
        (VerdictCause.INTERNAL, 1),
    ],
)
def test_an_agent_that_comes_late_ends_as_the_run_did(cause: VerdictCause, code: int) -> None:
    state = a_state()
    verdict = Verdict(cause=cause, reason="so it is", restart_count=0, round_id=None)
    state.apply(RunEnded(verdict=verdict))
    error = refusal(state, hello(an_agent("b")), Policy(agents_max=9), workers=1)
    assert isinstance(error, RunClosed)
    assert error.exit_code == code


def test_a_member_gets_the_verdict_of_an_ended_run_and_a_stranger_is_refused() -> None:
    ended = a_state(has_ended=True)
    assert refusal(ended, hello(an_agent("a")), Policy(agents_max=9), workers=1) is None
    error = refusal(ended, hello(an_agent("b")), Policy(agents_max=9), workers=1)
    assert isinstance(error, RunClosed)
    assert str(error).startswith("run 'run' has ended: it failed: too bad; started again")


def test_one_incarnation_is_one_process() -> None:
    error = refusal(
        a_state(), hello(an_agent("a", local_world_size=8)), Policy(agents_max=9), workers=1
    )
    assert isinstance(error, InvalidRequest)


def test_a_full_table_refuses_the_next() -> None:
    error = refusal(a_state(), hello(an_agent("b")), Policy(agents_max=1), workers=1)
    assert isinstance(error, LimitReached)
    assert error.args == ("agents_per_run_max", 1)


def test_a_newcomer_may_have_held_a_round_far_above_what_is_known_but_not_any() -> None:
    """Far, because a journal may have been lost; one message must not use the numbers up."""
    state = a_state()
    assert (
        refusal(
            state,
            hello(an_agent("b"), round_id=ROUNDS_AHEAD_MAX - 1),
            Policy(agents_max=9),
            workers=1,
        )
        is None
    )
    for round_id in (ROUNDS_AHEAD_MAX, 2**53):
        error = refusal(
            state, hello(an_agent("b"), round_id=round_id), Policy(agents_max=9), workers=1
        )
        assert isinstance(error, InvalidRequest)
        assert str(error) == (
            f"fence.round_id: {round_id} is given, allowed is less than {ROUNDS_AHEAD_MAX}"
        )


def test_an_absurd_round_neither_founds_a_run_nor_harms_one() -> None:
    story = a_story(1)
    story.join("a")
    for name, run_id in (("b", "run"), ("c", "other")):
        effects = story.registry.handle(
            replace(
                hello(an_agent(name), story.spec, round_id=2**53),
                run_id=run_id,
                spec=story.spec,
            ),
            now=story.now,
        )
        assert [type(effect) for effect in effects] == [fx.Reject]
    assert list(story.registry.runs) == ["run"]
    assert story.state().next_round_id == 1


def test_agents_of_a_lost_journal_meet_above_all_they_held() -> None:
    story = a_running_story(2)
    for agent in story.agents.values():
        agent.round_id = 70_000 + len(agent.name)
    story.journal.clear()
    story.restart()
    for name in ("a", "b"):
        story.back(name)
    assert story.state().round_id == 70_002


def test_a_mismatch_shows_both_values_of_every_field_that_differs() -> None:
    theirs = replace(SPEC, agents_max=8, exit_barrier_timeout_s=1.5)
    error = refusal(a_state(), hello(an_agent("b"), theirs), Policy(agents_max=9), workers=1)
    assert isinstance(error, SpecMismatch)
    assert error.differences == (
        Difference(field="agents_max", theirs="8", ours="4"),
        Difference(field="exit_barrier_timeout", theirs="1.5", ours="none"),
    )


def test_a_mismatch_names_the_option_that_sets_the_field() -> None:
    theirs = replace(SPEC, straggler_factor=1.5, straggler_steps=20)
    told = [str(each) for each in differences(theirs=theirs, ours=SPEC)]
    assert told == [
        "--straggler-report (factor): the run has '0', not '1.5'",
        "--straggler-report (steps): the run has '0', not '20'",
    ]


@pytest.mark.parametrize("name", RunSpec.__struct_fields__)
def test_no_field_of_the_spec_is_left_out(name: str) -> None:
    ours = a_spec(1, 4)
    other: Any = "x" if isinstance(getattr(ours, name), str) else 77
    (found,) = differences(theirs=replace(ours, **{name: other}), ours=ours)
    assert found.field == name.removesuffix("_s")
    assert found.field in common_pb2.RunSpec.DESCRIPTOR.fields_by_name


def test_an_agent_whose_workers_have_no_room_is_refused_until_others_leave() -> None:
    story = a_story(2, 4, policy=Policy(workers_max=5))
    story.join("a", local_world_size=4)
    [refused] = [e for e in story.join("b", local_world_size=2) if isinstance(e, fx.Reject)]
    assert str(refused.error) == str(LimitReached("workers_per_run_max", 5))
    assert not [e for e in story.join("c", local_world_size=1) if isinstance(e, fx.Reject)]
    story.leave("a")
    assert not [e for e in story.join("b", local_world_size=2) if isinstance(e, fx.Reject)]


TRAIN = {"program": "train.py", "arguments_digest": "lr=1"}


@pytest.mark.parametrize(
    ("size", "fields", "problem"),
    [
        (1, TRAIN, ""),
        (1, TRAIN | {"program": "eval.py"}, "program: the run has 'train.py', not 'eval.py'"),
        (1, TRAIN | {"program": "eval.py", "role": "judge"}, ""),
        (1, TRAIN | {"arguments_digest": "lr=2"}, ""),
        (2, TRAIN | {"arguments_digest": "lr=2"}, "arguments: the run has those of b, not these"),
        (3, TRAIN | {"arguments_digest": "rank=2"}, ""),
        (2, {}, ""),
    ],
    ids=[
        "the same",
        "another program",
        "another role",
        "arguments of its own",
        "arguments of its own, and it could only stand by",
        "each has arguments of its own",
        "from an earlier version",
    ],
)
def test_agents_of_a_role_run_the_same_program(
    size: int, fields: dict[str, str], problem: str
) -> None:
    """And one that only stands by the same command: it ends with the success of the others."""
    story = a_story(1, 2)
    for name, arguments in [("a", "lr=1"), ("b", "rank=1" if size > 2 else "lr=1")][:size]:
        story.join(name, **TRAIN | {"arguments_digest": arguments})
    story.join("c", **fields)
    errors = [str(effect.error) for effect in story.of(fx.Reject)]
    expected = f"run 'run' was started with other settings: {problem}"
    assert errors == ([expected] if problem else [])


def test_a_member_of_an_earlier_journal_comes_back_with_its_program() -> None:
    story = a_running_story(1)
    story.agents["a"].identity = replace(story.agents["a"].identity, program="train.py")
    story.break_session("a")
    story.back("a")
    assert story.of(fx.Reject) == []
