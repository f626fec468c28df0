"""Rank rules, short to write."""

from collections.abc import Iterable

from drumbeat.coordinator.core.inprocess.rank_rules import RankRule, RuleKind


def group_sizes(sizes: Iterable[int]) -> RankRule:
    """Return the rule that only groups of these sizes stay."""
    bits = sum(1 << size for size in sizes)
    allowed = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    return RankRule(kind=RuleKind.GROUPS, allowed=allowed)


def active_max(count: int) -> RankRule:
    """Return the rule that at most ``count`` workers are active."""
    return RankRule(kind=RuleKind.ACTIVE_MAX, count=count)


def active_divisor(count: int) -> RankRule:
    """Return the rule that a multiple of ``count`` is active."""
    return RankRule(kind=RuleKind.ACTIVE_DIVISOR, count=count)
