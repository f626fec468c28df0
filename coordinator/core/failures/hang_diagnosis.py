"""Pure. Judges which ranks cause a hang, from what all ranks of a round do at one moment.

A rank that waits for other ranks in a collective causes nothing, whichever limit it exceeds; the
cause is among those that do something else. If that does not tell, the one that is elsewhere than
most, or at an earlier step, is the cause. If that does not tell either, nobody is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from coordinator.core.failures.stack_frames import (
    Activity,
    Frame,
    activity_of,
    place,
    ranges,
    telling_frames,
)
from coordinator.core.model import (
    ExpiredLimit,
    Hang,
    HangDiagnosis,
    HangGroup,
    HangKind,
    HungRank,
    WorkerRanks,
)
from coordinator.core.progress.worker_progress import WorkerProgress
from drumbeat.durations import format_duration
from drumbeat.format import are, count, listed, one_line
from drumbeat.violation import show_value

# A rank whose latest heartbeat is younger than this share of the time that the round stands still,
# or than so many usual steps, has gone on meanwhile: it neither hangs nor waits.
FRESH_SHARE = 0.5
FRESH_STEPS = 3
LONGER_SHARE = 1.5  # of a limit: what lasted longer is told beside it
CAUSES_MAX = 4  # ranks named as the cause; of more the rest is a number
GROUPS_MAX = 8  # groups shown; of more the rest is a number
RANKS_CHARACTERS_MAX = 120  # of the ranks of one group
STACK_CHARACTERS_MAX = 4_000  # of each stack that is kept
NOTES_CHARACTERS_MAX = 300

_LOST = "on a host that was lost"

LIMITS_BROKEN = {
    HangKind.TIMER: "timer {name} not released {limit}",
    HangKind.SECTION: "section {name} not left {limit}",
    HangKind.STARTUP: "no first heartbeat {limit} of its start",
    HangKind.PROGRESS: "no further heartbeat {limit}",
    HangKind.RUNTIME: "its interpreter gave no sign of life {limit}",
    HangKind.EXIT: "its interpreter did not end {limit}",
}


class RankEvidence(Struct, frozen=True, kw_only=True):
    """What was seen of one rank when all were asked.

    ``problem`` says why there are no stacks. ``is_reached``: its agent has answered.
    """

    worker: WorkerRanks
    incarnation: str
    agent: str
    host: str = ""
    pid: int = 0
    stacks: str = ""
    source_line: str = ""  # the text of the innermost call's line, if its agent can read it
    problem: str = ""
    is_stopped: bool = False
    is_reached: bool = True
    progress: WorkerProgress | None = None

    @property
    def rank(self) -> int:
        """Its rank in the world."""
        return self.worker.rank


class _Stack(NamedTuple):
    """The calls of the thread that trains; ``number`` tells different ones apart."""

    number: int
    frames: tuple[Frame, ...]
    place: str


class _Seen(NamedTuple):
    """One rank with what follows from its evidence alone."""

    evidence: RankEvidence
    activity: Activity
    stack: _Stack
    limit: ExpiredLimit | None
    is_moving: bool
    is_stalled: bool  # known to be: it exceeds a limit, or has told no heartbeat for long

    @property
    def where(self) -> tuple[Activity, int]:
        """What ranks of one group have in common."""
        return self.activity, self.stack.number

    @property
    def has_runtime(self) -> bool:
        """Whether it uses the SDK, which answers for its stacks."""
        progress = self.evidence.progress
        return progress is not None and progress.runtime_age_s is not None

    @property
    def step(self) -> int | None:
        """Its latest step, if it names steps."""
        return self.evidence.progress.step if self.evidence.progress is not None else None


def describe_limit(limit: ExpiredLimit | Hang) -> str:
    """Say which limit was exceeded."""
    broken = LIMITS_BROKEN[limit.kind]
    return broken.format(name=show_value(limit.scope), limit=f"within {limit.limit_s:g} s")


def diagnose(
    round_id: int,
    ranks: Iterable[RankEvidence],
    limits: Mapping[int, ExpiredLimit],
    *,
    now: float,
) -> HangDiagnosis:
    """Judge a hang. ``limits`` are those that expired, by rank, at least one."""
    ranks = sorted(ranks, key=lambda each: each.rank)
    rank, first = max(limits.items(), key=lambda each: each[1].elapsed_s - each[1].limit_s)
    accused = next((each.progress for each in ranks if each.rank == rank), None)
    still_s, fresh_s = _still_for(first, accused)
    seen = _look(ranks, limits, fresh_s)
    still = [each for each in seen if not each.is_moving]
    causes, why = _causes(still)
    named = causes[:CAUSES_MAX]
    groups = _groups(still, {each.evidence.rank for each in causes})
    return HangDiagnosis(
        round_id=round_id,
        summary=_summary(causes, why, still, first),
        limit=first,
        at_s=now,
        since_s=now - still_s,
        is_held=any(each.is_held for each in limits.values()),
        causes=tuple(_hung(each) for each in named),
        causes_count=len(causes),
        groups=tuple(groups[:GROUPS_MAX]),
        groups_count=len(groups),
    )


def diagnose_lost(
    round_id: int,
    lost: Sequence[HungRank],
    limits: Mapping[int, ExpiredLimit],
    *,
    now: float,
) -> HangDiagnosis:
    """Judge a hang whose round loses a host: all other ranks wait for the ranks that were on it."""
    first = max(limits.values(), key=lambda each: each.elapsed_s - each.limit_s)
    elapsed_s = max(each.elapsed_s for each in limits.values())
    verb, who = are(len(lost)), listed(map(str, lost), CAUSES_MAX)
    return HangDiagnosis(
        round_id=round_id,
        summary=f"{who} {verb} {_LOST}, other ranks wait ({describe_limit(first)})",
        limit=first,
        at_s=now,
        since_s=now - elapsed_s,
        is_held=any(each.is_held for each in limits.values()),
        causes=tuple(lost[:CAUSES_MAX]),
        causes_count=len(lost),
    )


def _still_for(first: ExpiredLimit, accused: WorkerProgress | None) -> tuple[float, float]:
    """Return how long a round stands still, and from which age on a heartbeat tells of it.

    A limit may have begun long before: then the rank that exceeds it has had heartbeats since.
    """
    lasted_s, age_s = first.elapsed_s, accused.heartbeat_age_s if accused is not None else None
    if accused is None or age_s is None or age_s >= lasted_s:
        return lasted_s, FRESH_SHARE * lasted_s
    fresh_s = max(FRESH_SHARE * age_s, FRESH_STEPS * (accused.step_time_s or 0.0))
    return age_s, min(FRESH_SHARE * lasted_s, fresh_s)


def _look(
    ranks: Sequence[RankEvidence], limits: Mapping[int, ExpiredLimit], fresh_s: float
) -> list[_Seen]:
    stacks: dict[str, _Stack] = {}  # most ranks have one in common
    numbers: dict[tuple[Frame, ...], int] = {}
    seen = []
    for evidence in ranks:
        stack = stacks.get(evidence.stacks)
        if stack is None:
            frames = telling_frames(evidence.stacks)
            number = numbers.setdefault(frames, len(numbers))
            stack = stacks[evidence.stacks] = _Stack(number, frames, place(frames))
        limit, progress = limits.get(evidence.rank), evidence.progress
        age_s = progress.heartbeat_age_s if progress is not None else None
        is_fresh = age_s is not None and age_s < fresh_s
        seen.append(
            _Seen(
                evidence=evidence,
                activity=_activity(evidence, stack.frames, limit),
                stack=stack,
                limit=limit,
                is_moving=limit is None and is_fresh and not evidence.is_stopped,
                is_stalled=limit is not None or (age_s is not None and not is_fresh),
            )
        )
    return seen


def _activity(
    evidence: RankEvidence, frames: Sequence[Frame], limit: ExpiredLimit | None
) -> Activity:
    if evidence.is_stopped:
        return Activity.STOPPED
    if limit is not None and limit.kind is HangKind.RUNTIME:
        return Activity.BUSY  # it holds the interpreter's lock, which no collective does for long
    if not evidence.stacks:
        return Activity.SILENT
    return activity_of(frames, evidence.source_line)


def _causes(still: Sequence[_Seen]) -> tuple[list[_Seen], str]:
    """Return the ranks that the others wait for, and if there are none, why."""
    by: dict[Activity, list[_Seen]] = {activity: [] for activity in Activity}
    for each in still:
        by[each.activity].append(each)
    if len(still) == 1:
        return list(still), ""  # no other rank hangs
    if len(by[Activity.SILENT]) == len(still):
        return [], "no rank gave a stack"
    waiting = by[Activity.WAITS] + by[Activity.MAY_WAIT]
    if stopped := by[Activity.STOPPED]:
        return (stopped, "") if len(stopped) < len(still) else ([], "all ranks are stopped")
    busy = [each for each in by[Activity.BUSY] if each.is_stalled]
    if not waiting:
        return _among_busy(busy, by, still)
    if busy := busy or _of_same_role(by[Activity.BUSY], still):
        return _earliest(busy), ""
    return _among_silent(_silent(by[Activity.SILENT]), waiting)


def _of_same_role(busy: Sequence[_Seen], still: Sequence[_Seen]) -> list[_Seen]:
    """Return those that do the work of a rank that exceeds a limit: others may wait for them."""
    roles = {each.evidence.worker.role for each in still if each.limit is not None}
    return [each for each in busy if each.evidence.worker.role in roles]


def _silent(silent: Sequence[_Seen]) -> list[_Seen]:
    """Return the ranks of hosts that do not answer, else those that do not answer themselves."""
    unreached = [each for each in silent if not each.evidence.is_reached]
    return unreached or list(silent)


def _among_silent(silent: list[_Seen], waiting: Sequence[_Seen]) -> tuple[list[_Seen], str]:
    """Judge where all ranks wait of which anything is known."""
    mute = [each for each in silent if not each.has_runtime and each.evidence.is_reached]
    if len(mute) > 1:
        return [], f"{len(mute)} ranks do not use worker_sdk and gave no stacks"
    return (silent, "") if silent else _elsewhere(waiting)


def _among_busy(
    busy: list[_Seen], by: Mapping[Activity, list[_Seen]], still: Sequence[_Seen]
) -> tuple[list[_Seen], str]:
    """Judge where nobody is seen to wait: synchronizing with a GPU does not show in a stack."""
    unknown = [each for each in by[Activity.BUSY] if not each.is_stalled]
    silent = [each for each in by[Activity.SILENT] if each.is_stalled]
    if len(busy) == 1 and not silent:
        return busy, ""  # it exceeds a limit of its own, and waits for nobody
    if busy and unknown and not silent:
        return _elsewhere(busy) if len(busy) > CAUSES_MAX else (busy, "")
    if not busy and len(silent) < len(still):
        return silent, "" if silent else "no rank gave a stack"
    return _elsewhere([*busy, *silent])


def _earliest(found: list[_Seen]) -> list[_Seen]:
    """Return those at the lowest step if all name one, else all of them."""
    steps = [each.step for each in found if each.step is not None]
    least = min(steps, default=None)
    return [each for each in found if each.step == least] if len(steps) == len(found) else found


def _elsewhere(found: Sequence[_Seen]) -> tuple[list[_Seen], str]:
    """Return those that are elsewhere than most or at an earlier step, unless that is at odds."""
    groups: dict[object, list[_Seen]] = {}
    for each in found:
        groups.setdefault(each.where, []).append(each)
    largest = max(groups.values(), key=len, default=[])
    odd = [each for each in found if each.where != largest[0].where]
    steps = [each.step for each in found if each.step is not None]
    most = max(steps, default=0)
    behind = [each for each in found if each.step is not None and each.step < most]
    is_behind_few = bool(behind) and len(steps) == len(found) and 2 * len(behind) <= len(found)
    if odd and 2 * len(odd) < len(found):
        if is_behind_few and not {*map(_rank, behind)} & {*map(_rank, odd)}:
            return [], "the ranks that are elsewhere than most are not those at an earlier step"
        return odd, ""
    if is_behind_few:
        return _earliest(behind), ""
    where = f"at {count(len(groups), 'place')}, none with most ranks" if odd else "at one place"
    return [], f"all ranks are {where}{', and at one step' if len({*steps}) == 1 else ''}"


def _rank(seen: _Seen) -> int:
    return seen.evidence.rank


def _hung(seen: _Seen) -> HungRank:
    evidence = seen.evidence
    return HungRank(
        worker=evidence.worker,
        incarnation=evidence.incarnation,
        agent=evidence.agent,
        host=evidence.host,
        pid=evidence.pid,
        place=_place(seen),
        stacks=evidence.stacks[:STACK_CHARACTERS_MAX],
        notes=one_line(evidence.problem, NOTES_CHARACTERS_MAX),
        progress=evidence.progress,
    )


def _place(seen: _Seen) -> str:
    """Return where a rank is, as it follows "is" or "are"."""
    match seen.activity:
        case Activity.STOPPED:
            return "stopped"
        case Activity.SILENT if not seen.evidence.is_reached:
            return "on a host that does not answer"
        case Activity.SILENT:
            return "silent"
    return f"in {seen.stack.place}" if seen.stack.frames else "in code that is not Python"


def _groups(seen: Sequence[_Seen], causes: Collection[int]) -> list[HangGroup]:
    """Return where all ranks are, the cause first, then the largest group."""
    found: dict[object, list[_Seen]] = {}
    for each in seen:
        found.setdefault((_rank(each) in causes, each.where, _place(each)), []).append(each)
    groups = [
        HangGroup(
            count=len(members),
            ranks=one_line(ranges(map(_rank, members)), RANKS_CHARACTERS_MAX),
            place=_place(members[0]),
            activity=members[0].activity.value,
            stack=_first_thread(members[0].evidence.stacks),
            is_cause=_rank(members[0]) in causes,
        )
        for members in found.values()
    ]
    return sorted(groups, key=lambda group: (not group.is_cause, -group.count, group.ranks))


def _first_thread(stacks: str) -> str:
    _, _, calls = stacks.strip("\n").partition("\n\n")[0].partition("\n")
    return calls[:STACK_CHARACTERS_MAX]


def _summary(causes: Sequence[_Seen], why: str, still: Sequence[_Seen], first: ExpiredLimit) -> str:
    """Say in a sentence who is the cause and what the other ranks do, or why that is not known."""
    limit = describe_limit(first)
    if first.elapsed_s > LONGER_SHARE * first.limit_s:
        limit += f", now {format_duration(first.elapsed_s)}"
    if not causes:
        return f"cannot tell which rank causes the hang: {why} ({limit})"
    clauses = []
    for where, members in list(_by_place(causes).items())[:CAUSES_MAX]:
        names = [f"rank {_rank(each)} on {each.evidence.agent}" for each in members[:CAUSES_MAX]]
        more = [f"{len(members) - CAUSES_MAX} more"] * (len(members) > CAUSES_MAX)
        who = listed([*names, *more], CAUSES_MAX + 1)
        clauses.append(f"{who} {are(len(members))} {where}{_behind(members, still)}")
    blamed = {_rank(each) for each in causes}
    waiting = [
        each
        for each in still
        if each.activity in (Activity.WAITS, Activity.MAY_WAIT) and _rank(each) not in blamed
    ]
    if waiting:
        wait = "waits" if len(waiting) == 1 else "wait"
        clauses.append(f"{count(len(waiting), 'rank')} {wait} {listed(_by_place(waiting), 2)}")
    return f"{', '.join(clauses)} ({limit})"


def _behind(causes: Sequence[_Seen], still: Sequence[_Seen]) -> str:
    """Say at which step the cause is, if all other ranks are at later ones."""
    mine, blamed = {each.step for each in causes}, {_rank(each) for each in causes}
    theirs = [each.step for each in still if each.step is not None and _rank(each) not in blamed]
    step = next(iter(mine))
    if len(mine) > 1 or step is None or not theirs or min(theirs) <= step:
        return ""
    return f" at step {step}"


def _by_place(seen: Iterable[_Seen]) -> dict[str, list[_Seen]]:
    found: dict[str, list[_Seen]] = {}
    for each in seen:
        found.setdefault(_place(each), []).append(each)
    return found
