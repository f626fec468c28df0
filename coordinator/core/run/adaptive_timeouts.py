"""Pure. Limits learned from how long things take: between two heartbeats, in each section.

Semantics after ``TimeoutsCalc`` of NVIDIA Resiliency Extension 0.4: the longest time of any rank,
times 5, averaged with the earlier limit by a weight of 0.5. There the user says when; here a number
of samples has to be there first, a limit has a floor, and within a round it only grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

HEARTBEAT = ""  # stands for the name of a section: the time between two heartbeats
NAMES_MAX = 65  # of a run: the heartbeat and as many sections as a worker can tell of, 64


class Observation(Struct, frozen=True, kw_only=True):
    """The longest time of a kind so far in a round, of ``samples``, on one host. Seconds."""

    section: str
    longest_s: float
    samples: int


class LearnedLimit(Struct, frozen=True, kw_only=True):
    """One limit and what it came from; durable, so that learning goes on after a restart."""

    section: str
    limit_s: float
    settled_s: float | None = None  # what the rounds before this one came to
    longest_s: float = 0.0  # of the current round, when it was noted
    samples: int = 0


class LearningRules(Struct, frozen=True, kw_only=True):
    """How limits come about; ``factor`` and ``weight`` are those of the source."""

    factor: float = 5.0
    weight: float = 0.5  # of the earlier limit
    limit_min_s: float = 5.0  # however fast a step is: a host that pauses a moment is no hang
    # Samples of one host before its times count: the first steps tell little of the later
    # ones, sections are rarer and more alike.
    heartbeats_min: int = 32
    sections_min: int = 3
    growth_min: float = 0.1  # a change by less is told only at the end of the round
    interval_s: float = 1.0  # changes of this long are journaled and told together


class Learning:
    """Learns the limits of one run. ``due_at``: when what changed is to be told."""

    def __init__(self, rules: LearningRules, limits: Sequence[LearnedLimit] = ()) -> None:
        self.due_at: float | None = None
        self._rules = rules
        # By section; of one that has no limit yet it is 0.
        self._known = {limit.section: limit for limit in limits}
        self._sent = {limit.section: limit.limit_s for limit in limits}

    def observe(self, observations: Iterable[Observation], *, now: float) -> None:
        """Take in what a host says of the current round."""
        for observation in observations:
            known = self._known.get(observation.section)
            if known is None:
                sections = len(self._known) - (HEARTBEAT in self._known)
                if observation.section != HEARTBEAT and sections >= NAMES_MAX - 1:
                    continue
                known = LearnedLimit(section=observation.section, limit_s=0.0)
            longest_s = max(known.longest_s, observation.longest_s)
            known = replace(
                known, longest_s=longest_s, samples=max(known.samples, observation.samples)
            )
            if self._has_enough(known):
                known = replace(known, limit_s=max(known.limit_s, self._smoothed(known)))
            self._known[observation.section] = known
            sent_s = self._sent.get(observation.section, 0.0)
            if known.limit_s > sent_s * (1.0 + self._rules.growth_min) and self.due_at is None:
                self.due_at = now + self._rules.interval_s

    def limits(self) -> tuple[LearnedLimit, ...]:
        """Return all limits in force, and count them as told."""
        self.due_at = None
        in_force = tuple(known for _, known in sorted(self._known.items()) if known.limit_s)
        self._sent = {limit.section: limit.limit_s for limit in in_force}
        return in_force

    def end_round(self) -> None:
        """Settle what the round has come to; the next one begins with that, and may lower it."""
        before, self._known, self.due_at = self._known, {}, None
        for section, known in before.items():
            settled_s = self._smoothed(known) if self._has_enough(known) else known.settled_s
            if settled_s is not None:  # else its place is free for another name
                self._known[section] = LearnedLimit(
                    section=section, limit_s=settled_s, settled_s=settled_s
                )

    def forget(self) -> None:
        """Forget everything."""
        self._known, self._sent, self.due_at = {}, {}, None

    def _has_enough(self, known: LearnedLimit) -> bool:
        is_heartbeat, rules = known.section == HEARTBEAT, self._rules
        return known.samples >= (rules.heartbeats_min if is_heartbeat else rules.sections_min)

    def _smoothed(self, known: LearnedLimit) -> float:
        rules = self._rules
        calculated = max(rules.limit_min_s, rules.factor * known.longest_s)
        if known.settled_s is None:
            return calculated
        return rules.weight * known.settled_s + (1.0 - rules.weight) * calculated
