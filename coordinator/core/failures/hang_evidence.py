"""Pure. What was seen of all ranks of a round, put together by the places where they are.

Answers of agents are taken in one after the other, so that no step takes long in a run of any size.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from drumbeat.coordinator.core.collecting.stack_gathering import WorkerStacks
from drumbeat.coordinator.core.failures.collective_evidence import SeenCalls
from drumbeat.coordinator.core.failures.stack_frames import (
    Activity,
    Frame,
    activity_of,
    place,
    telling_frames,
)
from drumbeat.coordinator.core.model import Seat

UNKNOWN = math.inf  # the age of a heartbeat that was never told


class RankEvidence(WorkerStacks, frozen=True, kw_only=True):
    """What was seen of one rank when all were asked. ``is_reached``: its agent has answered."""

    seat: Seat
    is_reached: bool = True

    @property
    def step(self) -> int | None:
        """Its latest step, if it names steps."""
        return self.progress.step if self.progress is not None else None

    @property
    def age_s(self) -> float:
        """The age of its latest heartbeat."""
        age_s = self.progress.heartbeat_age_s if self.progress is not None else None
        return UNKNOWN if age_s is None else age_s

    @property
    def could_answer(self) -> bool:
        """Whether its runtime was asked: without a stack it is silent itself, not its agent."""
        has_runtime = self.progress is not None and self.progress.runtime_age_s is not None
        return self.is_reached and has_runtime


@dataclass(slots=True)
class Group:
    """Ranks that are at one place. ``ages_s`` are those of their heartbeats, in the same order."""

    activity: Activity
    frames: tuple[Frame, ...]
    place: str
    members: list[RankEvidence] = field(default_factory=list)
    ages_s: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.members)

    def add(self, rank: RankEvidence) -> None:
        """Put a rank in."""
        self.members.append(rank)
        self.ages_s.append(rank.age_s)

    def first(self) -> RankEvidence:
        """Return its lowest rank."""
        return min(self.members, key=lambda member: member.rank)

    def steps(self) -> list[int]:
        """Return the steps of its ranks, as far as they name any."""
        return [member.step for member in self.members if member.step is not None]

    def like(self, members: Iterable[RankEvidence]) -> Group:
        """Return a group of these ranks alone."""
        group = Group(self.activity, self.frames, self.place)
        for member in members:
            group.add(member)
        return group


class SeenRanks:
    """The evidence of all ranks. It is added to rank by rank; to ask for groups changes nothing.

    ``calls`` are those of their process groups.
    """

    def __init__(self, world: Collection[int] = ()) -> None:
        self.calls = SeenCalls(world)
        self.moved_age_s = UNKNOWN  # how long ago a process group of any rank moved
        self._ranks: dict[int, RankEvidence] = {}
        self._groups: dict[object, Group] = {}
        self._by_look: dict[object, Group] = {}  # what finds a group without parsing its stacks

    @classmethod
    def of(cls, ranks: Iterable[RankEvidence]) -> Self:
        """Put those of a world together at once."""
        world = list(ranks)
        seen = cls([rank.rank for rank in world])
        for rank in world:
            seen.add(rank)
        return seen

    def add(self, rank: RankEvidence) -> None:
        """Take in what was seen of a rank, once."""
        if rank.rank in self._ranks:
            return
        self._ranks[rank.rank] = rank
        if rank.moved_age_s is not None:
            self.moved_age_s = min(self.moved_age_s, rank.moved_age_s)
        if rank.groups is not None:
            self.calls.add(rank.rank, rank.groups)
        look = rank.stacks, rank.source_line, rank.is_stopped, rank.is_reached
        if (group := self._by_look.get(look)) is None:
            group = self._by_look[look] = self._group_of(rank)
        group.add(rank)

    def __len__(self) -> int:
        return len(self._ranks)

    def waiting(self) -> set[int]:
        """Return the ranks that wait for others as their stacks show."""
        groups = (group for group in self._groups.values() if group.activity is Activity.WAITS)
        return {member.rank for group in groups for member in group.members}

    def get(self, rank: int) -> RankEvidence | None:
        """Return what was seen of a rank."""
        return self._ranks.get(rank)

    def groups(
        self, *, without_lock: Collection[int], expired: Collection[int], fresh_s: float
    ) -> list[Group]:
        """Return where all ranks are that do not go on.

        A rank goes on if it exceeds no limit and had a heartbeat within ``fresh_s``. One
        ``without_lock`` is kept from running Python, and waits for no other rank.
        """
        groups: list[Group] = []
        for group in self._groups.values():
            still, is_stopped = group, group.activity is Activity.STOPPED
            if not is_stopped and min(group.ages_s) < fresh_s:
                pairs = zip(group.members, group.ages_s, strict=True)
                still = group.like(m for m, age in pairs if age >= fresh_s or m.rank in expired)
            if without_lock and group.activity not in (Activity.STOPPED, Activity.BUSY):
                frames, busy = group.frames, Activity.BUSY
                locked = Group(busy, frames, place_of(busy, frames))
                locked = locked.like(m for m in still.members if m.rank in without_lock)
                still = still.like(m for m in still.members if m.rank not in without_lock)
                groups.append(locked)
            groups.append(still)
        return [group for group in groups if group.members]

    def _group_of(self, rank: RankEvidence) -> Group:
        frames = telling_frames(rank.stacks)
        if rank.is_stopped:
            activity = Activity.STOPPED
        elif not rank.stacks:
            activity = Activity.SILENT
        else:
            activity = activity_of(frames, rank.source_line)
        where = activity, frames, rank.is_reached or activity is not Activity.SILENT
        if (group := self._groups.get(where)) is None:
            shown = place_of(activity, frames, is_reached=rank.is_reached)
            group = self._groups[where] = Group(activity, frames, shown)
        return group


def place_of(activity: Activity, frames: Sequence[Frame], *, is_reached: bool = True) -> str:
    """Return where a rank is, as it follows "is" or "are"."""
    match activity:
        case Activity.STOPPED:
            return "stopped"
        case Activity.SILENT if not is_reached:
            return "on a host that does not answer"
        case Activity.SILENT:
            return "silent"
    return f"in {place(frames)}" if frames else "in code that is not Python"
