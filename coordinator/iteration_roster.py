"""Pure. Whose workers take part in a round's iterations, and with which ranks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coordinator.iteration_model import (
    FAULT_CHARACTERS_MAX,
    Fault,
    InprocessSeat,
    Interruption,
    InterruptionKind,
)
from coordinator.model import Round


@dataclass(slots=True, eq=False, kw_only=True)
class Host:
    """One agent's workers; those from ``first`` on, of which ``alive`` still take part."""

    incarnation: str
    name: str
    first: int
    size: int
    alive: int


class Roster:
    """Hosts and workers of a round; a worker is its rank at the start of the round.

    ``live`` are hosts with workers that still take part, ``gone`` the workers that
    do not, ``ranks`` those of the latest iteration by worker, -1 if it had none.
    """

    def __init__(self, current: Round, order: Sequence[int]) -> None:
        sizes = {i: seat.agent.local_world_size for i, seat in current.seats.items()}
        self._all = [
            Host(
                incarnation=i,
                name=seat.agent.name,
                first=seat.rank_first,
                size=sizes[i],
                alive=sizes[i],
            )
            for i, seat in current.seats.items()
        ]
        self._firsts = [host.first for host in self._all]
        self.hosts = {host.incarnation: host for host in self._all}
        self.live = dict(self.hosts)
        self.gone: set[int] = set()
        self.ranks = [-1] * current.world_size
        if order:
            self.seat(order)

    def seat(self, order: Sequence[int]) -> None:
        """Follow a new order: who is not in it takes no part any more. Linear in workers."""
        self.ranks = [-1] * len(self.ranks)
        for rank, worker in enumerate(order):
            self.ranks[worker] = rank
        for worker, rank in enumerate(self.ranks):
            if rank < 0 and worker not in self.gone:
                self.remove(self.host_of(worker), worker)

    def remove(self, host: Host, worker: int) -> None:
        """Let a worker, who still takes part, take part no more."""
        self.gone.add(worker)
        host.alive -= 1
        if not host.alive:
            del self.live[host.incarnation]

    def left_of(self, host: Host) -> list[int]:
        """Return the workers of a host that still take part."""
        return [w for w in range(host.first, host.first + host.size) if w not in self.gone]

    def host_of(self, worker: int) -> Host:
        """Return whose worker it is."""
        return self._all[bisect_right(self._firsts, worker) - 1]

    def rank_of(self, worker: int) -> int:
        """Return a worker's rank in the latest iteration, or at the start of the round."""
        return worker if self.ranks[worker] < 0 else self.ranks[worker]

    def seats_of(self, host: Host, active_world_size: int) -> tuple[InprocessSeat, ...]:
        """Return the places of a host's workers in the latest iteration."""
        ranks = self.ranks[host.first : host.first + host.size]
        return tuple(
            InprocessSeat(
                local_rank=local_rank,
                rank=rank,
                active_rank=rank if rank < active_world_size else None,
            )
            for local_rank, rank in enumerate(ranks)
            if rank >= 0
        )

    def without_seat(self, host: Host) -> tuple[int, ...]:
        """Return the local ranks that had no place in the latest iteration."""
        ranks = self.ranks[host.first : host.first + host.size]
        if -1 not in ranks:
            return ()
        return tuple(local_rank for local_rank, rank in enumerate(ranks) if rank < 0)

    def fault(self, host: Host, interruption: Interruption) -> Fault:
        """Return what a host reports of one of its workers, as others see it."""
        worker = host.first + interruption.local_rank
        return self.fault_of(worker, interruption.kind, interruption.message)

    def fault_of(
        self, worker: int, kind: InterruptionKind, message: str, *, workers: int = 1
    ) -> Fault:
        """Return a fault of a worker, and of ``workers`` of its host in all."""
        return Fault(
            rank=self.rank_of(worker),
            host=self.host_of(worker).name,
            kind=kind,
            message=message[:FAULT_CHARACTERS_MAX],
            workers=workers,
        )

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in workers; for tests."""
        for host in self._all:
            alive = len(self.left_of(host))
            assert host.alive == alive, f"{host.name} has {alive} workers left"
            assert (host.incarnation in self.live) == (alive > 0), "who is live is not noted"


def names(hosts: Mapping[str, Host]) -> Iterator[str]:
    """Return what people call these hosts, as far as it is looked at."""
    return (host.name for host in hosts.values())
