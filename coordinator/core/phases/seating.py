"""Pure. Who can be seated: nobody whom the preflight left out, and of blocks only whole ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from drumbeat.coordinator.core.membership.leases import Membership
from drumbeat.coordinator.core.model import AgentIdentity
from drumbeat.coordinator.core.phases.rendezvous import Rendezvous
from drumbeat.coordinator.core.run import reasons
from drumbeat.coordinator.core.run.reasons import listed
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.model import HealthState

BLOCKS_SHOWN_MAX = 3  # that wait for an agent; of more the number is told


def candidates(state: RunState, members: Membership) -> list[AgentIdentity]:
    """Return who is present and not left out, in order of arrival. Linear in members."""
    present, left = members.is_present, state.left_out
    return [agent for i, agent in state.members.items() if present(i) and i not in left]


def count_seatable(facts: Rendezvous, state: RunState, members: Membership) -> int:
    """Count for a gathering who can be seated; return who could if all spoke and were healthy.

    Linear in members if hosts were left out or blocks are seated.
    """
    size, left, unfit = state.spec.block_size, state.left_out.keys(), members.unfit
    facts.unfit = reasons.unfit(state.members, unfit)
    if not size and not left:
        facts.agents_checking = len(unfit) - members.unhealthy_count
        return len(members.connected) - members.unhealthy_count
    unfit = {i: health for i, health in unfit.items() if i not in left}
    facts.agents_missed, facts.agents_suspect = (
        len(each - left) for each in (members.missed, members.suspects)
    )
    facts.agents_present, blocks = seatable(candidates(state, members), size)
    facts.unfit = ", ".join(filter(None, (reasons.unfit(state.members, unfit), blocks)))
    unhealthy = {i for i, each in unfit.items() if each.state is HealthState.UNHEALTHY}
    connected = members.connected - left - unhealthy
    counts = (
        seatable(map(state.members.__getitem__, each), size)[0]
        for each in (connected, connected - unfit.keys())
    )
    number, fit = counts
    facts.agents_checking = number - fit
    return number


def seatable(agents: Iterable[AgentIdentity], block_size: int) -> tuple[int, str]:
    """Return how many of these agents can be seated, and which blocks wait for how many more."""
    if not block_size:
        return len(list(agents)), ""
    sizes = Counter(agent.block for agent in agents)
    whole = sum(size >= block_size for size in sizes.values())
    waiting = sorted(
        (block for block, size in sizes.items() if size < block_size),
        key=lambda block: (-sizes[block], block),
    )
    told = (f"block {each} waits for {block_size - sizes[each]}" for each in waiting)
    return whole * block_size, listed(told, len(waiting), most=BLOCKS_SHOWN_MAX)


def why_outside(state: RunState, incarnation: str) -> str:
    """Return why a member can't be seated, whoever else comes; empty if it can. Linear in them."""
    if why := state.left_out.get(incarnation):
        return f"left out by the preflight: {why}"
    if not (size := state.spec.block_size):
        return ""
    block = state.members[incarnation].block
    left = state.left_out
    there = sum(each.block == block and i not in left for i, each in state.members.items())
    lacking = f"waits for {size - there} of {size} agents"
    return f"block {block} {lacking if there < size else 'has its agents'}"
