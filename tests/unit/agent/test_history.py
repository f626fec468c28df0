"""What an agent tells people: one line an event, said once."""

from __future__ import annotations

import dataclasses

from drumbeat.agent.core.agent import AgentCore
from drumbeat.agent.core.events import (
    DeadlineReached,
    Event,
    PortReserved,
    SessionLost,
    SessionWelcomed,
    SignalReceived,
    SuspendRequested,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStartFailed,
)
from drumbeat.agent.core.model import Assignment, Exit, Standby, Stop
from drumbeat.agent.telemetry.facts import AgentFacts
from drumbeat.agent.telemetry.history import FAILURES_TOLD_MAX, HOLD_S, History, Line
from drumbeat.agent.workers.supervisor.messages import WorkerError
from drumbeat.command.leader_search import Outcome
from drumbeat.coordinator.errors import NotLeader
from tests.support.agents import CONFIG, NOW, PACE, PORT, an_assignment, desired

TERM, INT = 15, 2
REFUSED = (
    "unavailable: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.9:1: refused"
)


class Told:
    """A core, the history of it, and a clock that the test moves; ``lines`` are those said."""

    def __init__(self, *, workers: int = 2, coordinator: str = "head:1") -> None:
        config = dataclasses.replace(CONFIG, nproc_per_node=workers, coordinator=coordinator)
        self.core = AgentCore(config)
        self.now = NOW
        facts = AgentFacts(name="b", pid=1, began_at=self.now)
        self.history = History(self.core, facts, local_world_size=workers, now=self.now)
        effects = self.core.start(now=self.now, master_port=PORT)
        assert self.history.saw(None, effects, now=self.now) == []

    def feed(self, *events: Event) -> list[str]:
        """Hand events over; return what was said, details aside."""
        return [line.text for line in self.lines(*events) if line.level != "debug"]

    def lines(self, *events: Event) -> list[Line]:
        found: list[Line] = []
        for event in events:
            effects = self.core.handle(event, now=self.now)
            found += self.history.saw(event, effects, now=self.now)
        return found

    def wait(self, seconds: float) -> list[str]:
        """Let time pass as the driver does: from deadline to deadline."""
        until = self.now + seconds
        found: list[str] = []
        while True:
            dues = (self.core.next_deadline(), self.history.next_deadline())
            due = min((due for due in dues if due is not None), default=until)
            if due > until:
                self.now = until
                return found
            self.now = max(self.now, due)
            found += self.feed(DeadlineReached())

    def connected(self) -> Told:
        assert self.feed(PortReserved(port=PORT), SessionWelcomed(attempt=1, pace=PACE)) == []
        return self

    def running(self, assignment: Assignment | None = None) -> Told:
        self.connected()
        self.feed(desired(assignment or alone()), WorkersStarted(round_id=0))
        return self


def alone(round_id: int = 0, **fields: object) -> Assignment:
    """Return what an agent gets that has the run for itself."""
    here = {"group_rank": 0, "group_world_size": 1, "rank_first": 0, "world_size": 2}
    return together(round_id, **(here | fields))


def together(round_id: int = 0, **fields: object) -> Assignment:
    """Return what an agent gets that shares the run, with each restart charged."""
    budget = {"restarts_used": fields.get("restart_count", 0), "restarts_max": 3}
    return an_assignment(round_id, **(budget | fields))


def exited(
    local_rank: int, code: int = 1, message: str = "", *, stopped: bool = False
) -> WorkerExited:
    return WorkerExited(
        round_id=0,
        local_rank=local_rank,
        pid=70 + local_rank,
        exit_code=code,
        is_stopped=stopped,
        ended_at=99.0,
        error=WorkerError(message=message) if message else None,
    )


BOOM = exited(1, 1, "ValueError: boom\nmore")


