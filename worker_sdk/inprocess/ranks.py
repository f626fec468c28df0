"""Shell. Rules by which the workers that are left get their ranks.

They are data: the coordinator, which knows all workers, applies them. So a ``RankAssignment`` of
the user's own is refused: each worker would have to evaluate it on what only all of them know.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from worker_sdk.inprocess.arguments import call_with, count
from worker_sdk.inprocess.hooks import flattened
from worker_sdk.inprocess.state import Mode, State

GROUP_SIZE_MAX, GROUP_BYTES_MAX = 2048 * 8 - 1, 128
"""The largest group a rule can speak of, and the longest name of one."""


class RankAssignment(abc.ABC):  # noqa: B024 - its kinds share no method
    """A rule, or several of them composed; see the classes below."""


class ShiftRanks(RankAssignment):
    """All move down to close the gaps, in order."""


class FillGaps(RankAssignment):
    """The highest ranks move into the gaps; the others keep theirs."""


@dataclass(eq=False, repr=False)
class FilterCountGroupedByKey(RankAssignment):
    """Ends workers whose group has lost others of it.

    Composed to the right of ``ShiftRanks`` or ``FillGaps``, which close the gaps. The condition
    says whether a group of a size may stay, once for each; the timeout is unused: no worker waits.
    """

    key_or_fn: str | Callable[[State], str]
    condition: Callable[[int], bool]
    timeout: object = None

    def __post_init__(self) -> None:
        if not callable(self.condition):
            raise TypeError(f"condition must be callable, not {self.condition!r}")
        if not callable(self.key_or_fn) and not isinstance(self.key_or_fn, str):
            raise TypeError(f"key_or_fn must be a string or callable, not {self.key_or_fn!r}")

    def group_of(self, state: State) -> str:
        """Return the name of the worker's group, cut to what fits on the wire."""
        key = call_with(self.key_or_fn, state) if callable(self.key_or_fn) else self.key_or_fn
        return str(key).encode("utf-8", "replace")[:GROUP_BYTES_MAX].decode("utf-8", "ignore")

    def allowed_sizes(self, largest: int) -> bytes:
        """Return which sizes up to ``largest`` may stay, a bit for each, the lowest first."""
        largest = min(largest, GROUP_SIZE_MAX)
        sizes = sum(1 << size for size in range(1, largest + 1) if self.condition(size))
        return sizes.to_bytes(largest // 8 + 1, "little")


class RankFilter(RankAssignment):
    """Says which workers call the function and which stand by.

    Those below are rules like the others. One of the user's own is evaluated by each worker on its
    own state: it must come to the same end on all of them, and leave active rank 0 to rank 0, for
    whom the master address was chosen.
    """

    @abc.abstractmethod
    def __call__(self, state: State) -> State:
        """Return the state with ``mode``, ``active_rank`` and ``active_world_size`` set."""


class _LowestRanks(RankFilter):
    """Has those with the lowest ranks call the function."""

    max_active_world_size: int | None = None
    divisor: int = 1

    def __post_init__(self) -> None:
        count("max_active_world_size", self.max_active_world_size, is_optional=True)
        count("divisor", self.divisor)

    def __call__(self, state: State) -> State:
        limits = state.world_size, state.active_world_size, self.max_active_world_size
        size = min(limit for limit in limits if limit is not None)
        size -= size % self.divisor
        is_active = state.rank < size
        return replace(
            state,
            mode=Mode.ACTIVE if is_active else Mode.INACTIVE,
            active_rank=state.rank if is_active else None,
            active_world_size=size,
        )


class ActivateAllRanks(_LowestRanks):
    """All call the function."""


@dataclass(eq=False, repr=False)
class MaxActiveWorldSize(_LowestRanks):
    """At most so many call the function, those with the lowest ranks."""

    max_active_world_size: int | None = None


@dataclass(eq=False, repr=False)
class ActiveWorldSizeDivisibleBy(_LowestRanks):
    """As many as ``divisor`` divides call the function, those with the lowest ranks."""

    divisor: int = 1


WorldSizeDivisibleBy = ActiveWorldSizeDivisibleBy

_FILTERS = (ActivateAllRanks, MaxActiveWorldSize, ActiveWorldSizeDivisibleBy)
_RULES = (ShiftRanks, FillGaps, FilterCountGroupedByKey, *_FILTERS)
_ALLOWED = ", ".join(rule.__name__ for rule in _RULES) + ", and Compose of these"


def rules_of(
    assignment: RankAssignment, rank_filter: RankFilter | None
) -> tuple[list[RankAssignment], RankFilter | None]:
    """Return the rules for the coordinator to apply, in this order, and the user's own filter."""
    if not isinstance(assignment, RankAssignment):
        raise TypeError(f"rank_assignment must be one of {_ALLOWED}; not {assignment!r}")
    if rank_filter is not None and not isinstance(rank_filter, RankFilter):
        raise TypeError(f"rank_filter must be a RankFilter, not {rank_filter!r}")
    rules: list[Any] = list(flattened(assignment))
    # The exact classes: a subclass may do anything, and the coordinator would not ask it.
    for rule in rules:
        if type(rule) not in _RULES:
            raise TypeError(
                f"rank_assignment can't hold a {type(rule).__name__}: rules are applied by the"
                f" coordinator, which runs no code of the user's. Allowed: {_ALLOWED}"
            )
    kinds = [type(rule) for rule in rules]
    if kinds.count(FilterCountGroupedByKey) > 1:
        raise ValueError("rank_assignment may hold one FilterCountGroupedByKey, not several")
    if FilterCountGroupedByKey in kinds:
        kinds = kinds[kinds.index(FilterCountGroupedByKey) :]
    if not {ShiftRanks, FillGaps} & set(kinds):
        raise ValueError(
            "rank_assignment must hold ShiftRanks or FillGaps, applied after"
            " FilterCountGroupedByKey (in Compose: to the left of it)"
        )
    filters: list[Any] = list(flattened(rank_filter))
    if all(type(rule) in _FILTERS for rule in filters):
        return [*rules, *filters], None
    return rules, rank_filter


def filtered(state: State, rank_filter: RankFilter | None) -> State:
    """Return the state after the user's own filter; raises ``TypeError``, ``ValueError``."""
    if rank_filter is None:
        return state
    result = call_with(rank_filter, state)
    if not isinstance(result, State):
        raise TypeError(f"rank_filter must return a State, not {result!r}")
    if (result.active_rank == 0) != (result.rank == 0):
        raise ValueError(
            f"rank_filter gave rank {result.rank} the active_rank {result.active_rank};"
            " active rank 0 must be rank 0, and rank 0 must be active"
        )
    return result
