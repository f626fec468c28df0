"""Stories of one agent whose workers restart in process."""

from __future__ import annotations

from typing import Any

import pytest

from drumbeat.agent.core import effects as fx
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
)
from drumbeat.agent.core.model import (
    Beat,
    Exit,
    Failure,
    GroupState,
    InprocessReport,
    Stop,
    WorkerOrder,
)
from drumbeat.agent.watchdog.core.model import WorkerKey
from drumbeat.agent.watchdog.hang import Purpose
from drumbeat.agent.workers.supervisor.messages import WorkerError
from drumbeat.inprocess import InprocessSeat, InprocessStep, InterruptionKind, IterationBegin
from tests.support.agents import (
    CONFIG,
    PACE,
    PORT,
    AgentStory,
    a_beat,
    an_assignment,
    desired,
    of,
    without,
)
from tests.support.inprocess.values import (
    OTHER_SPEC,
    SPEC,
    a_begin,
    a_complete,
    a_hang,
    an_interrupt,
    breaks,
    completes,
    directed,
    enters,
    exits,
    leaves,
    orders,
    why,
)

S, H, K = GroupState, InprocessStep, InterruptionKind
SUCCESS = Exit(is_success=True, reason="all workers succeeded")
PIDS = {0: 70, 1: 71}


