"""Pure. Which agents can have a seat: none that the preflight left out, and only whole blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from drumbeat.coordinator.core.membership.leases import RunMembers
from drumbeat.coordinator.core.model import AgentIdentity
from drumbeat.coordinator.core.phases.rendezvous import Rendezvous
from drumbeat.coordinator.core.run import reasons
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.model import HealthState

BLOCKS_SHOWN_MAX = 3  # that wait for an agent; of more the number is told
# What a member is good for, each more than the one before: its health is checked, it is silent.
_CHECKED, _FIT, _PRESENT = 1, 2, 3


def candidates(state: RunState, members: RunMembers) -> list[AgentIdentity]:
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

    It takes over what `RunMembers` notes as changed. Without blocks each member is one of its own.
    """

    def __init__(self, state: RunState, members: RunMembers) -> None:
        self._state, self._members, self._size = state, members, state.spec.block_size or 1
        self._known: dict[str, tuple[str, int]] = {}  # block and level of each member
        self._sizes: list[Counter[str]] = [Counter() for _ in range(_PRESENT + 1)]
        self._whole = [0] * (_PRESENT + 1)  # blocks with enough members of a level
        self._partial: dict[str, None] = {}  # blocks that others wait for, as they came
        self._left_out = set(state.left_out)
        members.changed = dict.fromkeys(state.members)

    def follow_left_out(self) -> None:
        """Take in whom the latest round has left out, and whom no longer."""
        left = set(self._state.left_out)
        self._members.changed |= dict.fromkeys(left ^ self._left_out)
        self._left_out = left

    def count(self, facts: Rendezvous) -> int:
        """Count for a gathering; return who could be seated if all spoke and were healthy."""
        members, left, size = self._members, self._state.left_out, self._size
        self._follow()
        facts.agents_missed = len(members.missed) - sum(i in members.missed for i in left)
        facts.agents_suspect = len(members.suspects) - sum(i in members.suspects for i in left)
        able, fit, facts.agents_present = (whole * size for whole in self._whole[_CHECKED:])
        facts.agents_checking = able - fit
        there = self._sizes[_PRESENT]
        waiting = (f"block {block} waits for {size - there[block]}" for block in self._partial)
        blocks = reasons.listed(waiting, len(self._partial), most=BLOCKS_SHOWN_MAX)
        unfit = reasons.unfit(self._state.members, members.unfit, left)
        facts.unfit = ", ".join(filter(None, (unfit, blocks)))
        return able

    def why_outside(self, incarnation: str) -> str:
        """Return why a member can't be seated, whichever agents join; empty if it can."""
        self._follow()
        if why := self._state.left_out.get(incarnation):
            return f"left out by the preflight: {why}"
        if not self._state.spec.block_size:
            return ""
        block = self._state.members[incarnation].block
        lacking = self._size - self._sizes[_PRESENT][block]
        waits = f"waits for {lacking} of {self._size} agents"
        return f"block {block} {waits if lacking > 0 else 'has its agents'}"

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in members; for tests."""
        there = candidates(self._state, self._members)
        self._follow()
        seatable = count_seatable(there, self._state.spec.block_size)
        assert self._whole[_PRESENT] * self._size == seatable, "who can be seated is not counted"

    def _follow(self) -> None:
        """Take in whose presence has changed."""
        changed, self._members.changed = self._members.changed, {}
        for incarnation in changed:
            block, before = self._known.pop(incarnation, ("", 0))
            for level in range(1, before + 1):
                self._add(level, block, -1)
            if now := self._level(incarnation):
                is_block = self._state.spec.block_size
                block = self._state.members[incarnation].block if is_block else incarnation
                self._known[incarnation] = block, now
            for level in range(1, now + 1):
                self._add(level, block, 1)

    def _add(self, level: int, block: str, number: int) -> None:
        if not self._state.spec.block_size:
            self._whole[level] += number
            return
        before = self._sizes[level].pop(block, 0)
        if size := before + number:
            self._sizes[level][block] = size
        self._whole[level] += (size >= self._size) - (before >= self._size)
        if level == _PRESENT and 0 < size < self._size:
            self._partial.setdefault(block)
        elif level == _PRESENT:
            self._partial.pop(block, None)

    def _level(self, incarnation: str) -> int:
        members = self._members
        if incarnation not in members.connected or incarnation in self._state.left_out:
            return 0
        if (health := members.unfit.get(incarnation)) is not None:
            return 0 if health.state is HealthState.UNHEALTHY else _CHECKED
        return _FIT if incarnation in members.suspects else _PRESENT
