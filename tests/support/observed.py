"""An agent's core with an observer, and all that was told of it."""

from typing import Any

from drumbeat.agent.core import events as ev
from drumbeat.agent.core.agent import AgentCore
from drumbeat.agent.core.effects import Effect, StartRound
from drumbeat.agent.core.model import Exit
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.telemetry import Event, Item, Metric
from drumbeat.agent.telemetry.facts import AgentFacts
from drumbeat.agent.telemetry.observer import Observer
from drumbeat.model import Assignment, Pace, Standby

START = 100.0
EPOCH_S = 1_700_000_000.0


class Watched:
    """A core with two workers, and all that was told of it."""

    def __init__(self, **fields: Any) -> None:
        given: dict[str, Any] = {
            "coordinator": "head:1",
            "run_id": "r",
            "role": "trainer",
            "nproc_per_node": 2,
            "max_restarts": 3,
            "program": Program("script", "a/train.py"),
        }
        config = AgentConfig(**(given | fields))
        self.now = START
        self.items: list[Item] = []
        self.rounds: list[int] = []
        self.latest = -1
        self.attempt = 1
        self.core = AgentCore(config)
        self.facts = AgentFacts("h", 1, self.now, config.nproc_per_node)
        self.observer = Observer(config, self.facts, host="h", epoch_s=EPOCH_S)
        effects = self.core.start(now=self.now)
        self._note(None, effects)
        self.attempt = next(e.attempt for e in effects if hasattr(e, "attempt"))
        self.see(
            ev.SessionWelcomed(
                attempt=self.attempt, pace=Pace(heartbeat_interval_s=1, reconnect_delay_max_s=1)
            )
        )

    def see(self, event: ev.Event, after_s: float = 0.0) -> None:
        self.now += after_s
        effects = self.core.handle(event, now=self.now)
        self.rounds += [e.assignment.round_id for e in effects if isinstance(e, StartRound)]
        self._note(event, effects)

    def _note(self, event: ev.Event | None, effects: list[Effect]) -> None:
        for fact in self.facts.saw(event, effects, now=self.now):
            self.items += self.observer.items(fact, now=self.now)

    def want(self, state: Standby | Assignment | Exit, after_s: float = 0.0) -> None:
        event = ev.DirectiveReceived(attempt=self.attempt, state=state)
        self.see(event, after_s)

    def run(self, round_id: int = 0, restarts: int = 0, after_s: float = 0.0) -> None:
        """Assign a round and let its workers, pids 50 and 51, start half a second later."""
        self.want(a_round(round_id, restarts), after_s)
        self.started(round_id)

    def started(self, round_id: int = 0) -> None:
        self.see(ev.WorkersStarted(round_id=round_id, pids={0: 50, 1: 51}), 0.5)

    def exit(self, local_rank: int, code: int = 0, round_id: int = 0, **fields: Any) -> None:
        given: dict[str, Any] = {"is_stopped": False, "ended_at": self.now, "pid": 50 + local_rank}
        self.see(
            ev.WorkerExited(
                round_id=round_id, local_rank=local_rank, exit_code=code, **(given | fields)
            )
        )

    def gone(self, round_id: int = 0, after_s: float = 0.25) -> None:
        self.see(ev.WorkersStopped(round_id=round_id), after_s)

    def end(self, *, is_success: bool, reason: str = "all done") -> None:
        self.want(Exit(is_success=is_success, reason=reason))

    def events(self) -> list[Event]:
        return [item for item in self.items if isinstance(item, Event)]

    def statuses(self) -> list[tuple[Any, Any, Any]]:
        """Round, local rank and state of every worker told of."""
        told = [event.metadata for event in self.events() if event.source == "WORKER"]
        return [(m["round_id"], m["local_rank"], m["state"]) for m in told]

    def metrics(self, name: str) -> list[float]:
        return [i.value for i in self.items if isinstance(i, Metric) and i.name == name]


def a_round(round_id: int = 0, restarts: int = 0) -> Assignment:
    return Assignment(
        round_id=round_id,
        restart_count=restarts,
        restarts_used=restarts,
        restarts_max=3,
        group_rank=1,
        group_world_size=3,
        rank_first=4,
        world_size=8,
        role_rank_first=2,
        role_world_size=6,
        master_addr="m",
        master_port=1,
        reason="met",
    )
