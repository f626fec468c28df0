"""Pure. The calls that ranks of a process group wait in, and which ranks have not entered them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from drumbeat.coordinator.core.failures.collective_evidence import (
    POINT_TO_POINT,
    CallWindow,
    SeenGroup,
    is_collective,
)
from drumbeat.coordinator.core.failures.collective_hang import CallWait
from drumbeat.model import CollectiveCall

Version = tuple[CollectiveCall, list[int]]  # a call, and the ranks that made it like this
# Ranks may make these calls with tensors of other sizes.
_UNEVEN = re.compile(r"gather|scatter|.*all_?to_?all.*|.*_v(?:_.*)?")


@dataclass(slots=True, eq=False)
class Wait:
    """A call that ranks wait in, and the ranks that have not entered it.

    ``versions`` are the calls at one number, up to that of ``call``, if ranks made different ones;
    that of the most ranks comes first.
    """

    group: SeenGroup
    call: CollectiveCall
    ranks: list[int]
    ages_s: dict[int, float]  # of the ranks whose ages are known
    missing: frozenset[int] = frozenset()
    later: list[int] = field(default_factory=list)  # ranks that wait in later calls of the group
    is_sure: bool = True  # it is the first, and it is known which ranks have entered it
    versions: list[Version] = field(default_factory=list)

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return len(self.group.members or ())

    @property
    def oldest_s(self) -> float:
        """How long the first rank waits; without end if that is not known."""
        return max(self.ages_s.values(), default=math.inf)

    def is_entered_by_most(self) -> bool:
        """Return whether so many ranks have entered it that it is not a call of one in error."""
        entered = self.size - len(self.missing)
        return self.is_sure and entered >= 2 and 2 * entered > self.size

    def agreed(self) -> int:
        """Return how many ranks made the same call; 0 if there is no majority of at least two."""
        sizes = [len(ranks) for _, ranks in self.versions]
        return sizes[0] if sizes and sizes[0] >= 2 and 2 * sizes[0] > sum(sizes) else 0

    def shown(self, call: CollectiveCall | None = None, ranks: Iterable[int] = ()) -> CallWait:
        """Return it as it is reported, or a version of it."""
        return CallWait(
            group=self.group.name,
            label="" if self.group.family == self.group.name else self.group.label,
            group_size=self.size,
            call=call or self.call,
            ranks=tuple(sorted(ranks or self.ranks)),
            since_s=min(self.ages_s.values(), default=None),
        )


def waits_in(group: SeenGroup) -> Iterator[Wait]:
    """Yield what ranks of a group wait in, if its ranks are known.

    Of collectives that is the first that has not ended: later ones wait for it, too.
    """
    if not group.is_waited_in or group.members is None:
        return
    yield from _collective_wait(group, group.members)
    yield from _pair_waits(group, group.members)


def _collective_wait(group: SeenGroup, members: frozenset[int]) -> Iterator[Wait]:
    windows = group.windows()
    number = min(
        (window.waits_at for window in windows if window.waits_at is not None), default=None
    )
    if number is None:
        return
    entered: set[int] = set()
    ranks: list[int] = []
    ages_s: dict[int, float] = {}
    later: list[int] = []
    call: CollectiveCall | None = None
    for window in windows:
        if window.last is not None and window.last >= number:
            entered.update(window.ranks)
        if window.waits_at == number and (at := window.index(number)) is not None:
            call = call or window.calls[at]
            ranks += window.ranks
            ages_s |= window.ages_s(at)
        elif window.waits_at is not None:
            later += window.ranks
    if call is not None:
        yield Wait(
            group,
            call,
            ranks,
            ages_s,
            missing=members - entered,
            later=later,
            is_sure=not any(window.last is None or window.is_cut for window in windows),
            versions=_versions(windows, number) if len(windows) > 1 else [],
        )


def _versions(windows: Iterable[CallWindow], most: int) -> list[Version]:
    """Return the calls at the first number up to ``most`` at which ranks made different calls.

    That calls have other tensors matters only if one of them has not ended: some operations allow
    it.
    """
    by_number: dict[int, dict[tuple[str, str], Version]] = {}
    is_open: set[int] = set()
    for window in windows:
        for call in window.calls:
            if call.sequence <= most and is_collective(call):
                same = by_number.setdefault(call.sequence, {})
                same.setdefault((call.op, call.tensors), (call, []))[1].extend(window.ranks)
                if not call.is_done:
                    is_open.add(call.sequence)
    for number, by_call in sorted(by_number.items()):
        versions = list(by_call.values())
        ops = {call.op for call, _ in versions}
        if len(ops) == 1:
            is_even = number in is_open and not _UNEVEN.fullmatch(versions[0][0].op)
            versions = [version for version in versions if version[0].tensors and is_even]
        if len(versions) > 1:
            return sorted(versions, key=lambda version: (-len(version[1]), min(version[1])))
    return []


def _pair_waits(group: SeenGroup, members: frozenset[int]) -> Iterator[Wait]:
    """Yield the point-to-point operations that ranks wait in, of each peer the first."""
    pending: dict[tuple[int, str, int], CollectiveCall] = {}
    unsure: set[int] = set()  # ranks whose first operation that has not ended may not be known
    for window in group.windows():
        if window.is_cut:
            unsure.update(window.ranks)
        for i, call in enumerate(window.calls):
            if not call.is_done and call.op in POINT_TO_POINT and call.peer in members:
                for rank, calls in zip(window.ranks, window.calls_of, strict=True):
                    pending.setdefault((rank, call.op, call.peer), calls[i])
    for (rank, op, peer), call in pending.items():
        other = pending.get((peer, POINT_TO_POINT[op], rank))
        sides = ((rank, call), (peer, other))
        ages_s = {r: call.age_s for r, call in sides if call and call.age_s is not None}
        if other is None:
            yield Wait(group, call, [rank], ages_s, missing=frozenset({peer}), is_sure=False)
        elif op == "send":
            tensors = {side.tensors for side in (call, other) if side.tensors}
            differ = len(tensors) > 1 and unsure.isdisjoint((rank, peer))
            versions = [(call, [rank]), (other, [peer])] if differ else []
            yield Wait(group, call, [rank, peer], ages_s, is_sure=False, versions=versions)