class Story(AgentStory):
    """An agent whose workers are in an iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.connected()
        self.feed(desired(an_assignment()), WorkersStarted(round_id=0, pids=PIDS))

    def iterating(self) -> Story:
        self.feed(enters(0, 0), enters(1, 0), directed(a_begin(0)))
        return self

    def completed(self) -> Story:
        self.iterating()
        self.feed(completes(0, 0), completes(1, 0), directed(a_complete(0)))
        return self


def beat_of(effects: list[fx.Effect]) -> Beat:
    [sent] = of(effects, fx.SendBeat)
    beat: Beat = sent.beat
    return beat


def record_of(effects: list[fx.Effect]) -> Failure:
    [written] = of(effects, fx.WriteFailure)
    failure: Failure = written.failure
    return failure


def test_what_changes_is_reported_at_once() -> None:
    story = Story()
    assert story.feed(enters(0, 0)) == [], "not before all have entered"
    report = InprocessReport(iteration=0, step=H.ENTERED, spec=SPEC)
    assert story.feed(enters(1, 0)) == [
        fx.SendBeat(beat=a_beat(S.RUNNING, 0, workers_alive=2, inprocess=report))
    ]
    assert story.feed(enters(1, 0)) == []
    effects = story.feed(directed(a_begin(0)))
    begin = IterationBegin(
        seats=(InprocessSeat(local_rank=0, rank=2, active_rank=2),),
        world_size=9,
        active_world_size=8,
        master_addr="10.0.0.1",
        master_port=7000,
    )
    assert effects[0] == WorkerOrder(worker=WorkerKey(0, 0), iteration=0, kind=begin)
    assert orders(effects) == [(0, 0, "begin 2"), (1, 0, "begin 3")]
    assert beat_of(effects).inprocess == InprocessReport(iteration=0, step=H.RUNNING)


def test_an_interruption_is_written_down_before_the_beat_and_stops_nobody() -> None:
    story = Story().iterating()
    effects = story.feed(breaks(1, 0))
    failure, beat = record_of(effects), beat_of(effects)
    assert effects == [fx.WriteFailure(failure=failure), fx.SendBeat(beat=beat)]
    assert failure == Failure(
        sequence=1,
        round_id=0,
        rank=3,
        local_rank=1,
        group_rank=1,
        role_rank=3,
        happened_at=story.now,
        pid=71,
        exit_code=0,
        message="boom",
        interruption=K.EXCEPTION,
        iteration=0,
    )
    assert failure.is_survived
    assert (beat.state, beat.workers_alive, beat.failures_written) == (S.RUNNING, 2, 1)
    assert beat.inprocess is not None
    assert beat.inprocess.interruptions == (why(1),)


def test_what_is_only_heard_is_no_record() -> None:
    story = Story().iterating()
    effects = story.feed(directed(an_interrupt(0)), breaks(0, 0, None), breaks(1, 0, None))
    assert of(effects, fx.WriteFailure) == []


def test_a_dead_worker_is_one_record_and_stops_nobody() -> None:
    story = Story().iterating()
    story.feed(leaves(1, 0, K.UNHEALTHY, "GPU gone"))
    said_at = story.now
    error = WorkerError(message="", traceback="T")
    ending = exits(1, 1, ended_at=said_at + 5, error=error, stderr_tail="last", explanation="so")
    effects = story.feed(ending)
    failure = record_of(effects)
    assert (failure.interruption, failure.iteration) == (K.UNHEALTHY, 0)
    assert (failure.exit_code, failure.pid, failure.happened_at) == (1, 71, said_at)
    assert (failure.message, failure.traceback) == ("GPU gone", "T")
    assert (failure.stderr_tail, failure.explanation) == ("last", "so")
    assert not failure.is_stopped_by_agent
    assert not failure.is_survived
    assert of(effects, fx.StopWorkers) == []
    assert (beat_of(effects).state, beat_of(effects).workers_alive) == (S.RUNNING, 1)


def test_a_hang_goes_with_the_interruption() -> None:
    story = Story().iterating()
    hang = a_hang("x", purpose=Purpose.HARD_TIMEOUT, noticed_at=60.0)
    failure = record_of(story.feed(exits(1, -9, hang=hang)))
    assert (failure.interruption, failure.hang) == (K.HARD_TIMEOUT, hang)
    assert failure.happened_at == 60.0


def test_after_the_call_failures_count_and_those_before_are_excused() -> None:
    story = Story().iterating()
    story.feed(exits(1, -9), directed(an_interrupt(0)), enters(0, 1))
    story.feed(directed(a_begin(1, [0])), completes(0, 1), directed(a_complete(1)))
    effects = story.feed(exits(0, 0))
    assert beat_of(effects).state is S.SUCCEEDED
    assert of(effects, fx.WriteFailure) == []


def test_a_failure_after_the_call_stops_the_group() -> None:
    story = Story().completed()
    effects = story.feed(exits(0, 1))
    assert record_of(effects).interruption is None
    assert of(effects, fx.StopWorkers)
    assert beat_of(effects).state is S.FAILED


def test_all_succeed_after_the_call() -> None:
    story = Story().completed()
    effects = story.feed(exits(0, 0), exits(1, 0))
    assert of(effects, fx.SendBeat)[-1].beat.state is S.SUCCEEDED
    assert of(effects, fx.WriteFailure) == []


def test_a_host_whose_workers_are_all_gone_waits_for_the_verdict() -> None:
    story = Story().iterating()
    effects = story.feed(exits(0, -9), exits(1, 0))
    beat = of(effects, fx.SendBeat)[-1].beat
    assert (beat.state, beat.workers_alive) == (S.RUNNING, 0)
    assert [left.local_rank for left in beat.inprocess.terminated] == [0, 1]
    assert of(effects, fx.StopWorkers) == []
    for word in (an_interrupt(0), a_begin(1, []), a_complete(1)):
        assert of(story.feed(directed(word)), fx.SendBeat) == []
    story.feed(desired(SUCCESS))
    assert of(story.feed(WorkersStopped(round_id=0)), fx.Finish) == [fx.Finish(exit_code=0)]


def test_a_host_whose_workers_are_all_gone_takes_part_in_the_next_round() -> None:
    story = Story().iterating()
    story.feed(exits(0, -9), exits(1, -9))
    story.feed(desired(an_assignment(1)))
    effects = story.feed(WorkersStopped(round_id=0))
    assert of(effects, fx.StartRound) == [fx.StartRound(assignment=an_assignment(1))]
    assert beat_of(effects).inprocess is None


def test_one_that_was_done_makes_a_success_when_the_last_call_is_complete() -> None:
    story = Story().completed()
    story.feed(enters(0, 1), exits(1, 0))
    effects = story.feed(exits(0, -9))
    assert beat_of(effects).state is S.RUNNING, "the others may still fail"
    assert beat_of(story.feed(directed(a_complete(1)))).state is S.SUCCEEDED


def test_workers_that_die_with_their_supervisor_have_terminated() -> None:
    story = Story().iterating()
    effects = story.feed(SupervisorDied(ending="was ended by SIGKILL", explanation="no memory"))
    failures = [written.failure for written in of(effects, fx.WriteFailure)]
    assert [(f.interruption, f.exit_code) for f in failures] == [(K.TERMINATED, -9)] * 2
    assert failures[0].explanation == "no memory"
    assert failures[0].message.startswith("the agent's supervisor was ended by SIGKILL")
    assert (beat_of(effects).state, beat_of(effects).workers_alive) == (S.RUNNING, 0)
    effects = story.feed(desired(an_assignment(1)))
    assert of(effects, fx.StartRound) == [fx.StartRound(assignment=an_assignment(1))]


def test_what_a_worker_said_itself_outlives_its_supervisor() -> None:
    story = Story().iterating()
    story.feed(leaves(1, 0, message="mine"))
    effects = story.feed(SupervisorDied(ending="was ended by SIGKILL"))
    messages = [written.failure.message for written in of(effects, fx.WriteFailure)]
    assert messages[0].startswith("the agent's supervisor")
    assert messages[1:] == ["mine"]


def test_the_supervisor_may_die_while_workers_leave_by_themselves() -> None:
    story = Story().iterating()
    story.feed(leaves(1, 0, kind=K.EXITED), breaks(0, 0), desired(Stop(reason="enough")))
    assert story.core.workers.state is S.STOPPING
    effects = story.feed(SupervisorDied(ending="was ended by SIGKILL"))
    assert (beat_of(effects).state, beat_of(effects).workers_alive) == (S.IDLE, 0)


def test_settings_that_differ_fail_the_group() -> None:
    story = Story()
    effects = story.feed(enters(0, 0), enters(1, 0, spec=OTHER_SPEC))
    assert "must be given the same" in record_of(effects).message
    assert of(effects, fx.StopWorkers)
    assert beat_of(effects).state is S.FAILED
    late = story.feed(exits(0, -15, is_stopped=True), exits(1, -15, is_stopped=True))
    assert all(w.failure.is_stopped_by_agent for w in of(late, fx.WriteFailure))


def test_who_is_discarded_is_ended_and_a_victim() -> None:
    story = Story()
    story.feed(enters(0, 0), enters(1, 0))
    effects = story.feed(directed(a_begin(0, [0])))
    assert [(e.local_rank, e.signum) for e in of(effects, fx.SignalWorkers)] == [(1, 15)]
    due = story.now + CONFIG.shutdown_timeout
    while (deadline := story.core.next_deadline()) is not None and deadline < due:
        story.feed(DeadlineReached(), after_s=deadline - story.now)
    effects = story.feed(DeadlineReached(), after_s=due - story.now)
    assert [(e.local_rank, e.signum) for e in of(effects, fx.SignalWorkers)] == [(1, 9)]
    failure = record_of(story.feed(exits(1, -9)))
    assert failure.interruption is K.DISCARDED
    assert failure.is_stopped_by_agent


def test_a_new_session_hears_the_latest() -> None:
    story = Story().iterating()
    story.feed(breaks(0, 0))
    effects = story.feed(SessionLost(attempt=1, reason="reset"))
    [opened] = of(effects, fx.OpenSession)
    assert opened.beat.inprocess.step is H.INTERRUPTED
    story.feed(SessionWelcomed(attempt=2, pace=PACE))
    assert story.feed(directed(an_interrupt(0), attempt=1)) == [], "of the session before"
    assert orders(story.feed(directed(an_interrupt(0), attempt=2))) == [(1, 0, "interrupt")]


def test_a_round_that_ends_is_told_nothing_more() -> None:
    story = Story().iterating()
    story.feed(desired(an_assignment(1)))
    assert orders(story.feed(directed(an_interrupt(0)))) == []
    victim = exits(0, -15, is_stopped=True)
    assert of(story.feed(victim), fx.WriteFailure) == []
    assert of(story.feed(breaks(1, 0)), fx.WriteFailure) == []


@pytest.mark.parametrize("late", [enters(0, 0), leaves(0, 0), exits(0, 1)])
def test_a_word_of_a_worker_that_is_long_gone_changes_nothing(late: Any) -> None:
    story = Story().iterating()
    story.feed(desired(SUCCESS), WorkersStopped(round_id=0))
    assert story.feed(late) == []


def test_an_exit_is_heard_once() -> None:
    story = Story().iterating()
    ending: WorkerExited = exits(1, -9)
    assert of(story.feed(ending), fx.WriteFailure)
    assert story.feed(ending) == []


def test_a_round_that_is_given_up_lets_its_workers_end_by_themselves() -> None:
    """No signal as long as they are about it, and the usual ones if they are not done in time."""
    story = Story().iterating()
    story.feed(leaves(1, 0), directed(an_interrupt(0)), breaks(0, 0, None), enters(0, 1))
    effects = story.feed(desired(Stop(reason="round 0 failed")))
    assert orders(effects) == [(0, 1, "abort: round 0 failed")]
    assert of(effects, fx.StopWorkers) == []
    assert of(story.feed(exits(0, 1)), fx.StopWorkers) == []
    failure = record_of(effects := story.feed(exits(1, 1)))
    assert (failure.interruption, failure.is_stopped_by_agent) == (K.BASE_EXCEPTION, False)
    assert of(effects, fx.StopWorkers), "what they left behind"


def test_workers_that_do_not_end_by_themselves_are_stopped() -> None:
    story = Story().iterating()
    story.feed(leaves(0, 0), leaves(1, 0), desired(Stop(reason="all left")))
    due = story.now + CONFIG.shutdown_timeout
    while (deadline := story.core.next_deadline()) is not None and deadline < due:
        assert of(story.feed(DeadlineReached(), after_s=deadline - story.now), fx.StopWorkers) == []
    assert of(story.feed(DeadlineReached(), after_s=due - story.now), fx.StopWorkers)


def test_a_signal_to_the_agent_stops_those_as_well_that_are_ending() -> None:
    story = Story().iterating()
    story.feed(leaves(0, 0), leaves(1, 0), desired(Stop(reason="all left")))
    assert of(story.feed(SignalReceived(signum=15)), fx.StopWorkers)


def test_workers_that_all_exit_with_0_succeed() -> None:
    story = Story().iterating()
    story.feed(leaves(0, 0, K.EXITED), exits(0, 0), leaves(1, 0, K.EXITED))
    assert beat_of(story.feed(exits(1, 0))).state is S.RUNNING, "others may be at it still"
    effects = story.feed(directed(a_complete(0)))
    assert beat_of(effects).state is S.SUCCEEDED
    assert of(effects, fx.WriteFailure) == []


def test_workers_that_all_exit_with_0_succeed_also_after_they_were_interrupted() -> None:
    story = Story().iterating()
    story.feed(leaves(0, 0, K.EXITED), exits(0, 0), directed(an_interrupt(0)))
    story.feed(leaves(1, 0, K.EXITED), exits(1, 0))
    assert beat_of(story.feed(directed(a_complete(0)))).state is S.SUCCEEDED


# Ports.


def test_the_port_of_the_round_outlives_those_of_its_iterations() -> None:
    story = AgentStory().connected()
    lead = an_assignment(0, group_rank=0, master_port=PORT)
    story.feed(desired(lead, spent=PORT), PortReserved(port=PORT + 1))
    first = story.feed(desired(lead, spent=PORT + 1))
    both = fx.ReservePort(kept=frozenset({PORT, PORT + 1}))
    assert without(first, fx.SendBeat) == [both], "nothing is let go, nothing told"
    story.feed(PortReserved(port=PORT + 2))
    second = story.feed(desired(lead, spent=PORT + 2))
    latest = fx.ReservePort(kept=frozenset({PORT, PORT + 2}))
    assert without(second, fx.SendBeat) == [latest], "that of the iteration before is let go"
    story.feed(PortReserved(port=PORT + 3))
    next_lead = an_assignment(1, group_rank=0, master_port=PORT + 3)
    third = story.feed(desired(next_lead, spent=PORT + 3))
    assert of(third, fx.ReservePort) == [fx.ReservePort(kept=frozenset({PORT + 3}))]


def test_a_death_after_completion_that_is_heard_of_late_is_a_failure() -> None:
    story = Story().iterating()
    story.feed(completes(0, 0), completes(1, 0))
    beat = beat_of(story.feed(exits(1, -9)))
    assert beat.state is S.RUNNING, "as far as is known here, the iteration goes on without it"
    effects = story.feed(directed(a_complete(0)))
    assert beat_of(effects).state is S.FAILED
    [stop] = of(effects, fx.StopWorkers)
    assert stop.round_id == 0
    assert of(story.feed(directed(a_complete(0))), fx.StopWorkers) == []


def test_hosts_whose_workers_all_died_amid_an_entry_are_in_the_later_iteration() -> None:
    """Else the coordinator would take them for workers that are done."""
    story = Story().completed()
    story.feed(enters(0, 1))
    beat = beat_of(story.feed(SupervisorDied(ending="was ended by SIGKILL")))
    assert beat.state is S.RUNNING
    assert beat.inprocess is not None
    assert (beat.inprocess.iteration, beat.inprocess.step) == (1, H.INTERRUPTED)
    assert len(beat.inprocess.terminated) == 2
