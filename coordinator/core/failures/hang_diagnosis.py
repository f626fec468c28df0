"""Pure. Judges which ranks cause a hang, from what all ranks of a round do at one moment.

What ranks say of their collectives decides first: it names the call that others wait in. Where it
names no rank, their stacks decide. A rank that waits for other ranks in a collective causes
nothing, whichever limit it exceeds; the cause is among those that do something else. If that does
not tell, the one that is elsewhere than most, or at an earlier step, is the cause. If that does not
tell either, no rank is named: a rank is never named only because nothing was seen of it, unless it
must be the cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter

from msgspec.structs import replace

from drumbeat.coordinator.core.failures.collective_diagnosis import diagnose_collectives
from drumbeat.coordinator.core.failures.collective_hang import (
    CollectiveDiagnosis,
    CollectiveKind,
    describe_call,
    describe_cause,
    describe_ranks,
    describe_waits,
)
from drumbeat.coordinator.core.failures.hang_evidence import UNKNOWN, Group, RankEvidence, SeenRanks
from drumbeat.coordinator.core.failures.stack_frames import Activity
from drumbeat.coordinator.core.model import ExpiredLimit, Hang, HangDiagnosis, HungRank
from drumbeat.model import HangGroup, HangKind
from drumbeat.text.durations import format_duration
from drumbeat.text.format import are, count, listed, one_line, ranges
from drumbeat.text.violation import show_value

# A rank whose latest heartbeat is younger than this share of the time that the round stands still,
# or than so many usual steps, has gone on meanwhile: it neither hangs nor waits.
FRESH_SHARE = 0.5
FRESH_STEPS = 3
# A call that ranks wait in for less time than this is none to speak of.
NOTABLE_S = 2.0
LONGER_SHARE = 1.5  # of a limit: what lasted longer is told beside it
CAUSES_MAX = 4  # ranks named as the cause; of more the rest is a number
ODD_MAX = 4  # ranks that are the odd ones out; more of them are another part of the program
GROUPS_MAX = 8  # groups shown; of more the rest is a number
RANKS_CHARACTERS_MAX = 120  # of the ranks of one group
STACK_CHARACTERS_MAX = 4_000  # of each stack that is kept
NOTES_CHARACTERS_MAX = 300
_WAITING = (Activity.WAITS, Activity.MAY_WAIT)
_NO_STACK = "no rank gave a stack"
_rank = attrgetter("rank")

LOST = "on a host that was lost"

LIMITS_BROKEN = {
    HangKind.TIMER: "timer {name} not released {limit}",
    HangKind.SECTION: "section {name} not left {limit}",
    HangKind.STARTUP: "no first heartbeat {limit} of its start",
    HangKind.PROGRESS: "no further heartbeat {limit}",
    HangKind.RUNTIME: "its interpreter gave no sign of life {limit}",
    HangKind.EXIT: "its interpreter did not end {limit}",
    HangKind.OUTPUT: "no line matched {name} {limit}",
    HangKind.COLLECTIVE: "no process group moved {limit}",
}


def describe_limit(limit: ExpiredLimit | Hang) -> str:
    """Say which limit was exceeded."""
    broken, name = LIMITS_BROKEN[limit.kind], show_value(limit.scope)
    if limit.kind is HangKind.OUTPUT:
        name = name.replace("\\\\", "\\")  # a regular expression as it was given
    return broken.format(name=name, limit=f"within {limit.limit_s:g} s")


def diagnose(
    round_id: int, seen: SeenRanks, limits: Mapping[int, ExpiredLimit], *, now: float
) -> HangDiagnosis:
    """Judge a hang. ``limits`` are those that expired, by rank, at least one."""
    rank, first = max(limits.items(), key=lambda item: item[1].elapsed_s - item[1].limit_s)
    still_s, fresh_s = _still_for(first, seen.get(rank))
    still = seen.groups(
        without_lock={r for r, limit in limits.items() if limit.kind is HangKind.RUNTIME},
        expired=limits.keys(),
        fresh_s=fresh_s,
    )
    calls = _diagnose_calls(seen, fresh_s)
    causes, why = _named_by_calls(calls, seen), ""
    if not causes:
        causes, why = _Judgement(still, limits, fresh_s).causes()
    late = first.elapsed_s > LONGER_SHARE * first.limit_s
    now_s = f", now {format_duration(first.elapsed_s)}" if late else ""
    diagnosis = _Finding(still, causes, calls, why).diagnosis(
        round_id, first, now=now, still_s=still_s
    )
    return replace(
        diagnosis,
        summary=f"{diagnosis.summary} ({describe_limit(first)}{now_s})",
        is_held=any(limit.is_held for limit in limits.values()),
    )


def diagnose_now(round_id: int, seen: SeenRanks, *, now: float) -> HangDiagnosis | None:
    """Say which ranks others wait for in a collective, for a reader; None if no rank waits long."""
    calls = _diagnose_calls(seen, NOTABLE_S)
    if not describe_waits(calls):
        return None
    waits = {rank for wait in calls.waits for rank in wait.ranks}
    since_s = calls.waits[0].since_s or 0.0
    fresh_s = FRESH_SHARE * since_s
    limit = ExpiredLimit(
        number=0, local_rank=0, kind=HangKind.COLLECTIVE, limit_s=0.0, elapsed_s=since_s
    )
    still = seen.groups(without_lock=(), expired=waits, fresh_s=fresh_s)
    causes, why = _named_by_calls(calls, seen), calls.unknown
    if not causes and calls.kind is CollectiveKind.UNKNOWN:
        causes, why = _Judgement(still, dict.fromkeys(waits, limit), fresh_s).causes()
    finding = _Finding(still, causes, calls, why)
    return finding.diagnosis(round_id, limit, now=now, still_s=since_s)


def _diagnose_calls(seen: SeenRanks, fresh_s: float) -> CollectiveDiagnosis:
    fresh_s = min(fresh_s, NOTABLE_S)
    return diagnose_collectives(seen.calls, waiting=seen.waiting(), fresh_s=fresh_s)


def _named_by_calls(calls: CollectiveDiagnosis, seen: SeenRanks) -> list[RankEvidence]:
    """Return the ranks that the collectives name as the cause."""
    if calls.kind is CollectiveKind.MOVING:
        return []
    return [rank for cause in calls.causes if (rank := seen.get(cause.rank)) is not None]


def diagnose_lost(
    round_id: int, lost: Sequence[HungRank], limits: Mapping[int, ExpiredLimit], *, now: float
) -> HangDiagnosis:
    """Judge a hang whose round loses a host: all other ranks wait for the ranks that were on it."""
    first = max(limits.values(), key=lambda limit: limit.elapsed_s - limit.limit_s)
    verb, who = are(len(lost)), listed(map(str, lost), CAUSES_MAX)
    return HangDiagnosis(
        round_id=round_id,
        summary=f"{who} {verb} {LOST}, other ranks wait ({describe_limit(first)})",
        limit=first,
        at_s=now,
        since_s=now - first.elapsed_s,
        is_held=any(limit.is_held for limit in limits.values()),
        causes=tuple(lost[:CAUSES_MAX]),
        causes_count=len(lost),
    )


def _still_for(first: ExpiredLimit, rank: RankEvidence | None) -> tuple[float, float]:
    """Return how long a round stands still at most, and how old a heartbeat is that tells of it.

    A limit may have begun long before: then the rank that exceeds it had heartbeats since.
    """
    still_s = first.elapsed_s
    if rank is None or rank.age_s >= still_s:
        return still_s, FRESH_SHARE * still_s
    step_s = rank.progress.step_time_s if rank.progress is not None else None
    fresh_s = max(FRESH_SHARE * rank.age_s, FRESH_STEPS * (step_s or 0.0))
    return rank.age_s, min(FRESH_SHARE * still_s, fresh_s)


class _Judgement:
    """Which of the ranks that do not go on the others wait for."""

    def __init__(
        self, still: Sequence[Group], limits: Mapping[int, ExpiredLimit], fresh_s: float
    ) -> None:
        self._still, self._limits, self._fresh_s = still, limits, fresh_s
        self._count = sum(map(len, still))

    def causes(self) -> tuple[list[RankEvidence], str]:
        """Return the causes, and if there are none, why."""
        if self._count == 1:
            (alone,) = self._members(Activity)
            return ([alone], "") if alone.rank in self._limits else ([], _NO_STACK)
        if all(group.activity is Activity.SILENT for group in self._still):
            return [], _NO_STACK
        if stopped := self._members([Activity.STOPPED]):
            is_all = len(stopped) == self._count
            return ([], "all ranks are stopped") if is_all else (stopped, "")
        busy = self._members([Activity.BUSY])
        if all(limit.kind is HangKind.EXIT for limit in self._limits.values()):
            ending = [rank for rank in busy if rank.rank in self._limits]
            if ending:
                return ending, ""  # the others wait for none of them: most have ended
        waiting = [group for group in self._still if group.activity in _WAITING]
        return self._among_waiting(busy, waiting) if waiting else self._among_busy(busy)

    def _among_waiting(
        self, busy: list[RankEvidence], waiting: Sequence[Group]
    ) -> tuple[list[RankEvidence], str]:
        """Judge where some ranks wait: for those that do something else."""
        candidates = [rank for rank in busy if self._is_stalled(rank)] or self._of_same_role(busy)
        if not candidates:
            return self._among_silent(waiting)
        is_sure = any(group.activity is Activity.WAITS for group in waiting)
        if is_sure or 2 * len(candidates) <= self._count:
            return _earliest(candidates), ""
        return [], "most ranks do what may be to wait for a GPU"

    def _among_busy(self, busy: Sequence[RankEvidence]) -> tuple[list[RankEvidence], str]:
        """Judge where no rank is seen to wait: synchronizing with a GPU may not show in a stack."""
        stalled = [rank for rank in busy if self._is_stalled(rank)]
        if len(stalled) == 1 and len(busy) == self._count:
            odd, _ = self._elsewhere(self._still)
            return odd or stalled, ""  # it exceeds a limit of its own, and waits for no rank
        return self._elsewhere(self._still)

    def _of_same_role(self, ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
        """Return those that do the work of a rank that exceeds a limit, which may wait for them."""
        members = (member for group in self._still for member in group.members)
        roles = {member.seat.agent.role for member in members if member.rank in self._limits}
        return [rank for rank in ranks if rank.seat.agent.role in roles]

    def _members(self, activities: Iterable[Activity]) -> list[RankEvidence]:
        wanted = frozenset(activities)
        return [
            member for group in self._still if group.activity in wanted for member in group.members
        ]

    def _is_stalled(self, rank: RankEvidence) -> bool:
        """Return whether a rank is known to stand still: it exceeds a limit or soon will."""
        if rank.rank in self._limits or self._fresh_s <= rank.age_s < UNKNOWN:
            return True
        at = rank.progress
        if at is None or not at.scope or at.scope_age_s is None:
            return False
        is_same = any(at.scope == limit.scope for limit in self._limits.values())
        return is_same and at.scope_age_s >= self._fresh_s

    def _among_silent(self, waiting: Sequence[Group]) -> tuple[list[RankEvidence], str]:
        """Judge where all that gave a stack wait: the cause is among those that gave none.

        Of one that could have answered that is telling. Else only if there is no other way.
        """
        silent = self._members([Activity.SILENT])
        if not silent:
            return self._elsewhere(waiting)
        mute = [rank for rank in silent if rank.could_answer]
        if len(mute) == len(silent):
            return _earliest(silent), ""
        is_one_host = len({rank.seat.agent.incarnation for rank in silent}) == 1
        is_unreached = not any(rank.is_reached for rank in silent)
        must_be = not mute and (len(silent) == 1 or (is_one_host and is_unreached))
        if must_be and len(waiting) == 1:
            return silent, ""
        return [], f"{count(len(silent), 'rank')} gave no stack"

    def _elsewhere(self, groups: Sequence[Group]) -> tuple[list[RankEvidence], str]:
        """Return those that are elsewhere than most or at an earlier step, unless that is at odds.

        Ranks that gave no stack are not known to be at one place.
        """
        ranks = list(chain.from_iterable(group.members for group in groups))
        largest = max(groups, key=len)
        smaller = [group for group in groups if group is not largest]
        steps = [rank.step for rank in ranks if rank.step is not None]
        most = max(steps, default=0)
        behind = [rank for rank in ranks if rank.step is not None and rank.step < most]
        is_behind_few = bool(behind) and len(steps) == len(ranks) and 2 * len(behind) <= len(ranks)
        is_odd = (
            len(smaller) == 1 and 2 * len(smaller[0]) < len(ranks) and len(smaller[0]) <= ODD_MAX
        )
        if is_odd and largest.activity is not Activity.SILENT:
            odd = smaller[0].members
            if is_behind_few and not {*map(_rank, behind)} & {*map(_rank, odd)}:
                return [], "the ranks that are elsewhere than most are not those at an earlier step"
            return list(odd), ""
        if is_behind_few:
            return _earliest(behind), ""
        where = f"at {len(groups)} places, none the odd one out" if smaller else "at one place"
        return [], f"all ranks are {where}{' and at one step' if not behind else ''}"


def _earliest(ranks: list[RankEvidence]) -> list[RankEvidence]:
    """Return those at the lowest step if all name one, else all of them."""
    steps = [rank.step for rank in ranks if rank.step is not None]
    least = min(steps, default=None)
    return [rank for rank in ranks if len(steps) < len(ranks) or rank.step == least]


def _parted(still: Sequence[Group], causes: Collection[int]) -> list[tuple[bool, Group]]:
    """Return where all ranks are and whether they are the cause; that first, then the largest."""
    parts: list[tuple[bool, Group]] = []
    for group in still:
        blamed = group.like(member for member in group.members if member.rank in causes)
        rest = group
        if blamed.members:
            rest = group.like(member for member in group.members if member.rank not in causes)
        parts += [(True, blamed), (False, rest)]
    nonempty = [part for part in parts if part[1].members]
    return sorted(nonempty, key=lambda part: (not part[0], -len(part[1]), part[1].first().rank))


def _named(groups: Iterable[tuple[bool, Group]]) -> list[tuple[Group, RankEvidence]]:
    """Return the causes that are named, in the order of their ranks."""
    causes = [(group, member) for is_cause, group in groups if is_cause for member in group.members]
    return sorted(causes, key=lambda cause: cause[1].rank)[:CAUSES_MAX]


def _hung(group: Group, rank: RankEvidence, collective: str) -> HungRank:
    agent = rank.seat.agent
    return HungRank(
        worker=rank.seat.ranks_of(rank.local_rank),
        incarnation=agent.incarnation,
        agent=agent.name,
        host=agent.host,
        pid=rank.pid,
        place=group.place,
        stacks=rank.stacks[:STACK_CHARACTERS_MAX],
        notes=one_line(rank.problem, NOTES_CHARACTERS_MAX),
        progress=rank.progress,
        collective=collective,
    )


class _Finding:
    """What was found of a hang, on its way to a diagnosis."""

    def __init__(
        self,
        still: Sequence[Group],
        causes: Sequence[RankEvidence],
        calls: CollectiveDiagnosis,
        why: str,
    ) -> None:
        self._causes, self._why = causes, why
        self._groups = _parted(still, {*map(_rank, causes)})
        self._waits = describe_waits(calls)
        self._deeds = {cause.rank: describe_cause(calls, cause) for cause in calls.causes}
        self._waits_in = {rank: wait for wait in calls.waits for rank in wait.ranks}

    def diagnosis(
        self, round_id: int, limit: ExpiredLimit, *, now: float, still_s: float
    ) -> HangDiagnosis:
        """Return it as it is journaled and shown."""
        return HangDiagnosis(
            round_id=round_id,
            summary=self._summary(),
            limit=limit,
            at_s=now,
            since_s=now - still_s,
            causes=tuple(
                _hung(group, member, self._deeds.get(member.rank, ""))
                for group, member in _named(self._groups)
            ),
            causes_count=len(self._causes),
            groups=tuple(self._shown(*part) for part in self._groups[:GROUPS_MAX]),
            groups_count=len(self._groups),
            collective=self._waits,
        )

    def _summary(self) -> str:
        """Say in a sentence who is the cause and what the other ranks do, or what is not known."""
        causes = [group for is_cause, group in self._groups if is_cause]
        remaining = [group for is_cause, group in self._groups if not is_cause]
        waits = [self._waits] if self._waits else []
        if not causes:
            unknown = f"cannot tell which rank causes the hang: {self._why}" if self._why else ""
            return "; ".join(filter(None, (*waits, unknown)))
        clauses = self._clauses(causes, remaining)
        waiting = [group for group in remaining if group.activity in _WAITING]
        if not waits and (size := sum(map(len, waiting))):
            wait = "waits" if size == 1 else "wait"
            places = listed((group.place for group in waiting), 2)
            clauses.append(f"{count(size, 'rank')} {wait} {places}")
        return "; ".join((*waits, ", ".join(clauses)))

    def _clauses(self, causes: Sequence[Group], remaining: Sequence[Group]) -> list[str]:
        """Return what each of the causes did and where it is."""
        clauses = []
        by_deed: dict[tuple[str, str], list[RankEvidence]] = {}
        for group in causes:
            for member in group.members:
                deed = self._deeds.get(member.rank, "")
                by_deed.setdefault((deed, group.place), []).append(member)
        for (deed, where), members in list(by_deed.items())[:CAUSES_MAX]:
            named = _named_ranks(members)
            place = f"{are(len(members))} {where}{_behind(members, remaining)}"
            clauses.append(f"{named} {deed} and {place}" if deed else f"{named} {place}")
        if more := sum(map(len, list(by_deed.values())[CAUSES_MAX:])):
            clauses.append(f"{count(more, 'rank')} elsewhere")
        return clauses

    def _shown(self, is_cause: bool, group: Group) -> HangGroup:
        """Return one place with the call that all its ranks wait in."""
        waits = {id(self._waits_in.get(member.rank)) for member in group.members}
        wait = self._waits_in.get(group.first().rank) if len(waits) == 1 else None
        first_thread = group.first().stacks.strip("\n").partition("\n\n")[0]
        return HangGroup(
            count=len(group),
            ranks=one_line(ranges(map(_rank, group.members)), RANKS_CHARACTERS_MAX),
            place=group.place,
            activity=group.activity.value,
            stack=first_thread.partition("\n")[2][:STACK_CHARACTERS_MAX],
            is_cause=is_cause,
            collective="" if wait is None else describe_call(wait),
        )


def _named_ranks(members: Sequence[RankEvidence]) -> str:
    """Name ranks with their hosts; those of one host together, for it may be the cause."""
    if len(members) > 1 and len({member.seat.agent.incarnation for member in members}) == 1:
        return f"{describe_ranks([*map(_rank, members)])} on {members[0].seat.agent.name}"
    shown = sorted(members, key=_rank)[: CAUSES_MAX + 1]
    who = [f"rank {member.rank} on {member.seat.agent.name}" for member in shown]
    if (more := len(members) - CAUSES_MAX) > 0:
        who[CAUSES_MAX:] = [f"{more} more"]
    return listed(who, CAUSES_MAX + 1)


def _behind(causes: Sequence[RankEvidence], remaining: Sequence[Group]) -> str:
    """Say at which step the cause is, if all other ranks are at later ones."""
    mine = {cause.step for cause in causes}
    theirs = [step for group in remaining for step in group.steps()]
    step = next(iter(mine))
    if len(mine) > 1 or step is None or not theirs or min(theirs) <= step:
        return ""
    return f" at step {step}"
