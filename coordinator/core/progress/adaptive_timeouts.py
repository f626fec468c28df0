"""Pure. Limits learned from how long things take: between two heartbeats, in each section.

Semantics after ``TimeoutsCalc`` of NVIDIA Resiliency Extension 0.4: the longest
time that any rank took, times a safety factor of 5, averaged with the earlier
limit with a weight of 0.5. There the user says when to calculate. Here a number
of samples has to be there first, a limit has a floor, and within a round it only grows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

HEARTBEAT = ""
"""Stands for the name of a section: the time between two heartbeats."""

NAMES_MAX = 65
"""Names of a run: the heartbeat and as many sections as a worker can tell of, 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The longest time of a kind so far in a round, of ``samples``, on one host. Seconds."""

    section: str
    longest_s: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedLimit:
    """One limit and what it came from; durable, so that learning goes on after a restart.

    ``settled_s`` is what the rounds before this one came to, ``None`` if nothing.
    ``longest_s`` and ``samples`` are of the current round, when it was noted.
    """

    section: str
    limit_s: float
    settled_s: float | None = None
    longest_s: float = 0.0
    samples: int = 0


def differ(limits: Iterable[LearnedLimit], others: Iterable[LearnedLimit]) -> bool:
    """Return whether agents that know the one would go by something else with the other."""
    mine, theirs = ({at.section: at.limit_s for at in known} for known in (limits, others))
    return mine != theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRules:
    """How limits come about.

    ``factor`` and ``weight`` (of the earlier limit) are those of the source.
    ``limit_min_s``: no limit is shorter, however fast a step is: a host that
    pauses for a moment is no hang. ``heartbeats_min`` and ``sections_min``:
    samples of one host before its times count; the first steps tell little of
    the later ones, sections are rarer and more alike. ``growth_min``: a change
    by less is told only at the end of the round.
    ``interval_s``: changes of this long are journaled and told together.
    """

    factor: float = 5.0
    weight: float = 0.5
    limit_min_s: float = 5.0
    heartbeats_min: int = 32
    sections_min: int = 3
    growth_min: float = 0.1
    interval_s: float = 1.0


@dataclass(slots=True, kw_only=True)
class _Known:
    """What is known of one name: the limit in force, the one told, and the round so far."""

    limit_s: float | None = None
    told_s: float | None = None
    settled_s: float | None = None
    longest_s: float = 0.0
    samples: int = 0


class Learning:
    """Learns the limits of one run. ``due_at``: when what changed is to be told."""

    def __init__(self, rules: LearningRules, limits: Iterable[LearnedLimit] = ()) -> None:
        self.due_at: float | None = None
        self._rules = rules
        self._known = {
            limit.section: _Known(
                limit_s=limit.limit_s,
                told_s=limit.limit_s,
                settled_s=limit.settled_s,
                longest_s=limit.longest_s,
                samples=limit.samples,
            )
            for limit in limits
        }

    def observe(self, observations: Iterable[Observation], *, now: float) -> None:
        """Take in what a host says of the current round."""
        for observation in observations:
            known = self._of(observation.section)
            if known is None:
                continue
            known.longest_s = max(known.longest_s, observation.longest_s)
            known.samples = max(known.samples, observation.samples)
            if self._has_enough(observation.section, known):
                known.limit_s = max(known.limit_s or 0.0, self._smoothed(known))
            if self._is_news(known) and self.due_at is None:
                self.due_at = now + self._rules.interval_s

    def limits(self) -> tuple[LearnedLimit, ...]:
        """Return all limits in force, and count them as told."""
        self.due_at = None
        for known in self._known.values():
            known.told_s = known.limit_s
        return tuple(
            LearnedLimit(
                section=section,
                limit_s=known.limit_s,
                settled_s=known.settled_s,
                longest_s=known.longest_s,
                samples=known.samples,
            )
            for section, known in sorted(self._known.items())
            if known.limit_s is not None
        )

    def end_round(self) -> None:
        """Settle what the round has come to; the next one begins with that, and may lower it."""
        for section, known in list(self._known.items()):
            if self._has_enough(section, known):
                known.settled_s = self._smoothed(known)
            known.limit_s, known.longest_s, known.samples = known.settled_s, 0.0, 0
            if known.settled_s is None:
                del self._known[section]  # its place is free for another name
        self.due_at = None

    def forget(self) -> None:
        """Forget everything."""
        self._known, self.due_at = {}, None

    def _of(self, section: str) -> _Known | None:
        """Return what is known of a name, ``None`` if there is no room for one more."""
        known = self._known.get(section)
        if known is None:
            sections = len(self._known) - (HEARTBEAT in self._known)
            if section != HEARTBEAT and sections >= NAMES_MAX - 1:
                return None
            known = self._known[section] = _Known()
        return known

    def _has_enough(self, section: str, known: _Known) -> bool:
        rules = self._rules
        least = rules.heartbeats_min if section == HEARTBEAT else rules.sections_min
        return known.samples >= least

    def _smoothed(self, known: _Known) -> float:
        rules = self._rules
        calculated = max(rules.limit_min_s, rules.factor * known.longest_s)
        if known.settled_s is None:
            return calculated
        return rules.weight * known.settled_s + (1.0 - rules.weight) * calculated

    def _is_news(self, known: _Known) -> bool:
        if known.limit_s is None or known.told_s is None:
            return known.limit_s is not None
        return known.limit_s > known.told_s * (1.0 + self._rules.growth_min)
