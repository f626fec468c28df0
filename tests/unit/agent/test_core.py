"""Stories of one agent: events in, the whole list of effects out."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.agent import SUPERVISOR_DEATHS_MAX
from drumbeat.agent.core.events import (
    DeadlineReached,
    PortReserved,
    SessionLost,
    SessionWelcomed,
    SignalReceived,
    SupervisorDied,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStartFailed,
)
from drumbeat.agent.core.model import Beat, Exit, GroupState, Pace, Standby, Stop
from drumbeat.agent.errors import (
    AccessRefused,
    CoordinatorLost,
    CoordinatorUnreachable,
    ProcessesStuck,
    RunForgotten,
    RunRefused,
    SupervisorLost,
)
from drumbeat.agent.workers.failures.records import ended_by, not_started
from drumbeat.agent.workers.failures.report import FailureReport
from tests.support.agents import (
    CONFIG,
    NOW,
    PACE,
    PORT,
    AgentStory,
    a_beat,
    an_assignment,
    desired,
    of,
    without,
)

S = GroupState
TERM, INT, HUP = 15, 2, 1
SUCCEEDED = Exit(is_success=True, reason="all workers succeeded")
REPORT = FailureReport(reason="round 0 failed")
FAILED = Exit(is_success=False, reason="round 0 failed", report=REPORT)
LOST = SessionLost(attempt=1, reason="connection reset")
STALE = SessionLost(attempt=1, reason="lease over", is_stale=True)


def an_exit(
    local_rank: int, code: int, *, round_id: int = 0, stopped: bool = False
) -> WorkerExited:
    return WorkerExited(
        round_id=round_id,
        local_rank=local_rank,
        pid=70 + local_rank,
        exit_code=code,
        is_stopped=stopped,
        ended_at=99.0,
    )


def a_stop(round_id: int = 0, signum: int = TERM) -> fx.StopWorkers:
    return fx.StopWorkers(round_id=round_id, signum=signum, timeout_s=CONFIG.shutdown_timeout)


def a_record(event: WorkerExited, sequence: int = 1) -> fx.WriteFailure:
    assignment = an_assignment(event.round_id)
    return fx.WriteFailure(failure=replace(ended_by(assignment, event), sequence=sequence))


def beat(state: S = S.IDLE, round_id: int | None = None, **more: Any) -> fx.SendBeat:
    return fx.SendBeat(beat=a_beat(state, round_id, **more))


def an_opening(attempt: int, delay_max_s: float, beat: Beat) -> fx.OpenSession:
    return fx.OpenSession(attempt=attempt, delay_max_s=delay_max_s, beat=beat, address="head:1")


# The good course.


def test_it_starts_with_a_port_and_a_session() -> None:
    story = AgentStory()
    assert story.first == [
        fx.ReservePort(),
        an_opening(1, 0.0, a_beat(master_port=0)),
    ]
    assert story.feed(PortReserved(port=PORT)) == []
    assert story.feed(SessionWelcomed(attempt=1, pace=PACE)) == [beat()]


def test_it_stands_by_when_it_is_told_to() -> None:
    story = AgentStory().connected()
    waiting = desired(Standby(reason="1 of 2 agents", time_left_s=9.0))
    assert story.feed(waiting) == []
    assert story.core.desired == waiting.state


def test_a_round_from_its_assignment_to_success() -> None:
    story = AgentStory().connected()
    assert story.feed(desired(an_assignment())) == [
        fx.StartRound(assignment=an_assignment()),
        beat(S.STARTING, 0, workers_alive=2),
    ]
    assert story.feed(WorkersStarted(round_id=0)) == [beat(S.RUNNING, 0, workers_alive=2)]
    assert story.feed(an_exit(1, 0)) == [beat(S.RUNNING, 0, workers_alive=1, workers_done=1)]
    assert story.feed(an_exit(0, 0)) == [beat(S.SUCCEEDED, 0, workers_done=2)]
    assert story.feed(desired(SUCCEEDED)) == [
        a_stop(),
        beat(S.STOPPING, 0, workers_alive=1, workers_done=2),
    ]
    assert story.feed(WorkersStopped(round_id=0)) == [fx.Finish(exit_code=0)]
    assert story.feed(SignalReceived(signum=TERM), LOST) == []


def test_a_repeated_assignment_changes_nothing() -> None:
    assert AgentStory().running().feed(desired(an_assignment())) == []


# Failures.


def test_a_failure_is_written_before_the_beat_that_counts_it_and_stops_the_others() -> None:
    story = AgentStory().running()
    bad = an_exit(1, -11)
    why = a_record(bad).failure
    assert story.feed(bad) == [
        a_record(bad),
        a_stop(),
        beat(S.FAILED, 0, workers_alive=1, failures_written=1, failure=why),
    ]
    victim = an_exit(0, -15, stopped=True)
    assert story.feed(victim) == [
        a_record(victim, 2),
        beat(S.FAILED, 0, workers_alive=1, failures_written=2, failure=why),
    ]
    assert story.feed(WorkersStopped(round_id=0)) == [
        beat(S.FAILED, 0, failures_written=2, failure=why)
    ]
    assert of(story.feed(desired(an_assignment(1))), fx.StartRound) == [
        fx.StartRound(assignment=an_assignment(1))
    ]


def test_a_worker_that_cannot_be_started_is_a_failure() -> None:
    story = AgentStory().connected()
    story.feed(desired(an_assignment()))
    event = WorkerStartFailed(round_id=0, local_rank=1, message="cannot start x")
    why = replace(not_started(an_assignment(), event, now=story.now), sequence=1)
    assert story.feed(event) == [
        fx.WriteFailure(failure=why),
        a_stop(),
        beat(S.FAILED, 0, workers_alive=1, failures_written=1, failure=why),
    ]


def test_a_worker_that_ends_as_asked_is_no_failure() -> None:
    story = AgentStory().running()
    story.feed(desired(Stop(reason="the run failed")))
    assert story.feed(an_exit(0, -15, stopped=True), an_exit(1, 1, stopped=True)) == [
        beat(S.STOPPING, 0, workers_alive=1)  # whatever it may have left behind
    ]


def test_a_worker_that_failed_before_the_stop_reached_it_is_recorded() -> None:
    story = AgentStory().running()
    story.feed(desired(Stop(reason="the run failed")))
    bad = an_exit(0, 1)
    assert story.feed(bad) == [
        a_record(bad),
        beat(S.STOPPING, 0, workers_alive=1, failures_written=1),
    ]


def test_a_failed_run_ends_with_its_report() -> None:
    story = AgentStory().running()
    story.feed(an_exit(0, 1), WorkersStopped(round_id=0))
    assert story.feed(desired(FAILED)) == [
        fx.Finish(exit_code=1, report=REPORT),
    ]


# Rounds.


def test_a_new_round_waits_for_the_end_of_the_old_one() -> None:
    story = AgentStory().running()
    assert story.feed(desired(an_assignment(1))) == [
        a_stop(),
        beat(S.STOPPING, 0, workers_alive=2),
    ]
    assert of(story.feed(an_exit(0, -15, stopped=True)), fx.StartRound) == []
    assert of(story.feed(an_exit(1, -15, stopped=True)), fx.StartRound) == []
    assert story.feed(WorkersStopped(round_id=0)) == [
        fx.StartRound(assignment=an_assignment(1)),
        beat(S.STARTING, 1, workers_alive=2),
    ]


def test_only_the_latest_round_is_started() -> None:
    story = AgentStory().running()
    story.feed(desired(an_assignment(1)), desired(an_assignment(2)))
    effects = story.feed(WorkersStopped(round_id=0))
    assert of(effects, fx.StartRound) == [fx.StartRound(assignment=an_assignment(2))]


@pytest.mark.parametrize(
    "late",
    [
        WorkersStarted(round_id=0),
        WorkerStartFailed(round_id=0, local_rank=0, message=""),
        an_exit(0, 1, round_id=0),
        WorkersStopped(round_id=0),
        desired(SUCCEEDED, attempt=0),
        SessionLost(attempt=0, reason="late"),
        SessionWelcomed(attempt=2, pace=PACE),
    ],
)
def test_what_is_of_another_round_or_attempt_is_ignored(late: object) -> None:
    assert AgentStory().running(1).feed(late) == []  # type: ignore[arg-type]


def test_an_agent_that_is_done_and_released_leaves_with_success() -> None:
    """A repeated word, or the verdict that comes after it, changes nothing."""
    story = AgentStory().running()
    story.feed(an_exit(0, 0), an_exit(1, 0))
    released = Exit(is_success=True, reason="waited 60 s", is_released=True)
    assert of(story.feed(desired(released)), fx.SendGoodbye)
    assert not of(story.feed(desired(released), desired(FAILED)), fx.SendGoodbye)
    assert of(story.feed(WorkersStopped(round_id=0)), fx.Finish) == [fx.Finish(exit_code=0)]


def test_a_success_that_was_given_up_is_not_trained_again() -> None:
    story = AgentStory().running()
    story.feed(an_exit(0, 0), an_exit(1, 0), STALE, WorkersStopped(round_id=0))
    story.feed(SessionWelcomed(attempt=2, pace=PACE))
    effects = story.feed(desired(an_assignment(0), attempt=2))
    assert effects == []
    assert of(story.feed(desired(an_assignment(1), attempt=2)), fx.StartRound)


def test_a_run_that_begins_anew_ends_the_agent() -> None:
    story = AgentStory().running(5)
    story.feed(desired(Standby(reason="waiting")), WorkersStopped(round_id=5))
    effects = story.feed(desired(an_assignment(0)))
    goodbye, finish = effects
    assert isinstance(goodbye, fx.SendGoodbye)
    assert isinstance(finish, fx.Finish)
    assert isinstance(finish.error, RunForgotten)


def test_a_host_with_stuck_processes_leaves_instead_of_another_round() -> None:
    story = AgentStory().running()
    story.feed(desired(an_assignment(1)))
    effects = story.feed(WorkersStopped(round_id=0, stuck_pids=(71,)))
    assert of(effects, fx.StartRound) == []
    (finish,) = of(effects, fx.Finish)
    assert isinstance(finish.error, ProcessesStuck)
    (goodbye,) = of(effects, fx.SendGoodbye)
    assert goodbye.reason == "processes of round 0 outlived SIGKILL: pid 71"


def test_stuck_processes_do_not_change_a_verdict() -> None:
    story = AgentStory().running()
    story.feed(desired(SUCCEEDED))
    effects = story.feed(WorkersStopped(round_id=0, stuck_pids=(71,)))
    assert of(effects, fx.Finish) == [fx.Finish(exit_code=0)]


# Sessions.


def test_a_lost_session_is_opened_again_and_the_workers_stay() -> None:
    story = AgentStory().running()
    running = a_beat(S.RUNNING, 0, workers_alive=2)
    assert story.feed(LOST) == [
        fx.Tell(what="coordinator lost", why="connection reset"),
        an_opening(2, 0.05, running),
    ]
    assert story.feed(SessionLost(attempt=2, reason="refused")) == [an_opening(3, 0.1, running)]
    assert story.feed(SessionWelcomed(attempt=3, pace=PACE)) == [fx.SendBeat(beat=running)]


def test_a_fenced_agent_stops_its_workers_and_comes_back() -> None:
    story = AgentStory().running()
    assert story.feed(STALE) == [
        fx.Tell(what="fenced", why="lease over"),
        an_opening(2, 0.05, a_beat(S.RUNNING, 0, workers_alive=2)),
        a_stop(),
    ]


def test_a_refusal_is_final() -> None:
    story = AgentStory()
    error = RunRefused("job", "it has ended")
    lost = SessionLost(attempt=1, reason="it has ended", refusal=error)
    assert story.feed(lost) == [fx.Finish(exit_code=2, error=error)]


def test_a_refusal_that_costs_workers_says_so_before_they_are_stopped() -> None:
    story = AgentStory().running()
    error = AccessRefused("the token was revoked")
    lost = SessionLost(attempt=1, reason="the token was revoked", refusal=error)
    told = fx.Tell(what="refused", why="the token was revoked; its workers are stopped")
    assert story.feed(lost) == [told, a_stop()]
    assert story.feed(WorkersStopped(round_id=0)) == [fx.Finish(exit_code=2, error=error)]


def test_a_coordinator_that_never_answers_is_given_up_at_the_join_timeout() -> None:
    story = AgentStory()
    assert story.core.next_deadline() == NOW + CONFIG.join_timeout
    effects = story.feed(DeadlineReached(), after_s=CONFIG.join_timeout)
    (finish,) = of(effects, fx.Finish)
    assert isinstance(finish.error, CoordinatorUnreachable)
    assert finish.exit_code == 3


def test_workers_outlive_the_coordinator_for_its_grace_and_nothing_spins_after_it() -> None:
    story = AgentStory().running()
    story.feed(LOST)
    assert story.core.next_deadline() == NOW + CONFIG.grace_s
    assert story.feed(DeadlineReached(), after_s=CONFIG.grace_s) == [a_stop()]
    assert story.core.next_deadline() is None, "the workers are waited for, and nothing else"
    (finish,) = of(story.feed(WorkersStopped(round_id=0)), fx.Finish)
    assert isinstance(finish.error, CoordinatorLost)


def test_an_agent_that_ends_does_not_come_back() -> None:
    story = AgentStory().running()
    story.feed(SignalReceived(signum=TERM))
    assert story.feed(LOST) == []
    assert story.core.next_deadline() is None


def test_it_beats_at_the_pace_it_is_told() -> None:
    story = AgentStory().connected()
    assert story.core.next_deadline() == NOW + 1.0
    assert story.feed(DeadlineReached(), after_s=1.0) == [beat()]
    slow = Pace(heartbeat_interval_s=4.0, reconnect_delay_max_s=2.0)
    assert story.feed(SessionWelcomed(attempt=1, pace=slow)) == []
    assert story.core.next_deadline() == story.now + 4.0


# Ports.


def test_a_spent_port_is_held_until_the_next_one_is_spent() -> None:
    story = AgentStory().connected()
    first = story.feed(desired(an_assignment(0), spent=PORT))
    assert without(first, fx.Tell, fx.StartRound) == [
        fx.ReservePort(kept=frozenset({PORT, 29500})),
        beat(S.STARTING, 0, master_port=0, workers_alive=2),
    ]
    again = story.feed(PortReserved(port=PORT + 1))
    assert again == [beat(S.STARTING, 0, master_port=PORT + 1, workers_alive=2)]
    assert story.feed(desired(an_assignment(0), spent=PORT)) == [], "it is replaced already"
    second = story.feed(desired(an_assignment(1), spent=PORT + 1))
    kept = frozenset({PORT + 1, 29500})
    assert of(second, fx.ReservePort) == [fx.ReservePort(kept=kept)], "the first one is let go"


def test_a_port_that_is_spent_before_it_is_held_is_replaced_when_it_is() -> None:
    story = AgentStory()
    story.feed(SessionWelcomed(attempt=1, pace=PACE), desired(Standby(reason="x"), spent=PORT))
    reserve = fx.ReservePort(kept=frozenset({PORT}))
    assert of(story.feed(PortReserved(port=PORT)), fx.ReservePort) == [reserve]


# Signals.


def test_the_first_signal_says_goodbye_and_stops_with_it_the_second_kills() -> None:
    story = AgentStory().running()
    assert story.feed(SignalReceived(signum=INT)) == [
        fx.SendGoodbye(reason="ended by signal 2"),
        a_stop(signum=INT),
        beat(S.STOPPING, 0, workers_alive=2),
    ]
    assert story.feed(SignalReceived(signum=INT)) == [fx.KillWorkers()]
    assert story.feed(desired(FAILED)) == []
    effects = story.feed(WorkersStopped(round_id=0))
    assert effects == [fx.Finish(exit_code=130)], "the first reason counts"


@pytest.mark.parametrize("signum", [HUP, TERM])
def test_a_signal_that_comes_twice_within_two_seconds_counts_as_one(signum: int) -> None:
    story = AgentStory().running()
    assert a_stop(signum=signum) in story.feed(SignalReceived(signum=signum))
    assert story.feed(SignalReceived(signum=signum)) == []
    assert story.feed(SignalReceived(signum=signum), after_s=1.9) == []
    killed = story.feed(SignalReceived(signum=signum), after_s=0.2)
    assert of(killed, fx.KillWorkers) == [fx.KillWorkers()]


def test_another_signal_kills_at_once() -> None:
    story = AgentStory().running()
    story.feed(SignalReceived(signum=HUP))
    assert story.feed(SignalReceived(signum=TERM)) == [fx.KillWorkers()]


def test_a_signal_to_an_idle_agent_ends_it_at_once() -> None:
    assert AgentStory().connected().feed(SignalReceived(signum=TERM)) == [
        fx.SendGoodbye(reason="ended by signal 15"),
        fx.Finish(exit_code=143),
    ]


# The supervisor.

NO_PROCESS = "could not be started: Resource temporarily unavailable"


def test_workers_that_died_with_their_supervisor_are_recorded_each() -> None:
    story = AgentStory().running()
    effects = story.feed(SupervisorDied(ending="was ended by SIGKILL", explanation="no memory"))
    assert fx.StartSupervisor() in effects
    assert not [each for each in effects if isinstance(each, fx.StopWorkers)], "none is left"
    failures = [each.failure for each in effects if isinstance(each, fx.WriteFailure)]
    assert [failure.local_rank for failure in failures] == [0, 1]
    assert {(failure.exit_code, failure.explanation) for failure in failures} == {(-9, "no memory")}
    why = "the agent's supervisor was ended by SIGKILL; its workers were killed with it"
    assert {failure.message for failure in failures} == {why}
    assert effects[-1] == beat(S.FAILED, 0, failures_written=2, failure=failures[0])


def test_workers_that_were_being_stopped_need_no_record() -> None:
    story = AgentStory().running()
    story.feed(desired(an_assignment(1)))
    effects = story.feed(SupervisorDied(ending="exited with code 1"))
    assert without(effects, fx.Tell) == [
        fx.StartSupervisor(),
        fx.StartRound(assignment=an_assignment(1)),
        beat(S.STARTING, 1, workers_alive=2),
    ]


def test_a_supervisor_that_dies_again_and_again_ends_the_agent() -> None:
    story = AgentStory().connected()
    died = SupervisorDied(ending="was ended by SIGKILL")
    delays_s = [
        start.delay_s
        for _ in range(SUPERVISOR_DEATHS_MAX)
        for start in of(story.feed(died), fx.StartSupervisor)
    ]
    assert delays_s == [0.0, 1.0, 2.0, 4.0, 8.0]
    effects = story.feed(died)
    assert of(effects, fx.StartSupervisor) == []
    (finish,) = of(effects, fx.Finish)
    assert isinstance(finish.error, SupervisorLost)


def test_a_passing_fork_failure_costs_no_worker_and_is_waited_out() -> None:
    story = AgentStory().connected()
    story.feed(desired(an_assignment()))
    not_started = SupervisorDied(ending=NO_PROCESS, has_lived=False)
    waited_s = 0.0
    for _ in range(SUPERVISOR_DEATHS_MAX):
        effects = story.feed(not_started)
        [start] = of(effects, fx.StartSupervisor)
        assert start.is_command_kept
        assert of(effects, fx.WriteFailure) == []
        waited_s += start.delay_s
    assert waited_s > 15
    story.feed(WorkersStarted(round_id=0))
    [start] = of(story.feed(not_started), fx.StartSupervisor)
    assert start.delay_s == 0.5


def test_a_host_that_gives_no_process_at_all_is_left_with_a_record_of_each_worker() -> None:
    story = AgentStory().connected()
    story.feed(desired(an_assignment()))
    not_started = SupervisorDied(ending=NO_PROCESS, has_lived=False)
    for _ in range(SUPERVISOR_DEATHS_MAX):
        story.feed(not_started)
    effects = story.feed(not_started)
    assert len(of(effects, fx.WriteFailure)) == 2
    [finish] = of(effects, fx.Finish)
    assert str(finish.error) == (
        "the agent's supervisor died 6 times; the last one could not be started: "
        "Resource temporarily unavailable"
    )


def test_deaths_are_counted_anew_after_a_start() -> None:
    story = AgentStory().running()
    died = SupervisorDied(ending="was ended by SIGKILL")
    for round_id in range(1, 3 * SUPERVISOR_DEATHS_MAX):
        effects = story.feed(
            died, desired(an_assignment(round_id)), WorkersStarted(round_id=round_id)
        )
        assert of(effects, fx.Finish) == []
