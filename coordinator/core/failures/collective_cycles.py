"""Pure. Finds calls of several process groups that wait for each other, and who caused that.

All ranks of a program make their calls in one order. A rank that makes two calls in the other
order waits in one of them for ranks that wait in the other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from drumbeat.coordinator.core.failures.collective_evidence import SeenCalls, is_collective
from drumbeat.coordinator.core.failures.collective_waits import Wait


class WaitGraph:
    """Which call waits for which other call: for ranks that are missing in it and wait there.

    A call that no rank is known to miss waits for the earlier calls of its ranks: a device runs
    calls one after the other. ``waits_of`` are the calls that each rank waits in.
    """

    def __init__(
        self, waits: Sequence[Wait], waits_of: Mapping[int, Collection[Wait]], seen: SeenCalls
    ) -> None:
        self._waits, self._waits_of = waits, waits_of
        self._answered = frozenset(seen.answers)

    def following(self, wait: Wait) -> Iterator[Wait]:
        """Yield the calls that one waits for, some of them several times."""
        missing = wait.missing & self._answered
        for rank in missing:
            yield from self._waits_of.get(rank, ())
        for rank, age_s in () if missing else wait.ages_s.items():
            for other in self._waits_of[rank]:
                if other.ages_s.get(rank, 0.0) > age_s:
                    yield other

    def find_cycle(self) -> list[Wait]:
        """Return calls each of which waits for the next, the last for the first."""
        open_waits = set(self._waits)
        graph = {
            wait: dict.fromkeys(other for other in self.following(wait) if other in open_waits)
            for wait in self._waits
        }
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            cycle: list[Wait] = error.args[1][:0:-1]  # there, each is waited for by the next
            return cycle
        return []


def out_of_order(cycle: Sequence[Wait], seen: SeenCalls) -> set[int]:
    """Return the ranks of a cycle that made two of its calls in another order than most ranks.

    Ranks of other groups of the same kind, such as the other rows of a mesh, have a vote as well.
    """
    odd: set[int] = set()
    for wait, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        most, few = _orders(wait, following, seen)
        missing = wait.missing.intersection(seen.answers)
        could_be = (missing or {*wait.ranks}) & {*following.ranks}
        if len(most) >= 2 and len(few) < len(most) and few <= could_be:
            odd |= few
    return odd


def are_alike(ranks: Collection[int], seen: SeenCalls) -> bool:
    """Return whether the latest collectives of ranks in all groups are the same, in one order."""
    first, *rest = ranks
    wanted = _latest(first, seen)
    return all(_latest(rank, seen) == wanted for rank in rest)


def _latest(rank: int, seen: SeenCalls) -> list[tuple[str, int, str, str]]:
    latest = []
    for group in seen.answers[rank]:
        call = next(filter(is_collective, reversed(group.calls)), None)
        if call is not None:
            made = seen.group_of(group).family, call.sequence, call.op, call.tensors
            latest.append((call.age_s or 0.0, made))
    return [made for _, made in sorted(latest)]


def _orders(first: Wait, second: Wait, seen: SeenCalls) -> tuple[set[int], set[int]]:
    """Return the ranks that made the first call before the second, and those that did not."""
    if not (is_collective(first.call) and is_collective(second.call)):
        return set(), set()
    ages_s, others_s = _ages_s(first, seen), _ages_s(second, seen)
    both = ages_s.keys() & others_s.keys()
    return (
        {rank for rank in both if ages_s[rank] > others_s[rank]},
        {rank for rank in both if ages_s[rank] < others_s[rank]},
    )


def _ages_s(wait: Wait, seen: SeenCalls) -> dict[int, float]:
    """Return the age of the call with the same number of all ranks in groups of the same kind.

    It is below 0 for a rank that has not made the call, and without end for one long ago. A rank
    whose calls do not tell is left out.
    """
    ages_s: dict[int, float] = {}
    number = wait.call.sequence
    for group in seen:
        is_alike = group.family == wait.group.family and group.members is not None
        if not is_alike or len(group.members or ()) != wait.size:
            continue
        for window in group.windows():
            at = window.index(number)
            if at is not None:
                ages_s |= window.ages_s(at)
            elif window.last is not None:
                age_s = -1.0 if window.last < number else math.inf
                ages_s.update(dict.fromkeys(window.ranks, age_s))
    return ages_s
