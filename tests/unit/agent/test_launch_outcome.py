"""How an agent ended, for the program that launched it."""

from collections.abc import Sequence

from msgspec.structs import replace

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.events import Event, WorkerExited
from drumbeat.agent.core.failure_records import ended_by, interrupted_by
from drumbeat.agent.core.inprocess.worker import Fault
from drumbeat.agent.core.model import Exit
from drumbeat.agent.errors import RunForgotten
from drumbeat.agent.failures.report import FailedWorker, FailureReport
from drumbeat.agent.runtime.exchange import AgentOutcome, outcome_of
from drumbeat.agent.telemetry.facts import AgentFacts
from drumbeat.inprocess import Interruption, InterruptionKind
from tests.support.agents import WORKERS, an_assignment, desired

SUCCEEDED = Exit(is_success=True, reason="all succeeded")
CAUSE = FailedWorker(rank=0, local_rank=0, host="a", pid=1, exit_code=9, message="m")
REPORT = FailureReport(reason="round 0 failed", root_causes=(CAUSE,))
FAILED = Exit(is_success=False, reason="round 0 failed", report=REPORT)


def exited(local_rank: int, round_id: int = 0, exit_code: int = 0) -> WorkerExited:
    return WorkerExited(
        round_id=round_id,
        local_rank=local_rank,
        pid=1,
        exit_code=exit_code,
        is_stopped=False,
        ended_at=0.0,
        error=None,
    )


def saw(facts: AgentFacts, event: Event | None, effects: Sequence[fx.Effect]) -> None:
    facts.saw(event, effects, now=0.0)


def outcome(facts: AgentFacts, finish: fx.Finish) -> AgentOutcome:
    return outcome_of(finish, facts)


def agent() -> AgentFacts:
    return AgentFacts("a", 1, 0.0, WORKERS, _attempt=1)


def recorded(*exits: WorkerExited, verdict: Exit | None = SUCCEEDED) -> AgentFacts:
    """Return the facts after round 0 has started and these ends."""
    facts = agent()
    saw(facts, None, [fx.StartRound(assignment=an_assignment(0))])
    for event in exits:
        saw(facts, event, [])
    if verdict is not None:
        saw(facts, desired(verdict), [])
    return facts


def test_success_names_the_ranks_of_this_host() -> None:
    found = outcome(recorded(exited(0), exited(1)), fx.Finish(exit_code=0))
    assert found == AgentOutcome(
        exit_code=0, reason="all succeeded", is_verdict=True, round_id=0, ranks=(2, 3)
    )


def test_a_host_that_did_not_succeed_itself_has_no_ranks() -> None:
    """It stood by at the end, or left the round before."""
    for seen in (recorded(exited(0)), recorded(exited(0), exited(1, exit_code=1))):
        assert outcome(seen, fx.Finish(exit_code=0)).ranks == ()
    bystander = agent()
    saw(bystander, desired(SUCCEEDED), [])
    assert outcome(bystander, fx.Finish(exit_code=0)).ranks == ()


def test_only_the_last_round_counts() -> None:
    seen = recorded(exited(0), exited(1), verdict=None)
    saw(seen, None, [fx.StartRound(assignment=an_assignment(1))])
    saw(seen, exited(0, round_id=0), [])
    saw(seen, exited(0, round_id=1), [])
    saw(seen, desired(SUCCEEDED), [])
    assert outcome(seen, fx.Finish(exit_code=0)).ranks == ()


def test_a_failed_run_has_its_root_causes() -> None:
    found = outcome(recorded(verdict=FAILED), fx.Finish(exit_code=1, report=REPORT))
    assert found == AgentOutcome(
        exit_code=1, reason="round 0 failed", root_causes=(CAUSE,), is_verdict=True, round_id=0
    )


def test_a_signal_or_an_error_that_came_first_counts() -> None:
    seen = recorded(exited(0), exited(1))
    assert outcome(seen, fx.Finish(exit_code=130)) == AgentOutcome(exit_code=130)
    error = RunForgotten(0, 5)
    assert outcome(seen, fx.Finish(exit_code=1, error=error)) == AgentOutcome(
        exit_code=1, error=error
    )


def test_workers_that_the_others_went_on_without_are_not_missed() -> None:
    seen, round_ = recorded(verdict=None), an_assignment(0)
    healed = Interruption(local_rank=1, kind=InterruptionKind.EXCEPTION)
    fault = Fault(interruption=healed, iteration=0, at=0.0)
    saw(seen, None, [fx.WriteFailure(failure=interrupted_by(round_, fault))])
    saw(seen, exited(1), [])
    left = Interruption(local_rank=0, kind=InterruptionKind.TERMINATED)
    fault = Fault(interruption=left, iteration=1, at=0.0)
    saw(seen, exited(0), [fx.WriteFailure(failure=ended_by(round_, exited(0), fault))])
    saw(seen, desired(SUCCEEDED), [])
    assert outcome(seen, fx.Finish(exit_code=0)).ranks == (3,)


def test_the_files_of_failed_workers_are_those_of_the_last_round() -> None:
    seen = recorded(replace(exited(0, exit_code=1), error_file="/old"), verdict=None)
    saw(seen, None, [fx.StartRound(assignment=an_assignment(1))])
    saw(seen, replace(exited(1, round_id=1, exit_code=1), error_file="/new"), [])
    saw(seen, replace(exited(0, round_id=0, exit_code=1), error_file="/late"), [])
    saw(seen, desired(FAILED), [])
    assert outcome(seen, fx.Finish(exit_code=1)).error_files == {3: "/new"}
