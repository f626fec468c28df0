"""When the core waits for GPU memory, and what it does meanwhile."""

from __future__ import annotations

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.agent import AgentCore
from drumbeat.agent.core.events import (
    DeadlineReached,
    DirectiveReceived,
    Event,
    GpuMemoryFree,
    PortReserved,
    SessionWelcomed,
    SignalReceived,
    SupervisorDied,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStartFailed,
)
from drumbeat.agent.core.model import Assignment, Exit, GroupState, Pace, Standby, Stop
from drumbeat.agent.workers.failures.report import FailureReport
from tests.support.agents import CONFIG

SIGTERM = 15

REPORT = FailureReport(reason="spent")


def a_round(round_id: int) -> Assignment:
    return Assignment(
        round_id=round_id,
        restart_count=round_id,
        group_rank=0,
        group_world_size=1,
        rank_first=0,
        world_size=2,
        role_rank_first=0,
        role_world_size=2,
        master_addr="h",
        master_port=1000 + round_id,
        reason="because",
    )


class Agent:
    """A core with two workers, and everything it wanted."""

    def __init__(self, *, is_gpu_memory_awaited: bool = True) -> None:
        self.core = AgentCore(CONFIG, is_gpu_memory_awaited=is_gpu_memory_awaited)
        self.now = 100.0
        self.core.start(now=self.now)
        self.give(PortReserved(port=5000))
        pace = Pace(heartbeat_interval_s=1.0, reconnect_delay_max_s=1.0)
        self.give(SessionWelcomed(attempt=self.core.link.attempt, pace=pace))

    def give(self, event: Event) -> list[fx.Effect]:
        effects = self.core.handle(event, now=self.now)
        self.core.check_invariants()
        return effects

    def want(self, state: Assignment | Standby | Stop | Exit) -> list[fx.Effect]:
        return self.give(DirectiveReceived(attempt=self.core.link.attempt, state=state))

    def run(self, round_id: int) -> None:
        """Bring a first round to life."""
        assert fx.StartRound(assignment=a_round(round_id)) in self.want(a_round(round_id))
        self.give(WorkersStarted(round_id=round_id))

    def end(self, round_id: int) -> list[fx.Effect]:
        """Let the last process of the round end."""
        return self.give(WorkersStopped(round_id=round_id))


def kinds(effects: list[fx.Effect]) -> list[type[fx.Effect]]:
    """Return what was wanted, but for news to people and to the coordinator."""
    return [type(effect) for effect in effects if not isinstance(effect, fx.Tell | fx.SendBeat)]


def waiting_agent() -> Agent:
    """Return an agent between two rounds."""
    agent = Agent()
    agent.run(0)
    assert kinds(agent.want(a_round(1))) == [fx.StopWorkers]
    assert kinds(agent.end(0)) == [fx.AwaitGpuMemory]
    return agent


def test_the_first_round_waits_for_nothing() -> None:
    agent = Agent()
    assert kinds(agent.want(a_round(0))) == [fx.StartRound]


def test_the_next_round_waits_for_the_memory_of_the_last_one() -> None:
    agent = waiting_agent()
    assert agent.core.workers.state is GroupState.IDLE
    effects = agent.give(GpuMemoryFree())
    assert kinds(effects) == [fx.StartRound]
    assert fx.StartRound(assignment=a_round(1)) in effects
    assert not [effect for effect in effects if isinstance(effect, fx.Tell)]


def test_every_round_waits_anew() -> None:
    agent = waiting_agent()
    agent.give(GpuMemoryFree())
    agent.give(WorkersStarted(round_id=1))
    agent.want(a_round(2))
    assert kinds(agent.end(1)) == [fx.AwaitGpuMemory]
    assert kinds(agent.give(GpuMemoryFree())) == [fx.StartRound]


def test_without_gpus_nothing_is_waited_for() -> None:
    agent = Agent(is_gpu_memory_awaited=False)
    agent.run(0)
    agent.want(a_round(1))
    assert kinds(agent.end(0)) == [fx.StartRound]


