"""Pure. Judges why a round hangs from what its ranks say of their collectives.

A rank whose call has not ended waits for all ranks of the group that have not entered that call,
by its number. Such waits are followed from group to group until they end: at a rank that waits for
no other rank, at a call that ranks made differently, or where they began. What
ranks have made in the past votes on who is wrong; where it does not decide, no rank is named.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

from drumbeat.coordinator.core.failures.collective_cycles import (
    WaitGraph,
    are_alike,
    out_of_order,
)
from drumbeat.coordinator.core.failures.collective_evidence import (
    SeenCalls,
    SeenGroup,
    is_collective,
)
from drumbeat.coordinator.core.failures.collective_hang import (
    CollectiveCause,
    CollectiveDiagnosis,
    CollectiveKind,
    describe_ranks,
)
from drumbeat.coordinator.core.failures.collective_waits import Wait, waits_in

# A rank that made a call within this share of the time that others wait for it still moves.
FRESH_SHARE = 0.5
_LOST = "{waits} for ranks that are not known"


def diagnose_collectives(
    seen: SeenCalls,
    *,
    waiting: Collection[int] = (),
    fresh_s: float = 0.0,
) -> CollectiveDiagnosis:
    """Judge why a round hangs. Of ranks without an answer nothing is known.

    ``waiting`` are ranks that wait for others as their stacks show, if in what no recorder shows,
    such as gloo's point-to-point operations: they are not named. Calls younger than ``fresh_s``
    show that a rank moves.
    """
    return _Judgement(seen, frozenset(waiting), fresh_s).diagnosis()


class _Judgement:
    """Which call or rank the waits lead to."""

    def __init__(self, seen: SeenCalls, waiting: frozenset[int], fresh_s: float) -> None:
        self._seen, self._elsewhere, self._fresh_s = seen, waiting, fresh_s
        self._silent = seen.world.difference(seen.answers)
        self._waits_of: dict[int, list[Wait]] = {}  # of ranks that wait
        waits = [wait for group in seen for wait in self._waits_in(group)]
        self._waits = sorted(waits, key=lambda wait: -len(wait.ranks))
        self._free = frozenset(seen.answers).difference(self._waits_of, waiting)
        # Those that last; of the others ranks still enter their calls.
        self._lasting = [wait for wait in self._waits if wait.oldest_s >= fresh_s]
        self._graph = WaitGraph(self._lasting, self._waits_of, seen)

    def diagnosis(self) -> CollectiveDiagnosis:
        """Look for the cause, the surest kind first."""
        return (
            self._mismatch()
            or self._missing()
            or self._cycle()
            or self._unseen()
            or self._stuck()
            or self._nothing()
        )

    def _waits_in(self, group: SeenGroup) -> Iterator[Wait]:
        if not group.is_waited_in:
            return
        for window in group.windows():
            if not all(call.is_done for call in window.calls):
                for rank in window.ranks:
                    self._waits_of.setdefault(rank, [])
        for wait in waits_in(group):
            for rank in (*wait.ranks, *wait.later):
                self._waits_of[rank].append(wait)
            yield wait

    def _mismatch(self) -> CollectiveDiagnosis | None:
        mismatches = [wait for wait in self._lasting if wait.versions]
        if not mismatches:
            return None
        wait = max(mismatches, key=lambda wait: (wait.agreed(), len(wait.ranks)))
        others = wait.versions[1:] if wait.agreed() else []
        odd = [rank for _, ranks in others for rank in ranks]
        return CollectiveDiagnosis(
            kind=CollectiveKind.MISMATCH,
            waits=tuple(wait.shown(*version) for version in wait.versions),
            causes=tuple(self._cause(rank, wait) for rank in sorted(odd)),
            unknown="" if odd else "no majority of the ranks made the same call",
        )

    def _missing(self) -> CollectiveDiagnosis | None:
        """Look for ranks that wait for no other rank.

        If they are most of a group, the others may have made a call too many.
        """
        stalled, moving = [], []
        for wait in self._lasting:
            free = wait.missing & self._free
            if len(free) >= 2 and 2 * len(free) > wait.size:
                continue
            fresh_s = self._fresh_s
            if math.isfinite(wait.oldest_s):
                fresh_s = max(fresh_s, FRESH_SHARE * wait.oldest_s)
            slow = {rank for rank in free if self._age_s(rank) < fresh_s}
            stalled.append((wait, free - slow))
            moving.append((wait, free & slow))
        missing = self._named(CollectiveKind.MISSING, stalled)
        return missing or self._named(CollectiveKind.MOVING, moving)

    def _named(
        self, kind: CollectiveKind, candidates: Iterable[tuple[Wait, frozenset[int]]]
    ) -> CollectiveDiagnosis | None:
        """Name the ranks that are missing in the call that most ranks wait in."""
        wait, ranks = next((pair for pair in candidates if pair[1]), (None, frozenset[int]()))
        if wait is None:
            return None
        causes = tuple(self._cause(rank, wait) for rank in sorted(ranks))
        return CollectiveDiagnosis(kind=kind, waits=(wait.shown(),), causes=causes)

    def _cycle(self) -> CollectiveDiagnosis | None:
        cycle = self._graph.find_cycle()
        if not cycle:
            return None
        odd = sorted(out_of_order(cycle, self._seen))
        return CollectiveDiagnosis(
            kind=CollectiveKind.CYCLE,
            waits=tuple(wait.shown() for wait in cycle),
            causes=tuple(self._cause(rank, cycle[0]) for rank in odd),
            unknown="" if odd else "no majority of the ranks agrees on the order of these calls",
        )

    def _unseen(self) -> CollectiveDiagnosis | None:
        """Look for missing ranks of which too little is known."""
        silent = frozenset[int]().union(*(w.missing & self._silent for w in self._lasting))
        if len(silent) == 1:
            waits = [wait for wait in self._lasting if wait.is_entered_by_most()]
            only = [(wait, silent) for wait in waits if wait.missing == silent]
            diagnosis = self._named(CollectiveKind.MISSING, only)
            # Else one of those that wait has made a mistake.
            if diagnosis and are_alike(diagnosis.waits[0].ranks, self._seen):
                return diagnosis
        elsewhere = self._elsewhere.difference(self._waits_of)
        lost = frozenset(rank for rank, waits in self._waits_of.items() if not waits)
        for ranks, problem in (
            (self._silent, "gave no answer"),
            (elsewhere, "{waits} for other ranks in a call that is not recorded"),
            (lost, _LOST),
            (self._free, "{waits} for no other rank, and are most of the group"),
        ):
            wait = next((wait for wait in self._lasting if wait.missing & ranks), None)
            if wait is not None:
                return self._undecided(_of(wait.missing & ranks, problem), wait)
        return None

    def _stuck(self) -> CollectiveDiagnosis | None:
        entered = (wait for wait in self._lasting if not wait.missing)
        wait = next((wait for wait in entered if not any(self._graph.following(wait))), None)
        if wait is None:
            return None
        return CollectiveDiagnosis(kind=CollectiveKind.STUCK, waits=(wait.shown(),))

    def _nothing(self) -> CollectiveDiagnosis:
        if self._waits:
            waits = (self._waits[0].shown(),)
            return CollectiveDiagnosis(kind=CollectiveKind.MOVING, waits=waits)
        if not self._seen.answers:
            return self._undecided("no rank gave an answer")
        if self._waits_of:
            return self._undecided(_of(self._waits_of, _LOST))
        return CollectiveDiagnosis(kind=CollectiveKind.NONE)

    def _undecided(self, problem: str, wait: Wait | None = None) -> CollectiveDiagnosis:
        waits = (wait.shown(),) if wait is not None else ()
        return CollectiveDiagnosis(kind=CollectiveKind.UNKNOWN, waits=waits, unknown=problem)

    def _cause(self, rank: int, wait: Wait) -> CollectiveCause:
        answer = self._seen.answers.get(rank)
        age_s = self._age_s(rank) if answer is not None else math.inf
        is_like = is_collective(wait.call)
        calls = (
            call
            for group in answer or ()
            if self._seen.group_of(group) is wait.group
            for call in group.calls
            if is_collective(call) == is_like
        )
        return CollectiveCause(
            rank=rank,
            last=max(calls, key=lambda call: call.sequence, default=None),
            has_answered=answer is not None,
            has_groups=bool(answer),
            age_s=age_s if math.isfinite(age_s) else None,
        )

    def _age_s(self, rank: int) -> float:
        """Return how long ago a rank made its latest call; without end if that is not known."""
        calls = (call for group in self._seen.answers[rank] for call in group.calls)
        ages_s = (call.age_s for call in calls if call.age_s is not None)
        return min(ages_s, default=math.inf)


def _of(ranks: Collection[int], problem: str) -> str:
    waits = "waits" if len(ranks) == 1 else "wait"
    return f"{describe_ranks(ranks)} {problem.format(waits=waits)}"
