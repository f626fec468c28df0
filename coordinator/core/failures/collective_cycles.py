"""Pure. Finds calls of several process groups that wait for each other, and who caused that.

All ranks of a program make their calls in one order. A rank that makes two calls in the other
order waits in one of them for ranks that wait in the other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from drumbeat.coordinator.core.failures.collective_evidence import SeenCalls, is_collective
from drumbeat.coordinator.core.failures.collective_waits import Wait

_PAIRS_MAX = 8  # of calls that all ranks have entered: so many are compared with the largest


def find_cycle(waits: Sequence[Wait], waits_of: Mapping[int, Collection[Wait]]) -> list[Wait]:
    """Return calls each of which waits for ranks that wait in the next, the last for the first."""
    open_waits = set(waits)
    for start in waits:
        path = {start: _next_waits(start, waits_of)} if start in open_waits else {}
        while path:
            last = next(reversed(path))
            following = next((each for each in path[last] if each in open_waits), None)
            if following is None:
                open_waits.remove(last)
                del path[last]
            elif following in path:
                cycle = list(path)
                return cycle[cycle.index(following) :]
            else:
                path[following] = _next_waits(following, waits_of)
    return []


def find_inverted(waits: Sequence[Wait], seen: SeenCalls) -> list[Wait]:
    """Return two calls that all ranks have entered, some in one order and some in the other.

    A device that runs one call at a time ends neither.
    """
    for other in islice(waits, 1, 1 + _PAIRS_MAX):
        shared = {*waits[0].ranks} & {*other.ranks}
        if shared and all(shared & ranks for ranks in _orders(waits[0], other, seen)):
            return [waits[0], other]
    return []


def out_of_order(cycle: Sequence[Wait], seen: SeenCalls) -> set[int]:
    """Return the ranks of a cycle that made two of its calls in another order than most ranks.

    Ranks of other groups of the same kind, such as the other rows of a mesh, have a vote as well.
    """
    found: set[int] = set()
    for wait, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        most, others = _orders(wait, following, seen)
        missing = wait.missing & seen.answers.keys()
        could_be = (missing or {*wait.ranks}) & {*following.ranks}
        if len(most) >= 2 and len(others) < len(most) and others <= could_be:
            found |= others
    return found


def _next_waits(wait: Wait, waits_of: Mapping[int, Collection[Wait]]) -> Iterator[Wait]:
    return (each for rank in wait.missing if rank in waits_of for each in waits_of[rank])


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
    found: dict[int, float] = {}
    number = wait.call.sequence
    for group in seen:
        is_alike = group.family == wait.group.family and group.members is not None
        if not is_alike or len(group.members or ()) != wait.size:
            continue
        for window in group.windows.values():
            at = window.index(number)
            if at is not None:
                for rank, calls in zip(window.ranks, window.calls_of, strict=True):
                    if (age_s := calls[at].age_s) is not None:
                        found[rank] = age_s
            elif window.last is not None:
                age_s = -1.0 if window.last < number else math.inf
                found.update(dict.fromkeys(window.ranks, age_s))
    return found
