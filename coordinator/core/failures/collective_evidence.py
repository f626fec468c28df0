"""Pure. The latest calls of process groups by all ranks of a round, put together by group.

Answers of agents are taken in one after the other, so that no step takes long in a run of any size.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from drumbeat.model import CollectiveCall, GroupCalls

CALLS_MAX = 8  # of a group in an answer: with fewer, the rank has made no others
WORLD_GROUP = "0"  # as torch names the group of all ranks
POINT_TO_POINT = {"send": "recv", "recv": "send"}  # an operation and the one of the other side
# Torch records these for a batch of point-to-point operations: not all ranks of the group make it.
_BATCHES = frozenset({"coalesced"})
NO_LABELS = frozenset({"", "undefined", "default_pg"})  # what torch puts for groups without one
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_is_done = attrgetter("is_done")
_alike = attrgetter("sequence", "op", "tensors", "is_done", "peer")


def parse_ranks(text: str, world: frozenset[int]) -> frozenset[int] | None:
    """Return the ranks of ranges with strides; None if the world does not have them all."""
    parsed: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last, stride = match.groups() if match else ("", "", "")
        if not first or int(stride or 1) == 0:
            return None
        ranks = range(int(first), int(last or first) + 1, int(stride or 1))
        if not 0 < len(ranks) <= len(world) - len(parsed):
            return None
        parsed.update(ranks)
    return frozenset(parsed) if parsed <= world else None


def is_collective(call: CollectiveCall) -> bool:
    """Return whether all ranks of the group make this call."""
    return call.peer is None and call.op not in POINT_TO_POINT and call.op not in _BATCHES


@dataclass(slots=True)
class CallWindow:
    """Ranks whose known calls of a group are the same but for their ages and places.

    ``last`` is the number of their latest collective, 0 if they made none, None if that is not
    known. ``waits_at`` is the number of the first collective that has not ended.
    """

    calls: tuple[CollectiveCall, ...]
    last: int | None = None
    waits_at: int | None = None
    ranks: list[int] = field(default_factory=list)
    calls_of: list[tuple[CollectiveCall, ...]] = field(default_factory=list)  # in the same order

    def __post_init__(self) -> None:
        collectives = list(filter(is_collective, self.calls))
        unknown = None if len(self.calls) >= CALLS_MAX else 0
        self.last = max((call.sequence for call in collectives), default=unknown)
        open_calls = (call.sequence for call in collectives if not call.is_done)
        self.waits_at = min(open_calls, default=None)

    @property
    def is_cut(self) -> bool:
        """Whether calls that are not known may not have ended either."""
        return len(self.calls) >= CALLS_MAX and not self.calls[0].is_done

    def index(self, sequence: int) -> int | None:
        """Return where the collective with this number stands in the calls."""
        for i, call in enumerate(self.calls):
            if call.sequence == sequence and is_collective(call):
                return i
        return None

    def ages_s(self, index: int) -> dict[int, float]:
        """Return the ages of one call by rank, as far as they are known."""
        ages = zip(self.ranks, (calls[index].age_s for calls in self.calls_of), strict=True)
        return {rank: age_s for rank, age_s in ages if age_s is not None}


@dataclass(slots=True)
class SeenGroup:
    """A process group. ``members`` is None if its ranks are not known."""

    name: str
    label: str
    members: frozenset[int] | None
    is_waited_in: bool = False  # some rank's call has not ended
    _latest: int | None = None  # the rank added last
    _windows: dict[object, CallWindow] = field(default_factory=dict)
    _ended: list[tuple[int, tuple[CollectiveCall, ...]]] = field(default_factory=list)

    @property
    def family(self) -> str:
        """What groups with other ranks have in common with it: the dimension of a mesh."""
        return self.name if self.label in NO_LABELS else self.label

    def add(self, rank: int, calls: tuple[CollectiveCall, ...]) -> None:
        """Take in the latest calls of a rank; once if its answer has the group twice."""
        if rank == self._latest:
            return
        self._latest = rank
        if all(map(_is_done, calls)):
            self._ended.append((rank, calls))
        else:
            self.is_waited_in = True
            self._put_together(rank, calls)

    def windows(self) -> Collection[CallWindow]:
        """Return the calls of all its ranks. Groups in which no rank waits are seldom asked."""
        for rank, calls in self._ended:
            self._put_together(rank, calls)
        self._ended.clear()
        return self._windows.values()

    def _put_together(self, rank: int, calls: tuple[CollectiveCall, ...]) -> None:
        key = tuple(map(_alike, calls))
        if (window := self._windows.get(key)) is None:
            window = self._windows[key] = CallWindow(calls)
        window.ranks.append(rank)
        window.calls_of.append(calls)


class SeenCalls:
    """The answers of all ranks. They are added rank by rank; to judge changes nothing."""

    def __init__(self, world: Collection[int]) -> None:
        self.world = frozenset(world)
        self.answers: dict[int, Sequence[GroupCalls]] = {}
        self._groups: dict[tuple[str, str], SeenGroup] = {}  # by name and ranks as they are written
        self._by_members: dict[object, SeenGroup] = {}

    def __iter__(self) -> Iterator[SeenGroup]:
        return iter(self._by_members.values())

    def add(self, rank: int, groups: Sequence[GroupCalls]) -> None:
        """Take in the answer of a rank, once. Without groups, it has no process group."""
        if rank in self.answers or rank not in self.world:
            return
        self.answers[rank] = groups
        for answer in groups:
            group = self.group_of(answer)
            if group.members is None or rank in group.members:
                group.add(rank, answer.calls)

    def group_of(self, calls: GroupCalls) -> SeenGroup:
        """Return the group that made these calls. The ranks of a group are read once."""
        written = calls.name, calls.ranks
        if (group := self._groups.get(written)) is None:
            is_world = calls.name == WORLD_GROUP and not calls.ranks
            members = self.world if is_world else parse_ranks(calls.ranks, self.world)
            key = calls.name, calls.ranks if members is None else members
            group = self._by_members.setdefault(key, SeenGroup(calls.name, calls.label, members))
            self._groups[written] = group
        return group
