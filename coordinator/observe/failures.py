"""Pure. Failures of a run by their causes, and what that says of where to look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from drumbeat.coordinator.observe.goodput.stretches import Cause, StretchEnd
from drumbeat.text.format import listed

# Groups of a run that are kept, the latest; ranks and agents of each that are.
GROUPS_MAX, KEPT_MAX = 16, 64
# A run is in a crash loop that failed so often, each time so soon after the one before.
LOOP_FAILURES, LOOP_PERIOD_S = 3, 600.0
# Failures with one cause may be as far apart as they like. How long after the latest the loop is
# over: so many times what was between the failures before, but not sooner than that.
LOOP_OVER_PERIODS, LOOP_OVER_S = 2.0, 300.0
LOST, LEFT, UNKNOWN = "a host was lost", "an agent left", "unknown cause"
_NAMES_SHOWN = 3


@dataclass(slots=True, kw_only=True)
class FailureGroup:
    """Failures with one cause. What they hit is in order of the latest time, with how often."""

    cause: str
    at_s: float = 0.0  # the latest
    count: int = 0
    ranks: dict[int, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)  # of agents
    together: int = 0  # the most agents that one of the failures hit

    def take(self, end: StretchEnd, cause: str, at_s: float) -> None:
        """Add a failure."""
        names = end.names or ((end.host,) if end.host else ())
        # Of a failure whose record is under way the place is not known yet.
        self.cause, self.at_s = max(self.cause, cause, key=len), at_s
        self.count += 1
        self.together = max(self.together, len(names))
        self.ranks = _counted(self.ranks, end.ranks)
        self.names = _counted(self.names, names)

    @property
    def clears_hosts(self) -> bool:
        """Whether one rank failed on several hosts: none of these is to blame."""
        return len(self.ranks) == 1 and len(self.names) > 1

    @property
    def suspects(self) -> list[str]:
        """Agents whose hosts may be to blame: not those that left, nor several at once."""
        is_of_none = self.clears_hosts or self.together > 1 or self.cause == LEFT
        return [] if is_of_none else list(self.names)

    def advice(self, hosts: int) -> str:
        """Say what is common to the failures and what that means; ``hosts`` has the round."""
        if self.cause == LOST:
            return self._advice_on_losses()
        if self.count < 2 or not self.names or self.cause == LEFT:
            return ""
        where = listed(self.names, most=_NAMES_SHOWN)
        ranks = f"ranks {listed(map(str, sorted(self.ranks)), most=4)}" if self.ranks else ""
        if len(self.ranks) == 1:
            ranks = f"always rank {next(iter(self.ranks))}"
        if self.clears_hosts:
            return f"{ranks}, on {where}: likely code or data, not a host"
        if len(self.names) > 1 or hosts < 2:
            return f"{ranks} on {where}: likely code or data".lstrip()
        if len(self.ranks) == 1:
            return f"{ranks} on {where}: look at this host, or at the data of this rank"
        return f"{ranks}, always on {where}: look at this host".removeprefix(", ")

    def _advice_on_losses(self) -> str:
        if self.together > 1:
            return f"{self.together} hosts at once: look at what they share, not at one of them"
        name, times = max(self.names.items(), key=lambda item: item[1], default=("", 0))
        return f"{name} was lost {times} times: look at this host" if times > 1 else ""


@dataclass(slots=True, kw_only=True)
class FailureHistory:
    """The fold of a run's failures that ended a round or interrupted an iteration."""

    groups: list[FailureGroup] = field(default_factory=list)  # the latest last
    recent: list[tuple[float, str]] = field(default_factory=list)  # when, and the causes
    round_id: int | None = None  # of the latest
    reason: str = ""

    def take(self, end: StretchEnd, at_s: float, round_id: int | None, reason: str) -> None:
        """Add a failure; ``reason`` says it in words."""
        cause = end.signature or (LOST if end.cause is Cause.AGENT_LOST else UNKNOWN)
        alike = (group for group in self.groups if is_same_cause(group.cause, cause))
        group = next(alike, None) or FailureGroup(cause=cause)
        group.take(end, cause, at_s)
        others = [other for other in self.groups if other is not group]
        self.groups = [*others[-GROUPS_MAX + 1 :], group]
        self.recent = [*self.recent[-LOOP_FAILURES + 1 :], (at_s, group.cause)]
        self.round_id, self.reason = round_id, reason

    def learn(self, cause: str) -> None:
        """Take in where a failure was, whose record came after it had been counted."""
        for group in reversed(self.groups):
            if cause.startswith(f"{group.cause} at "):
                group.cause = cause
                break

    @property
    def at_s(self) -> float | None:
        """When the latest was; ``None``: there was none."""
        return self.recent[-1][0] if self.recent else None

    def loop_s(self, now: float) -> float | None:
        """Return in which time the latest failures of a crash loop were; ``None``: it is none."""
        if len(self.recent) < LOOP_FAILURES:
            return None
        (first, _), (last, latest) = self.recent[0], self.recent[-1]
        period_s = (last - first) / (LOOP_FAILURES - 1)
        is_one = latest not in (LOST, LEFT) and all(
            is_same_cause(cause, latest) for _, cause in self.recent
        )
        is_over = now - last > max(LOOP_OVER_S, LOOP_OVER_PERIODS * period_s)
        return None if is_over or not (is_one or period_s <= LOOP_PERIOD_S) else last - first

    def host_advice(self) -> str:
        """Name a host that failed with several causes; empty if there is none."""
        causes: dict[str, list[str]] = {}
        for group in reversed(self.groups):
            for name in group.suspects:
                causes.setdefault(name, []).append(group.cause)
        name, known = max(causes.items(), key=lambda item: len(item[1]), default=("", []))
        if len(known) < 2:
            return ""
        return f"{name} failed in {len(known)} ways ({'; '.join(known[:3])}): look at this host"


def is_same_cause(one: str, other: str) -> bool:
    """Return whether two causes are one, of which the place may be known only once."""
    short, long = sorted((one, other), key=len)
    return short == long or long.startswith(f"{short} at ")


def _counted(known: dict[Any, int], hit: Iterable[Any]) -> dict[Any, int]:
    """Count those that were hit; they are the first now, and the last are forgotten."""
    latest = {key: known.get(key, 0) + 1 for key in hit}
    both = {**latest, **{key: number for key, number in known.items() if key not in latest}}
    return dict(list(both.items())[:KEPT_MAX])