def test_memory_that_does_not_become_free_is_told_and_the_round_starts() -> None:
    agent = waiting_agent()
    effects = agent.give(GpuMemoryFree(note="GPU 0 holds 1 MiB"))
    assert effects[0] == fx.Tell(what="GPU memory not free", why="GPU 0 holds 1 MiB")
    assert kinds(effects) == [fx.StartRound]


def test_beats_go_on_during_the_wait() -> None:
    agent = waiting_agent()
    for _ in range(3):
        due = agent.core.next_deadline()
        assert due is not None
        agent.now = due
        [beat] = agent.give(DeadlineReached())
        assert isinstance(beat, fx.SendBeat)
        assert (beat.beat.state, beat.beat.workers_alive) == (GroupState.IDLE, 0)


def test_the_newest_round_is_started_after_the_wait() -> None:
    """A second decision during the wait does not begin another one."""
    agent = waiting_agent()
    assert kinds(agent.want(a_round(2))) == []
    effects = agent.give(GpuMemoryFree())
    assert [e for e in effects if isinstance(e, fx.StartRound)] == [
        fx.StartRound(assignment=a_round(2))
    ]


def test_a_standby_does_not_start_after_the_wait_and_does_not_wait_again() -> None:
    agent = waiting_agent()
    assert kinds(agent.want(Standby(reason="surplus"))) == []
    assert kinds(agent.give(GpuMemoryFree())) == []
    assert kinds(agent.want(a_round(3))) == [fx.StartRound]


def test_a_standby_waits_only_when_it_is_to_start() -> None:
    agent = Agent()
    agent.run(0)
    agent.want(Standby(reason="surplus"))
    assert kinds(agent.end(0)) == []
    assert kinds(agent.want(a_round(1))) == [fx.AwaitGpuMemory]


def test_a_signal_ends_the_wait_and_the_agent() -> None:
    agent = waiting_agent()
    effects = agent.give(SignalReceived(signum=SIGTERM))
    assert kinds(effects) == [fx.SendGoodbye, fx.Finish]
    assert effects[-1] == fx.Finish(exit_code=128 + SIGTERM)
    assert agent.give(GpuMemoryFree()) == []


def test_a_verdict_ends_the_wait_and_the_agent() -> None:
    agent = waiting_agent()
    effects = agent.want(Exit(is_success=False, reason="spent", report=REPORT))
    assert effects[-1] == fx.Finish(exit_code=1, report=REPORT)


def test_a_stop_during_the_wait_keeps_the_round_from_starting() -> None:
    agent = waiting_agent()
    assert kinds(agent.want(Stop(reason="enough"))) == []
    assert kinds(agent.give(GpuMemoryFree())) == []


def test_a_supervisor_that_dies_takes_its_workers_and_their_memory_is_awaited() -> None:
    agent = Agent()
    agent.run(0)
    agent.give(SupervisorDied(ending="was ended by SIGKILL"))
    assert kinds(agent.want(a_round(1))) == [fx.AwaitGpuMemory]


def test_a_supervisor_that_dies_during_the_wait_does_not_end_it() -> None:
    agent = waiting_agent()
    assert kinds(agent.give(SupervisorDied(ending="x"))) == [fx.StartSupervisor]
    assert kinds(agent.give(GpuMemoryFree())) == [fx.StartRound]


def test_workers_that_failed_to_start_may_have_left_memory_too() -> None:
    """The first of them may have run for a while before the second could not."""
    agent = Agent()
    agent.want(a_round(0))
    failed = WorkerStartFailed(round_id=0, local_rank=1, message="no such program")
    assert kinds(agent.give(failed)) == [fx.WriteFailure, fx.StopWorkers]
    agent.want(a_round(1))
    assert kinds(agent.end(0)) == [fx.AwaitGpuMemory]


def test_the_wait_begins_only_when_nothing_of_the_round_is_alive() -> None:
    agent = Agent()
    agent.run(0)
    agent.want(a_round(1))
    for local_rank in range(2):
        exited = WorkerExited(
            round_id=0, local_rank=local_rank, pid=7, exit_code=-15, is_stopped=True, ended_at=1.0
        )
        assert fx.AwaitGpuMemory not in kinds(agent.give(exited))
    assert kinds(agent.end(0)) == [fx.AwaitGpuMemory]