def test_a_restart_reads_as_a_history() -> None:
    told = Told().connected()
    assert told.feed(desired(alone())) == ["round 0: 2 workers on 1 agent"]
    assert told.feed(WorkersStarted(round_id=0), BOOM) == []
    told.now += 0.01
    assert told.feed(
        desired(alone(1, restart_count=1, reason="round 0 failed: a worker on b; restart 1 of 3"))
    ) == ["rank 1 failed: exit code 1, ValueError: boom; restarting, 1 of 3"]
    told.now += 0.2
    assert told.feed(exited(0, -TERM, stopped=True), WorkersStopped(round_id=0)) == [
        "round 1: 2 workers on 1 agent, 210 ms later"
    ]


def test_the_last_failure_says_what_is_left_of_the_budget_and_leaves_the_rest_to_the_report() -> (
    None
):
    for restarts_max, left in (
        (0, "no restarts are allowed (--max-restarts)"),
        (3, "no restart is left of 3"),
    ):
        assigned = alone(restart_count=restarts_max, restarts_max=restarts_max)
        told = Told().running(assigned)
        assert told.feed(BOOM, desired(Stop(reason="round 0 failed: a worker on b"))) == [
            f"rank 1 failed: exit code 1, ValueError: boom; {left}"
        ]
        verdict = Exit(is_success=False, reason="round 0 failed")
        assert told.feed(desired(verdict), WorkersStopped(round_id=0)) == []


def test_a_round_tells_where_this_host_is_in_it_and_has_all_the_rest_as_details() -> None:
    told = Told().connected()
    (line,) = [line for line in told.lines(desired(together())) if line.level == "info"]
    assert line.text == "round 0: 4 workers on 2 agents, ranks 2-3 here, master 10.0.0.1:29500"
    assert line.details == {
        "run.round": 0,
        "restart_count": 0,
        "group_rank": 1,
        "ranks": "2-3",
        "world_size": 4,
        "role_ranks": "2-3",
        "role_world_size": 4,
        "master_addr": "10.0.0.1",
        "master_port": 29500,
        "reason": "all are there",
    }


def test_a_failure_elsewhere_is_told_with_the_coordinators_words() -> None:
    told = Told().running(together())
    why = "round 0 failed: rank 0 on a (exit code 1, OSError: gone); restart 1 of 3"
    assert told.feed(desired(together(1, restart_count=1, reason=why))) == [f"restarting: {why}"]


def test_a_victim_that_fails_by_itself_does_not_hide_the_cause_elsewhere() -> None:
    told = Told().running(together())
    why = "round 0 failed: rank 0 on a (SIGSEGV); restart 1 of 3"
    assert told.feed(BOOM, desired(together(1, restart_count=1, reason=why))) == [
        "rank 3 failed: exit code 1, ValueError: boom; restarting, 1 of 3",
        f"restarting: {why}",
    ]


def test_a_failure_does_not_wait_for_ever_for_a_decision() -> None:
    told = Told().running()
    assert told.feed(BOOM) == []
    assert told.wait(HOLD_S) == ["rank 1 failed: exit code 1, ValueError: boom"]
    assert told.feed(desired(alone(1, restart_count=1))) == ["restarting, 1 of 3"]


def test_workers_that_the_agent_stopped_are_details() -> None:
    told = Told().running()
    lines = told.lines(BOOM, exited(0, -TERM, stopped=True))
    assert [(line.level, line.text) for line in lines] == [("debug", "rank 0 was stopped: SIGTERM")]


def test_many_failures_at_once_are_a_few_lines() -> None:
    told = Told(workers=8).running(alone(world_size=8))
    told.feed(*(exited(rank) for rank in range(8)))
    lines = told.wait(HOLD_S)
    assert len(lines) == FAILURES_TOLD_MAX
    assert lines[0] == "rank 0 failed: exit code 1"
    assert lines[-1] == "rank 3 failed: exit code 1; 4 more workers here failed too"


def test_a_worker_that_could_not_be_started_is_no_exit_code() -> None:
    told = Told().connected()
    told.feed(desired(alone()))
    failed = WorkerStartFailed(round_id=0, local_rank=0, message="cannot start ./train: not found")
    told.feed(failed)
    assert told.wait(HOLD_S) == ["rank 0 could not be started: cannot start ./train: not found"]


