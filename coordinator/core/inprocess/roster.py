"""Pure. Whose workers take part in a round's iterations, with which ranks, and their faults.

A host is its agent's seat in the round, a worker its rank at the start of the round.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from drumbeat import inprocess as values
from drumbeat.coordinator.core.inprocess.records import (
    InprocessSpec,
    IterationPhase,
    IterationState,
)
from drumbeat.coordinator.core.model import Round, Seat
from drumbeat.coordinator.core.phases.rendezvous import Wait
from drumbeat.coordinator.core.run.reasons import listed

# Of a fault's text in a reason; the whole is in its failure record.
FAULT_CHARACTERS_MAX = 300
# Faults that a reason names; the others are a number.
FAULTS_NAMED_MAX = 4


class Fault(NamedTuple):
    """What ended an iteration for one worker, or for several of a host at once."""

    who: str
    kind: values.InterruptionKind
    message: str
    agent: str
    rank: int | None  # in the iteration, if it had one

    @property
    def is_exit(self) -> bool:
        """Whether the worker has ended having failed at nothing."""
        return self.kind is values.InterruptionKind.EXITED

    def __str__(self) -> str:
        return f"{self.who}: {self.kind}{f': {self.message}' if self.message else ''}"


def faults_named(faults: Collection[Fault]) -> str:
    """Say in one line what went wrong with the first few."""
    return listed(map(str, faults), len(faults), most=FAULTS_NAMED_MAX, sep="; ")


@dataclass(slots=True)
class Barrier:
    """Hosts that have yet to do something; of those ``ahead``, some workers have."""

    missing: dict[str, Seat] = field(default_factory=dict)
    ahead: dict[str, Collection[int]] = field(default_factory=dict)
    since: float | None = None  # when the first one did it
    # The sentence on those that are missing, and when it was made.
    wait: Wait | None = None
    worded_at: float = 0.0


@dataclass(slots=True)
class Entry(Barrier):
    """The barrier of an iteration that has not begun."""

    spec: tuple[InprocessSpec, str] | None = None  # what the first host brought, and its name
    early: tuple[int, str] | None = None  # the iteration, and why it is over before it begins
    is_deserted: bool = False  # a host has lost all of its workers in it


class Roster:
    """Hosts and workers of a round: ``live`` hosts have workers that are not ``gone``.

    ``ranks`` are those of the latest iteration by worker, -1 if it had none.
    """

    def __init__(self, current: Round, order: Sequence[int], active_world_size: int) -> None:
        self.hosts = current.seats
        self.live = dict(self.hosts)
        self.gone: set[int] = set()
        self.ranks = [-1] * current.world_size
        self._all = list(self.hosts.values())
        agents = [seat.agent for seat in self._all]
        self._alive = {agent.incarnation: agent.local_world_size for agent in agents}
        # By worker; empty if all have the same, so that role ranks are ranks.
        self._roles: list[str] = []
        if len({agent.role for agent in agents}) > 1:
            self._roles = [agent.role for agent in agents for _ in range(agent.local_world_size)]
        # Rank among those of its role, and how many these are, by worker.
        self._role_seats: dict[int, tuple[int, int]] = {}
        if order:
            self.seat(order, active_world_size)

    def seat(self, order: Sequence[int], active_world_size: int) -> None:
        """Follow a new order: who is not in it takes no part any more. Linear in workers."""
        self.ranks = [-1] * len(self.ranks)
        for rank, worker in enumerate(order):
            self.ranks[worker] = rank
        if len(order) + len(self.gone) < len(self.ranks):
            for worker, rank in enumerate(self.ranks):
                if rank < 0 and worker not in self.gone:
                    self.remove(self.host_of(worker), worker)
        if not self._roles:
            return
        actives = Counter(self._roles[worker] for worker in order[:active_world_size])
        everyone = Counter(self._roles[worker] for worker in order)
        seen: Counter[str] = Counter()
        for rank, worker in enumerate(order):
            role = self._roles[worker]
            sizes = actives if rank < active_world_size else everyone
            self._role_seats[worker] = seen[role], sizes[role]
            seen[role] += 1

    def remove(self, host: Seat, worker: int) -> None:
        """Let a worker, who still takes part, take part no more."""
        self.gone.add(worker)
        self._alive[host.agent.incarnation] -= 1
        if not self._alive[host.agent.incarnation]:
            del self.live[host.agent.incarnation]

    def left_of(self, host: Seat) -> list[int]:
        """Return the workers of a host that still take part."""
        end = host.rank_first + host.agent.local_world_size
        return [worker for worker in range(host.rank_first, end) if worker not in self.gone]

    def host_of(self, worker: int) -> Seat:
        """Return whose worker it is."""
        return self._all[bisect_right(self._all, worker, key=lambda host: host.rank_first) - 1]

    def ranks_of(self, host: Seat) -> list[int]:
        """Return the ranks of a host's workers in the latest iteration, -1 for none."""
        return self.ranks[host.rank_first : host.rank_first + host.agent.local_world_size]

    def rank_of(self, incarnation: str, local_rank: int) -> int | None:
        """Return a worker's rank in the latest iteration, ``None`` if it had none."""
        host = self.hosts.get(incarnation)
        ranks = self.ranks_of(host)[local_rank:] if host is not None else ()
        return ranks[0] if ranks and ranks[0] >= 0 else None

    def directive_for(
        self, incarnation: str, state: IterationState
    ) -> values.InprocessDirective | None:
        """Return what a host's workers shall do; ``None`` before the first iteration.

        Follows from the durable state alone. Linear in the host's workers.
        """
        host = self.hosts.get(incarnation)
        if host is None or state.phase is IterationPhase.NONE:
            return None
        kind: values.DirectiveKind = values.IterationComplete()
        if state.phase is IterationPhase.RUNNING:
            kind = values.IterationBegin(
                seats=self.seats_of(host, state),
                world_size=len(state.order),
                active_world_size=state.active_world_size,
                master_addr=state.master_addr,
                master_port=state.master_port,
                has_store=self.host_of(state.order[0]).agent.has_store,
            )
        elif state.phase is IterationPhase.INTERRUPTED:
            kind = values.IterationInterrupt(reason=state.reason)
        ranks = self.ranks_of(host) if state.order else []
        return values.InprocessDirective(
            round_id=state.round_id,
            iteration=state.iteration,
            kind=kind,
            terminated=tuple(i for i, rank in enumerate(ranks) if rank < 0) if -1 in ranks else (),
        )

    def seats_of(self, host: Seat, state: IterationState) -> tuple[values.InprocessSeat, ...]:
        """Return the places of a host's workers in the latest iteration."""
        seats, active, world = [], state.active_world_size, len(state.order)
        for local_rank, rank in enumerate(self.ranks_of(host)):
            if rank >= 0:
                active_rank = rank if rank < active else None
                role = self._role_seats.get(host.rank_first + local_rank)
                role_rank, role_size = role or (rank, world if active_rank is None else active)
                seats.append(
                    values.InprocessSeat(local_rank, rank, active_rank, role_rank, role_size)
                )
        return tuple(seats)

    def fault_of(
        self, worker: int, kind: values.InterruptionKind, message: str, *, workers: int = 1
    ) -> Fault:
        """Return a fault of a worker, and of ``workers`` of its host in all."""
        who = f"rank {self._rank_of(worker)}" if workers == 1 else f"{workers} workers"
        first = message[:FAULT_CHARACTERS_MAX].partition("\n")[0]
        agent, rank = self.host_of(worker).agent.name, self.ranks[worker]
        return Fault(f"{who} on {agent}", kind, first, agent, rank if rank >= 0 else None)

    def late(self, barrier: Barrier) -> Iterator[str]:
        """Name the hosts that are missing; of one with workers ``ahead`` the others."""
        for incarnation, host in barrier.missing.items():
            name, ahead = host.agent.name, barrier.ahead.get(incarnation)
            late = [w for w in self.left_of(host) if ahead and w - host.rank_first not in ahead]
            ranks = ", ".join(str(self._rank_of(worker)) for worker in late)
            yield f"rank{'s' * (len(late) > 1)} {ranks} on {name}" if late else name

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in workers; for tests."""
        for incarnation, host in self.hosts.items():
            alive = len(self.left_of(host))
            assert self._alive[incarnation] == alive, f"{alive} workers left of {incarnation}"
            assert (incarnation in self.live) == (alive > 0), "who is live is not noted"

    def _rank_of(self, worker: int) -> int:
        """Return a worker's rank in the latest iteration, or at the start of the round."""
        return worker if self.ranks[worker] < 0 else self.ranks[worker]
