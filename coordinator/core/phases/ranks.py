"""Pure. Who sits where in a round.

Global ranks are prefix sums over local world sizes in group rank order, role ranks the same
within a role. Source: torch elastic ``SimpleElasticAgent._assign_worker_ranks`` (2.13.0);
differs: group ranks are sticky here (docs/adr/0005-sticky-ranks.md).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from math import inf
from typing import TypeVar

from drumbeat.coordinator.core.model import AgentIdentity, Seat

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def first_order(agents: Iterable[AgentIdentity]) -> list[AgentIdentity]:
    """Order agents that have no ranks yet: by host name, numbers as numbers, then as given.

    Neighbours get neighbouring ranks, and a job started again on the same hosts the same ones.
    """
    return sorted(agents, key=lambda agent: _natural(agent.host))


def _natural(name: str) -> list[tuple[int, str]]:
    parts = re.findall(r"\d+|\D+", name)
    # Not isdigit: it holds for "²" too, which is no number to int().
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def next_order(
    present: Sequence[AgentIdentity],
    seats: Mapping[str, Seat],
    *,
    agents_max: int,
    block_size: int = 0,
) -> list[AgentIdentity]:
    """Return who takes part in the next round, by group rank; ``seats`` are those of the last.

    Who is beyond ``agents_max`` stands by, and with a ``block_size`` who belongs to no whole block.
    Those who have a rank come before newcomers. Hosts of one place get neighbouring ranks, whatever
    ranks they had; within that who stays keeps its rank. See docs/adr/0059-ranks-by-topology.md.
    """
    before = list(seats.values())
    if block_size:
        present = whole_blocks(present, seats, block_size)
    places = _places([*(seat.agent for seat in before), *present])
    chosen = _chosen(present, before, places, agents_max)
    return _arranged(chosen if before else first_order(chosen), before, places, 0, 0)


def whole_blocks(
    present: Iterable[AgentIdentity], seats: Container[str], block_size: int
) -> list[AgentIdentity]:
    """Return the agents of all blocks that are whole, and of a larger one no more than that."""
    blocks = _grouped(present, lambda agent: agent.block)
    return [
        agent
        for agents in blocks.values()
        if len(agents) >= block_size
        for agent in sorted(agents, key=lambda agent: agent.incarnation not in seats)[:block_size]
    ]


def _places(agents: Sequence[AgentIdentity]) -> dict[str, tuple[str, ...]]:
    """Return where each agent is, by incarnation: the outermost place first, all equally many.

    Agents of a block are where the first of them is.
    """
    of_blocks: dict[str, tuple[str, ...]] = {}
    for agent in agents:
        if agent.block:
            of_blocks.setdefault(agent.block, agent.placement)
    depth = max((len(agent.placement) for agent in agents), default=0)
    if not depth and not of_blocks:
        return dict.fromkeys([agent.incarnation for agent in agents], ())
    places = {}
    for agent in agents:
        placement = of_blocks.get(agent.block, agent.placement)
        padding = ("",) * (depth - len(placement))
        places[agent.incarnation] = (*placement, *padding, *((agent.block,) if of_blocks else ()))
    return places


def _chosen(
    present: Sequence[AgentIdentity],
    before: Sequence[Seat],
    places: Mapping[str, tuple[str, ...]],
    agents_max: int,
) -> list[AgentIdentity]:
    """Return who is seated: who has a rank, who replaces a lost neighbour, then whole places."""
    if len(present) <= agents_max:
        return list(present)
    had = {seat.agent.incarnation: seat.group_rank for seat in before}
    ranked = sorted((a for a in present if a.incarnation in had), key=lambda a: had[a.incarnation])
    new = [agent for agent in present if agent.incarnation not in had]
    room = agents_max - len(ranked)
    if room <= 0:
        return ranked[:agents_max]
    here = {agent.incarnation for agent in ranked}
    lost = [places[i] for i in had if i not in here]
    taken: dict[str, AgentIdentity] = {}
    depths = range(len(places[new[0].incarnation]), 0, -1)
    for depth in depths:
        missing = Counter(place[:depth] for place in lost)
        missing.subtract(places[i][:depth] for i in taken)
        for agent in new:
            place = places[agent.incarnation][:depth]
            if agent.incarnation not in taken and missing[place] > 0 and len(taken) < room:
                missing[place] -= 1
                taken[agent.incarnation] = agent
    left = _grouped((a for a in new if a.incarnation not in taken), lambda a: places[a.incarnation])
    sizes = Counter(place[:depth] for place in left for _ in left[place] for depth in depths)
    in_use, chosen = {places[i] for i in here}, [*ranked, *taken.values()]
    # Places in use first, then large ones, all of an outer place one after another.
    outer_first = depths[::-1]
    for place in sorted(
        left, key=lambda at: (at not in in_use, [(-sizes[at[:d]], at[:d]) for d in outer_first])
    ):
        if len(left[place]) <= agents_max - len(chosen):
            chosen += left.pop(place)
    least = min(left.values(), key=len, default=[])
    return [*chosen, *least[: agents_max - len(chosen)]]


def _arranged(
    agents: Sequence[AgentIdentity],
    before: Sequence[Seat],
    places: Mapping[str, tuple[str, ...]],
    depth: int,
    start: int,
) -> list[AgentIdentity]:
    """Return agents of one place by group rank, from ``start`` on; ``before``: its seats."""
    if not agents or depth == len(places[agents[0].incarnation]):
        ranks = {seat.agent.incarnation: seat.group_rank for seat in before}
        return group_order(agents, ranks, start=start)
    groups = _grouped(agents, lambda agent: places[agent.incarnation][depth])
    seats = _grouped(before, lambda seat: places[seat.agent.incarnation][depth])
    first = {place: min(seat.group_rank for seat in of) for place, of in seats.items()}
    new = sorted((place for place in groups if place not in first), key=_natural)
    order: list[AgentIdentity] = []

    def put(place: str) -> None:
        at = start + len(order)
        order.extend(_arranged(groups[place], seats.get(place, []), places, depth + 1, at))

    for place in sorted(groups.keys() & first.keys(), key=first.__getitem__):
        # A new place gets the ranks that are free here, so that those behind it keep theirs.
        while (free := first[place] - start - len(order)) > 0:
            fitting = [place for place in new if len(groups[place]) <= free]
            if not fitting:
                break
            largest = max(fitting, key=lambda place: len(groups[place]))
            new.remove(largest)
            put(largest)
        put(place)
    for place in new:
        put(place)
    return order


def _grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items by key, in the order given."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def group_order(
    agents: Sequence[AgentIdentity], previous: Mapping[str, int], *, start: int = 0
) -> list[AgentIdentity]:
    """Return the agents by their new group rank, the first of which is ``start``.

    An agent keeps its previous group rank if that is one of the new ones. The others
    fill the holes: first those that had a rank, in its order, then newcomers in the order given.
    """
    ranks = range(start, start + len(agents))
    kept = {r: agent for agent in agents if (r := previous.get(agent.incarnation, -1)) in ranks}
    if len(kept) == len(agents):  # as after most failures
        return [kept[rank] for rank in ranks]
    ranked = sorted(agents, key=lambda agent: previous.get(agent.incarnation, inf))
    fillers = (agent for agent in ranked if previous.get(agent.incarnation, -1) not in ranks)
    return [kept[rank] if rank in kept else next(fillers) for rank in ranks]


def assign_seats(order: Sequence[AgentIdentity]) -> dict[str, Seat]:
    """Return each agent's ranks, given the agents by group rank. Linear in agents."""
    role_sizes: Counter[str] = Counter()
    for agent in order:
        role_sizes[agent.role] += agent.local_world_size
    rank = 0
    role_ranks: Counter[str] = Counter()
    seats: dict[str, Seat] = {}
    for group_rank, agent in enumerate(order):
        role = agent.role
        seats[agent.incarnation] = Seat(
            agent=agent,
            group_rank=group_rank,
            rank_first=rank,
            role_rank_first=role_ranks[role],
            role_world_size=role_sizes[role],
        )
        rank += agent.local_world_size
        role_ranks[role] += agent.local_world_size
    return seats
