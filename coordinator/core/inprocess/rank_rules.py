"""Pure. Which rank each worker has in an iteration, and who calls the function.

A worker is a number: its rank at the start of the round. An order is a list of such numbers by
rank. Rules that bound the active ones are applied last, so that what they promise holds.
Source: ``rank_assignment`` of NVIDIA's in-process restart (0.4.1), whose rules have the same
names; differs: its ``FillGaps`` can give out ranks beyond the new world size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from enum import StrEnum

from msgspec import Struct

from drumbeat.text.format import count

# Of the sizes a rule allows, as it is shown.
SIZES_SHOWN_MAX = 8


class RuleKind(StrEnum):
    """What a rule does."""

    SHIFT = "SHIFT"  # all move down to close the gaps, in order
    FILL = "FILL"  # the highest ranks move into the gaps, the others stay
    GROUPS = "GROUPS"  # groups that have not one of the sizes allowed take no part any more
    ACTIVE_MAX = "ACTIVE_MAX"  # at most this many are active
    ACTIVE_DIVISOR = "ACTIVE_DIVISOR"  # as many as can be divided by this are active


class RankRule(Struct, frozen=True, kw_only=True):
    """One rule. One class for all kinds, so that a journal can read it."""

    kind: RuleKind
    count: int = 0  # of the active rules, 1 or more
    allowed: bytes = b""  # bit i % 8 of byte i // 8: whether a group with i workers may stay

    def __str__(self) -> str:
        if self.kind is RuleKind.GROUPS:
            sizes = [size for size in range(8 * len(self.allowed)) if self.allows(size)]
            more = f" and {len(sizes) - SIZES_SHOWN_MAX} more" * (len(sizes) > SIZES_SHOWN_MAX)
            return f"{self.kind} {' '.join(map(str, sizes[:SIZES_SHOWN_MAX]))}{more}"
        return f"{self.kind} {self.count}" if self.count else str(self.kind)

    def allows(self, size: int) -> bool:
        """Return whether a group of this size may stay."""
        byte = size >> 3
        return byte < len(self.allowed) and bool(self.allowed[byte] >> (size & 7) & 1)


SHIFT_RANKS = RankRule(kind=RuleKind.SHIFT)
FILL_GAPS = RankRule(kind=RuleKind.FILL)


class Cut(Struct, frozen=True, kw_only=True):
    """Workers that leave an order for good, and how their ranks are filled.

    An order is the fold of its cuts, which is why they are all a journal keeps of it.
    """

    removed: tuple[int, ...]
    is_filled: bool = False

    def apply(self, order: Sequence[int]) -> list[int]:
        """Return the order without them, who are all in it. Linear."""
        removed = set(self.removed)
        if not self.is_filled:
            return [worker for worker in order if worker not in removed]
        size = len(order) - len(removed)
        movers = (worker for worker in order[size:] if worker not in removed)
        return [next(movers) if worker in removed else worker for worker in order[:size]]


class Ranking(Struct, frozen=True, kw_only=True):
    """An order; its first ``active_world_size`` workers call the function."""

    order: list[int]
    active_world_size: int
    cuts: tuple[Cut, ...]  # they lead to it from the order before
    discarded: tuple[int, ...]  # sent away by a rule, although nothing was wrong with them


def assign(
    order: Sequence[int],
    *,
    gone: Collection[int],
    groups: Sequence[str],
    rules: Sequence[RankRule],
    world_size_min: int = 0,
    active_world_size_min: int = 0,
) -> Ranking | str:
    """Return who has which rank when ``gone`` take no part any more, or why none has.

    Linear in workers. ``groups`` are by worker; one whose group is ``""`` belongs to none.
    """
    ranking = list(order)
    leaving = {worker for worker in order if worker in gone}
    cuts: list[Cut] = []
    discarded: list[int] = []
    for rule in rules:
        if rule.kind is RuleKind.GROUPS:
            unfit = _unfit(ranking, leaving, groups, rule)
            discarded += unfit
            leaving.update(unfit)
        elif leaving and rule.kind in (RuleKind.SHIFT, RuleKind.FILL):
            is_filled = rule.kind is RuleKind.FILL
            cuts.append(Cut(removed=tuple(sorted(leaving)), is_filled=is_filled))
            ranking = cuts[-1].apply(ranking)
            leaving = set()
    if leaving:
        return f"no rule says who takes the ranks of {count(len(leaving), 'worker')}"
    active = len(ranking)
    for rule in rules:
        if rule.kind is RuleKind.ACTIVE_MAX:
            active = min(active, rule.count)
        elif rule.kind is RuleKind.ACTIVE_DIVISOR:
            active -= active % rule.count
    if not ranking:
        return "no worker is left"
    left, least = f"{count(len(ranking), 'worker')} left", max(1, active_world_size_min)
    if len(ranking) < world_size_min:
        return f"{left}, at least {world_size_min} must take part"
    if active < least:
        return f"of {left}, {active} would call the function, at least {least} must"
    return Ranking(
        order=ranking,
        active_world_size=active,
        cuts=tuple(cuts),
        discarded=tuple(sorted(discarded)),
    )


def _unfit(
    order: Sequence[int], leaving: Collection[int], groups: Sequence[str], rule: RankRule
) -> list[int]:
    """Return those who stayed so far and whose group has not one of the sizes allowed."""
    staying = [worker for worker in order if groups[worker] and worker not in leaving]
    sizes = Counter(groups[worker] for worker in staying)
    unfit = {group for group, size in sizes.items() if not rule.allows(size)}
    return [worker for worker in staying if groups[worker] in unfit] if unfit else []