def test_success_is_one_line() -> None:
    told = Told().running()
    told.now += 12
    verdict = desired(Exit(is_success=True, reason="all workers succeeded"))
    assert told.feed(exited(0, 0), exited(1, 0), verdict, WorkersStopped(round_id=0)) == [
        "run succeeded after 12 s: all workers succeeded"
    ]


def test_an_agent_that_is_released_says_for_whom_it_does_not_wait() -> None:
    told = Told().running()
    why = "exit barrier timeout: 1 agent not done after 60 s: b (group rank 1)"
    released = desired(Exit(is_success=True, reason=why, is_released=True))
    assert told.feed(exited(0, 0), exited(1, 0), released) == [
        f"done, not waiting for the others any more: {why}"
    ]


def test_ctrl_z_is_answered() -> None:
    (line,) = Told().running().feed(SuspendRequested())
    assert line.startswith("not suspended: ")
    assert "Ctrl-C ends it" in line


# Waits.


def test_without_a_coordinator_it_says_for_whom_it_waits_and_how_long_yet() -> None:
    told = Told()
    assert told.feed(SessionLost(attempt=1, reason=REFUSED)) == []
    assert told.wait(2) == [
        (
            "waiting for the coordinator at head:1 (refused), up to 9 min 58 s more "
            "(--join-timeout); Ctrl-C ends this agent"
        )
    ]
    assert [len(told.wait(seconds)) for seconds in (7.9, 0.2, 20, 30, 60, 180)] == [
        *(0, 1, 1, 1, 1, 1)
    ]
    assert told.feed(SessionWelcomed(attempt=2, pace=PACE)) == [
        "the coordinator answered after 5 min"
    ]


def test_a_coordinator_that_answers_nothing_is_told_as_well() -> None:
    (line,) = Told().wait(2)
    assert line.startswith("waiting for the coordinator at head:1 (no answer), up to 9 min 58 s")


def test_the_loss_and_the_return_of_the_coordinator_are_told_at_once() -> None:
    told = Told().running()
    assert told.feed(SessionLost(attempt=1, reason="connection reset")) == [
        "coordinator lost: connection reset"
    ]
    assert told.wait(2) == [
        (
            "waiting for the coordinator at head:1 (connection reset), up to 58 s more "
            "(--coordinator-grace); 2 workers go on here; Ctrl-C stops them and ends this agent"
        )
    ]
    told.now += 1
    assert told.feed(SessionWelcomed(attempt=2, pace=PACE)) == ["the coordinator is back after 3 s"]


def not_leading(attempt: int, leader: str = "", reason: str = "") -> SessionLost:
    refused, outcome = str(NotLeader(leader, reason)), Outcome.NOT_LEADER
    return SessionLost(attempt=attempt, reason=refused, outcome=outcome, leader=leader)


def test_of_several_coordinators_it_says_which_one_leads_now_and_why_none_does() -> None:
    told = Told(coordinator="a:1,b:1").running()
    silent = SessionLost(attempt=1, reason="ping timeout", outcome=Outcome.SILENT)
    assert told.feed(silent) == ["coordinator lost: ping timeout; looking for the next leader"]
    away = "etcd has not answered for 12 s"
    assert told.feed(not_leading(2, reason=away), not_leading(3, reason=away)) == []
    (line,) = told.wait(2)
    assert line == (
        f"no coordinator leads: {away} (b:1 says so); a:1: ping timeout; waiting up to 58 s more "
        "(--coordinator-grace); 2 workers go on here; Ctrl-C stops them and ends this agent"
    )
    assert told.feed(SessionLost(attempt=4, reason=REFUSED), not_leading(5, leader="c:1")) == []
    (found,) = told.lines(SessionWelcomed(attempt=6, pace=PACE, term=7))
    assert found.text == "the coordinator at c:1 leads now, in term 7; found after 2 s"
    assert found.details == {"coordinator": "c:1", "term": 7}
    assert told.feed(not_leading(6, leader="a:1")) == ["coordinator replaced: a:1 leads by now"]
    assert told.feed(SessionWelcomed(attempt=7, pace=PACE, term=8)) == [
        "the coordinator at a:1 leads now, in term 8; found after 0 s"
    ]
    told.feed(SessionLost(attempt=7, reason="reset", outcome=Outcome.BROKEN))
    assert told.feed(SessionWelcomed(attempt=8, pace=PACE, term=8)) == [
        "the coordinator is back after 0 s"
    ]


