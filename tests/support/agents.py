"""Values for tests of the agent's core, short to write."""

from __future__ import annotations

from typing import Any

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.agent import AgentCore
from drumbeat.agent.core.events import (
    DirectiveReceived,
    Event,
    PortReserved,
    SessionWelcomed,
    WorkersStarted,
)
from drumbeat.agent.core.model import Beat, Exit
from drumbeat.agent.session.convert import Identity
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.model import Assignment, GroupState, Pace, Standby, Stop

PACE = Pace(heartbeat_interval_s=1.0, reconnect_delay_max_s=1.0)
PORT = 4001
WORKERS = 2
CONFIG = AgentConfig(
    coordinator="head:1",
    run_id="job",
    program=Program("program", "true"),
    nproc_per_node=WORKERS,
    join_timeout=600.0,
    coordinator_grace=60.0,
    shutdown_timeout=30.0,
)
IDENTITY = Identity(incarnation="i", host="h")
NOW = 100.0


def an_assignment(round_id: int = 0, **fields: Any) -> Assignment:
    """Return group rank 1 of 2 agents with 2 workers each."""
    given: dict[str, Any] = {
        "round_id": round_id,
        "restart_count": 0,
        "group_rank": 1,
        "group_world_size": 2,
        "rank_first": 2,
        "world_size": 4,
        "role_rank_first": 2,
        "role_world_size": 4,
        "master_addr": "10.0.0.1",
        "master_port": 29500,
        "reason": "all are there",
    }
    return Assignment(**(given | fields))


def a_beat(state: GroupState = GroupState.IDLE, round_id: int | None = None, **more: Any) -> Beat:
    """Return what the agent says of itself; by default it holds one port and no workers."""
    given: dict[str, Any] = {"master_port": PORT, "failures_written": 0, "workers_alive": 0}
    return Beat(state=state, round_id=round_id, **(given | more))


def desired(
    state: Assignment | Standby | Stop | Exit, *, attempt: int = 1, spent: int = 0
) -> DirectiveReceived:
    """Return the coordinator's word."""
    return DirectiveReceived(attempt=attempt, state=state, master_port_spent=spent)


class AgentStory:
    """A core with a clock that the test moves."""

    def __init__(self, config: AgentConfig = CONFIG) -> None:
        self.core = AgentCore(config)
        self.now = NOW
        self.first = self.core.start(now=self.now)

    def feed(self, *events: Event, after_s: float = 0.0) -> list[fx.Effect]:
        """Hand events over; return all effects."""
        effects: list[fx.Effect] = []
        self.now += after_s
        for event in events:
            effects += self.core.handle(event, now=self.now)
            self.core.check_invariants()
        return effects

    def connected(self) -> AgentStory:
        """Hold a port and a session."""
        self.feed(PortReserved(port=PORT), SessionWelcomed(attempt=1, pace=PACE))
        return self

    def running(self, round_id: int = 0) -> AgentStory:
        """Hold the workers of a round."""
        self.connected()
        self.feed(desired(an_assignment(round_id)), WorkersStarted(round_id=round_id))
        return self


def without(effects: list[fx.Effect], *kinds: type) -> list[fx.Effect]:
    """Return the effects but for these kinds."""
    return [effect for effect in effects if not isinstance(effect, kinds)]


def of(effects: list[fx.Effect], kind: type) -> list[Any]:
    """Return the effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]
