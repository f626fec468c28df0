"""Pure. Who can be seated: nobody whom the preflight left out, and of blocks only whole ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from drumbeat.coordinator.core.membership.leases import Membership
from drumbeat.coordinator.core.model import AgentIdentity
from drumbeat.coordinator.core.phases.rendezvous import Rendezvous
from drumbeat.coordinator.core.run import reasons
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.model import HealthState

BLOCKS_SHOWN_MAX = 3  # that wait for an agent; of more the number is told
# What a member is good for, each more than the one before: its health is checked, it is silent.
_CHECKED, _FIT, _PRESENT = 1, 2, 3


def candidates(state: RunState, members: Membership) -> list[AgentIdentity]:
    """Return who is present and not left out, in order of arrival. Linear in members."""
    present, left = members.is_present, state.left_out
    return [agent for i, agent in state.members.items() if present(i) and i not in left]


def count_seatable(agents: Iterable[AgentIdentity], block_size: int) -> int:
    """Return how many of these agents can be seated together."""
    sizes = Counter(agent.block for agent in agents)
    whole = sum(size >= block_size for size in sizes.values())
    return whole * block_size if block_size else sizes.total()


class Seating:
    """Counts who can be seated as members come and go: no event is linear in them.

    It takes over what `Membership` notes as changed, and lasts as long as the set left out.
    """

    def __init__(self, state: RunState, members: Membership) -> None:
        self._state, self._members, self._size = state, members, state.spec.block_size
        self._known: dict[str, tuple[str, int]] = {}  # block and level of each member
        self._sizes: dict[int, Counter[str]] = {level: Counter() for level in range(4)}
        self._whole = [0] * 4  # blocks with enough members of a level
        self._partial: dict[str, None] = {}  # blocks that others wait for, as they came
        members.changed = dict.fromkeys(state.members) if self._size else None

    def count(self, facts: Rendezvous) -> int:
        """Count for a gathering; return who could be seated if all spoke and were healthy."""
        members, left = self._members, self._state.left_out
        facts.agents_missed = len(members.missed) - sum(i in members.missed for i in left)
        facts.agents_suspect = len(members.suspects) - sum(i in members.suspects for i in left)
        facts.unfit = reasons.unfit(self._state.members, members.unfit, left)
        out = [i for i in left if i in members.connected]
        if not self._size:
            bad = [i for i in out if i in members.unfit]
            unhealthy = members.unhealthy_count - sum(map(self._is_unhealthy, bad))
            facts.agents_present = members.present_count - sum(map(members.is_present, out))
            facts.agents_checking = len(members.unfit) - len(bad) - unhealthy
            return len(members.connected) - len(out) - unhealthy
        self._follow()
        able, fit, facts.agents_present = (whole * self._size for whole in self._whole[1:])
        facts.agents_checking = able - fit
        told = (
            f"block {each} waits for {self._size - self._sizes[_PRESENT][each]}"
            for each in self._partial
        )
        blocks = reasons.listed(told, len(self._partial), most=BLOCKS_SHOWN_MAX)
        facts.unfit = ", ".join(filter(None, (facts.unfit, blocks)))
        return able

    def why_outside(self, incarnation: str) -> str:
        """Return why a member can't be seated, whoever else comes; empty if it can."""
        if why := self._state.left_out.get(incarnation):
            return f"left out by the preflight: {why}"
        if not self._size:
            return ""
        self._follow()
        block = self._state.members[incarnation].block
        lacking = self._size - self._sizes[_PRESENT][block]
        if lacking > 0:
            return f"block {block} waits for {lacking} of {self._size} agents"
        return f"block {block} has its agents"

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in members; for tests."""
        if self._size:
            self._follow()
            there = candidates(self._state, self._members)
            assert self._sizes[_PRESENT] == Counter(agent.block for agent in there)
            assert self._whole[_PRESENT] * self._size == count_seatable(there, self._size)

    def _follow(self) -> None:
        """Take in whose presence has changed."""
        changed, self._members.changed = self._members.changed or {}, {}
        for incarnation in changed:
            block, before = self._known.pop(incarnation, ("", 0))
            for level in range(1, before + 1):
                self._add(level, block, -1)
            if now := self._level(incarnation):
                block = self._state.members[incarnation].block
                self._known[incarnation] = block, now
            for level in range(1, now + 1):
                self._add(level, block, 1)

    def _add(self, level: int, block: str, number: int) -> None:
        sizes = self._sizes[level]
        was_whole = sizes[block] >= self._size
        sizes[block] += number
        self._whole[level] += (sizes[block] >= self._size) - was_whole
        if level == _PRESENT and 0 < sizes[block] < self._size:
            self._partial.setdefault(block)
        elif level == _PRESENT:
            self._partial.pop(block, None)
        if not sizes[block]:
            del sizes[block]

    def _level(self, incarnation: str) -> int:
        members = self._members
        if incarnation not in members.connected or incarnation in self._state.left_out:
            return 0
        if incarnation in members.unfit:
            return 0 if self._is_unhealthy(incarnation) else _CHECKED
        return _FIT if incarnation in members.suspects else _PRESENT

    def _is_unhealthy(self, incarnation: str) -> bool:
        return self._members.unfit[incarnation].state is HealthState.UNHEALTHY
