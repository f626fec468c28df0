"""Pure. One question for the stacks of a round's workers: who is asked, and who has answered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from drumbeat.coordinator.core.model import Seat
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.model import GroupCalls

ANSWERS_BYTES_MAX = 32 * 1024 * 1024  # of one question; stacks that come then are left out


class AskedAgent(Struct, frozen=True, kw_only=True):
    """One agent of the round; ``ranks`` of its workers that are asked for, by local rank."""

    incarnation: str
    name: str
    host: str
    ranks: Mapping[int, int]


class WorkerStacks(Struct, frozen=True, kw_only=True):
    """What is known of one worker: its stacks, or why there are none."""

    local_rank: int
    rank: int = 0
    pid: int = 0
    stacks: str = ""
    problem: str = ""
    groups: tuple[GroupCalls, ...] | None = None  # None: it does not tell its process groups
    # Only in evidence of a hang.
    progress: WorkerProgress | None = None
    source_line: str = ""  # the text of the innermost call's line, if its agent can read it
    is_stopped: bool = False
    moved_age_s: float | None = None  # how long ago one of its process groups moved


class AgentStacks(Struct, frozen=True, kw_only=True):
    """What one agent has said, or what is said in its place."""

    agent: AskedAgent
    workers: tuple[WorkerStacks, ...]
    is_reached: bool = True  # it answered, or is connected and can't


@dataclass(slots=True)
class StackGathering:
    """Each agent is answered for once. ``waiting`` are those that have not answered yet."""

    waiting: dict[str, AskedAgent]
    bytes_max: int = ANSWERS_BYTES_MAX
    counts_once: bool = False  # equal stacks, of which one text is kept
    _taken: int = field(default=0, init=False)
    _counted: set[str] = field(default_factory=set, init=False)

    def answered(self, incarnation: str, reported: Iterable[WorkerStacks]) -> AgentStacks | None:
        """Take an agent's answer in; ``None`` if it is not waited for.

        Of each worker asked for there is one entry in what is returned, and none of any other.
        """
        if (agent := self.waiting.pop(incarnation, None)) is None:
            return None
        by_local_rank = {worker.local_rank: worker for worker in reported}
        none = "its agent said nothing of it"
        workers = [
            self._with_room(
                replace(by_local_rank.get(at, WorkerStacks(local_rank=at, problem=none)), rank=rank)
            )
            for at, rank in agent.ranks.items()
        ]
        return AgentStacks(agent=agent, workers=tuple(workers))

    def given_up(
        self, incarnation: str, why: str, *, is_reached: bool = False
    ) -> AgentStacks | None:
        """Say why there are no stacks of an agent's workers; ``None`` if it has answered."""
        agent = self.waiting.get(incarnation)
        ranks = agent.ranks if agent is not None else ()
        none = [WorkerStacks(local_rank=at, problem=why) for at in ranks]
        answer = self.answered(incarnation, none)
        return None if answer is None else replace(answer, is_reached=is_reached)

    def _with_room(self, worker: WorkerStacks) -> WorkerStacks:
        if self.counts_once and worker.stacks in self._counted:
            return worker
        size = len(worker.stacks.encode())
        if self._taken + size > self.bytes_max:
            why = f"its stacks were left out: those of the others have {self.bytes_max} bytes"
            return replace(worker, stacks="", problem=why)
        self._taken += size
        if self.counts_once:
            self._counted.add(worker.stacks)
        return worker


def asked_of(seats: Iterable[Seat], ranks: Collection[int]) -> dict[str, AskedAgent]:
    """Return whom to ask for the workers of these ranks, or of all ranks if there are none here."""
    wanted = frozenset(ranks)
    agents: dict[str, AskedAgent] = {}
    for seat in seats:
        who, first = seat.agent, seat.rank_first
        local_ranks = range(who.local_world_size)
        own = {i: first + i for i in local_ranks if not wanted or first + i in wanted}
        if own:
            agents[who.incarnation] = AskedAgent(
                incarnation=who.incarnation, name=who.name, host=who.host, ranks=own
            )
    return agents
