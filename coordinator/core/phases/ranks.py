"""Pure. Who sits where in a round.

Global ranks are prefix sums over local world sizes in group rank order, role ranks the same
within a role. Source: torch elastic ``SimpleElasticAgent._assign_worker_ranks`` (2.13.0);
differs: group ranks are sticky here (docs/adr/0005-sticky-ranks.md).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from drumbeat.coordinator.core.model import AgentIdentity, Seat


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
    present: Sequence[AgentIdentity], previous: Mapping[str, int], *, agents_max: int
) -> list[AgentIdentity]:
    """Return who takes part in the next round, by group rank.

    Those who have a rank come before newcomers, newcomers in the order given;
    who is beyond ``agents_max`` stands by.
    """
    ranked = sorted(present, key=lambda agent: previous.get(agent.incarnation, inf))
    chosen = ranked[:agents_max]
    return group_order(chosen, previous) if previous else first_order(chosen)


def group_order(
    agents: Sequence[AgentIdentity], previous: Mapping[str, int]
) -> list[AgentIdentity]:
    """Return the agents by their new group rank.

    An agent keeps its previous group rank if that is below the number of agents. The others
    fill the holes: first those that had a rank, in its order, then newcomers in the order given.
    """
    size = len(agents)
    ranked = sorted(agents, key=lambda agent: previous.get(agent.incarnation, inf))
    kept = {previous[a.incarnation]: a for a in ranked if previous.get(a.incarnation, size) < size}
    fillers = (agent for agent in ranked if previous.get(agent.incarnation, size) >= size)
    return [kept[rank] if rank in kept else next(fillers) for rank in range(size)]


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