def test_a_search_is_told_with_what_each_address_says() -> None:
    told = Told(coordinator="a:1,b:1")
    told.feed(SessionLost(attempt=1, reason=REFUSED), not_leading(2, leader="a:1"))
    (line,) = told.wait(2)
    assert line.startswith(
        "looking for the coordinator that leads: a:1: refused; b:1: this coordinator does not "
        "lead, a:1 does; waiting up to 9 min 58 s more (--join-timeout); Ctrl-C"
    )


def test_a_coordinator_that_stays_away_is_waited_for_aloud_until_the_end() -> None:
    told = Told().running()
    told.feed(SessionLost(attempt=1, reason="reset"))
    lines = told.wait(CONFIG.grace_s)
    assert len(lines) == 3


def test_a_failure_without_a_coordinator_is_told_at_once() -> None:
    told = Told().running()
    told.feed(SessionLost(attempt=1, reason="reset"))
    assert told.feed(BOOM) == ["rank 1 failed: exit code 1, ValueError: boom"]


def test_a_wait_for_other_agents_says_for_how_many_and_how_long() -> None:
    told = Told().connected()
    waiting = Standby(reason="1 of 2 agents, waiting for 1", time_left_s=600.0)
    assert told.feed(desired(waiting)) == []
    assert told.wait(2) == [
        "standing by: 1 of 2 agents, waiting for 1, up to 9 min 58 s more; Ctrl-C ends this agent"
    ]


def test_a_coordinator_that_assigns_nothing_after_its_welcome_is_told() -> None:
    told = Told().connected()
    assert told.wait(2) == ["standing by: not heard of the coordinator yet; Ctrl-C ends this agent"]


def test_a_worker_that_ignores_its_signal_is_waited_for_aloud() -> None:
    told = Told().running()
    told.feed(BOOM, desired(Stop(reason="round 0 failed: a worker on b")))
    assert told.wait(2) == [
        (
            "waiting for 1 worker to end, SIGKILL in 28 s; "
            "Ctrl-C ends this agent, a second one kills at once"
        )
    ]


def test_ctrl_c_says_what_follows_and_what_a_second_one_does() -> None:
    told = Told().running()
    assert told.feed(SignalReceived(signum=INT)) == [
        "Ctrl-C: stopping 2 workers, SIGKILL in 30 s; Ctrl-C again kills at once"
    ]
    assert told.wait(2) == [
        "waiting for 2 workers to end, SIGKILL in 28 s; Ctrl-C again kills at once"
    ]
    assert told.feed(SignalReceived(signum=INT)) == ["Ctrl-C again: killing the workers at once"]
    assert told.wait(2) == [
        "waiting for 2 workers to end that got SIGKILL; the kernel holds processes of theirs"
    ]


def test_a_signal_without_workers_ends_at_once() -> None:
    assert Told().connected().feed(SignalReceived(signum=TERM)) == ["SIGTERM: leaving the run"]


def test_a_host_that_is_done_says_that_it_waits_for_the_others() -> None:
    told = Told().running(together())
    told.feed(exited(0, 0), exited(1, 0))
    (line,) = told.wait(2)
    assert line.startswith("all workers here succeeded; waiting for those of the other agents")


def test_a_run_that_trains_says_nothing() -> None:
    assert Told().running().wait(3600) == []


def test_restarts_that_were_given_back_are_counted_as_the_coordinator_does() -> None:
    told = Told().running()
    why = "round 0 failed: rank 1 on b (exit code 1); restart 2 of 3"
    assert told.feed(BOOM, desired(alone(1, restart_count=5, restarts_used=2, reason=why))) == [
        "rank 1 failed: exit code 1, ValueError: boom; restarting, 2 of 3"
    ]
