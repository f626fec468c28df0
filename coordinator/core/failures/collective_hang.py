"""Pure. Why a round hangs in its collectives: the values, and the sentences that users read."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from drumbeat.coordinator.core.failures.collective_evidence import (
    NO_LABELS,
    POINT_TO_POINT,
    WORLD_GROUP,
)
from drumbeat.model import CollectiveCall, GroupCalls
from drumbeat.text.durations import format_duration
from drumbeat.text.format import count, one_line, ranges

LINES_MAX = 4  # about causes, and about calls; of more the rest is a number
_RANKS_CHARACTERS_MAX = 120
_NAME_CHARACTERS_MAX = 80  # of an operation, its tensors, a group
_STUCK = "the network or a device may be stuck"


class CollectiveKind(StrEnum):
    """What is wrong with the collectives of a round."""

    MISSING = "MISSING"
    """A rank has not entered a call that other ranks wait in."""
    MISMATCH = "MISMATCH"
    """Ranks made different calls at the same number of a group."""
    CYCLE = "CYCLE"
    """Calls of several groups wait for each other."""
    STUCK = "STUCK"
    """All ranks have entered a call, and it does not end."""
    MOVING = "MOVING"
    """Ranks still make calls, if slowly."""
    NONE = "NONE"
    """No rank waits in a collective."""
    UNKNOWN = "UNKNOWN"
    """Ranks wait, and what is known does not tell for which rank."""


class CallWait(Struct, frozen=True, kw_only=True):
    """One call of a process group, and the ranks that wait in it."""

    group: str
    label: str = ""
    group_size: int
    call: CollectiveCall  # as one of the ranks made it
    ranks: tuple[int, ...]
    since_s: float | None = None  # the age of the youngest of their calls


class CollectiveCause(Struct, frozen=True, kw_only=True):
    """A rank that other ranks wait for."""

    rank: int
    last: CollectiveCall | None = None  # its latest call in the group of the first wait, if known
    has_answered: bool = True
    has_groups: bool = True  # False: it answered that it has no process group
    age_s: float | None = None  # of its latest call in any group


class CollectiveDiagnosis(Struct, frozen=True, kw_only=True):
    """Why a round hangs, from the calls of its ranks.

    The first of ``waits`` is the call that the causes are about. There are several for a cycle, and
    for a mismatch, which has one for each of the different calls, that of the most ranks first.
    """

    kind: CollectiveKind
    waits: tuple[CallWait, ...] = ()
    causes: tuple[CollectiveCause, ...] = ()
    unknown: str = ""  # what is not known, as a sentence without a full stop


def describe_ranks(ranks: Collection[int]) -> str:
    """Return "rank 7", "ranks 0-6", cut if they are many."""
    shown = one_line(ranges(ranks), _RANKS_CHARACTERS_MAX)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"


def describe_diagnosis(diagnosis: CollectiveDiagnosis) -> tuple[str, ...]:
    """Return the lines that users read, at most a few."""
    kind, waits = diagnosis.kind, diagnosis.waits
    if kind is CollectiveKind.NONE:
        return ("no rank waits in a collective",)
    if kind is CollectiveKind.MISMATCH:
        lines = [_different_calls(waits)]
    elif kind is CollectiveKind.STUCK:
        is_pair = waits[0].call.op in POINT_TO_POINT
        who = "both ranks have made it" if is_pair else "all ranks of the group have entered it"
        lines = [f"{_wait(waits[0])}; {who}: {_STUCK}"]
    else:
        shown = waits[: LINES_MAX if kind is CollectiveKind.CYCLE else 1]
        lines = [_wait(wait) for wait in shown]
        if more := kind is CollectiveKind.CYCLE and len(waits) - len(shown):
            lines.append(f"{count(more, 'more call')} are part of the cycle")
    lines += _causes(diagnosis)
    if diagnosis.unknown:
        lines.append(f"cannot tell which rank is the cause: {diagnosis.unknown}")
    elif kind is CollectiveKind.MOVING and not diagnosis.causes:
        lines.append("ranks still make calls")
    return tuple(lines)


def describe_waits(diagnosis: CollectiveDiagnosis) -> str:
    """Return which ranks wait in which call as one line, without the causes; empty if none wait."""
    is_waiting = diagnosis.kind not in (CollectiveKind.NONE, CollectiveKind.MOVING)
    named = replace(diagnosis, causes=(), unknown="")
    return "; ".join(describe_diagnosis(named)) if is_waiting and diagnosis.waits else ""


def describe_call(wait: CallWait) -> str:
    """Return which call ranks wait in, and since when."""
    since = f" since {format_duration(wait.since_s)}" if wait.since_s is not None else ""
    return f"{_call(wait)}{since}"


def describe_latest(groups: Iterable[GroupCalls]) -> str:
    """Return in which call a rank waits, else which one it finished last; empty if in none."""
    calls = [(group, call) for group in groups for call in group.calls]
    waits = [pair for pair in calls if not pair[1].is_done]
    if waits:
        group, call = max(waits, key=lambda pair: pair[1].age_s or 0.0)
        since = f" since {format_duration(call.age_s)}" if call.age_s is not None else ""
        return f"waits in {_call_in(group, call)}{since}"
    if not calls:
        return ""
    group, call = min(calls, key=lambda pair: math.inf if pair[1].age_s is None else pair[1].age_s)
    return f"finished {_call_in(group, call)}"


def describe_cause(diagnosis: CollectiveDiagnosis, cause: CollectiveCause) -> str:
    """Say what a rank did, as it follows "rank 7"; empty if the line of the calls says it."""
    is_mismatch = diagnosis.kind is CollectiveKind.MISMATCH
    return "" if is_mismatch else _deed(diagnosis, cause)[0]


def _call_in(group: GroupCalls, call: CollectiveCall) -> str:
    label = "" if group.label in NO_LABELS else group.label
    return _call(CallWait(group=group.name, label=label, group_size=0, call=call, ranks=()))


def _plural(ranks: Sequence[int], one: str, more: str) -> str:
    return one if len(ranks) == 1 else more


def _name(call: CollectiveCall) -> str:
    peer = {"send": " to", "recv": " from"}.get(call.op, " with") if call.peer is not None else ""
    side = f"{peer} rank {call.peer}" if peer else ""
    return f"{one_line(call.op, _NAME_CHARACTERS_MAX)} #{call.sequence}{side}"


def _tensors(call: CollectiveCall) -> str:
    return one_line(call.tensors, _NAME_CHARACTERS_MAX)


def _call(wait: CallWait) -> str:
    group = one_line(wait.label or wait.group, _NAME_CHARACTERS_MAX)
    is_shown = wait.group != WORLD_GROUP and wait.group_size > 0
    size = f" of {count(wait.group_size, 'rank')}" if is_shown else ""
    tensors = f" ({_tensors(wait.call)})" if wait.call.tensors else ""
    return f"{_name(wait.call)} of process group {group}{size}{tensors}"


def _wait(wait: CallWait) -> str:
    verb = _plural(wait.ranks, "waits", "wait")
    size = f" of {wait.group_size}" if wait.group == WORLD_GROUP else ""
    return f"{describe_ranks(wait.ranks)}{size} {verb} in {describe_call(wait)}"


def _different_calls(waits: Sequence[CallWait]) -> str:
    first, *rest = waits
    clauses = [
        f"{describe_ranks(first.ranks)} {_plural(first.ranks, 'calls', 'call')} {_call(first)}"
    ]
    for wait in rest[: LINES_MAX - 1]:
        tensors = f" with {_tensors(wait.call)}" if wait.call.tensors else ""
        verb = _plural(wait.ranks, "calls", "call")
        clauses.append(f"{describe_ranks(wait.ranks)} {verb} {_name(wait.call)}{tensors}")
    if more := sum(len(wait.ranks) for wait in rest[LINES_MAX - 1 :]):
        verb = "makes" if more == 1 else "make"
        clauses.append(f"{count(more, 'more rank')} {verb} other calls")
    return ", ".join(clauses)


def _causes(diagnosis: CollectiveDiagnosis) -> Iterable[str]:
    by_deed: dict[tuple[str, str], list[int]] = {}
    is_mismatch = diagnosis.kind is CollectiveKind.MISMATCH  # its first line has their calls
    for cause in () if is_mismatch else diagnosis.causes:
        by_deed.setdefault(_deed(diagnosis, cause), []).append(cause.rank)
    for (one, several), ranks in list(by_deed.items())[:LINES_MAX]:
        yield f"{describe_ranks(ranks)} {_plural(ranks, one, several)}"
    if more := sum(map(len, list(by_deed.values())[LINES_MAX:])):
        yield f"{count(more, 'more rank')} {'is a cause' if more == 1 else 'are causes'}, too"


def _deed(diagnosis: CollectiveDiagnosis, cause: CollectiveCause) -> tuple[str, str]:
    """Say what a rank did, and the same of several ranks."""
    if diagnosis.kind is CollectiveKind.CYCLE:
        order = "calls in another order than the other ranks"
        return f"made its {order}", f"made their {order}"
    if not cause.has_answered:
        only = "gave no answer; all other ranks of the group have entered it"
        return only, only
    call = diagnosis.waits[0].call
    missing = "entered it"
    if call.op in POINT_TO_POINT:
        missing = f"made the matching {POINT_TO_POINT[call.op]}"
    if diagnosis.kind is CollectiveKind.MOVING and cause.age_s is not None:
        missing += f", but made a call {format_duration(cause.age_s)} ago"
    elif not cause.has_groups:
        return (
            f"has not {missing}; it has no process group",
            f"have not {missing}; they have no process group",
        )
    if cause.last is None:
        return f"has not {missing}", f"have not {missing}"
    done = f"finished #{cause.last.sequence}"
    return f"has not {missing}; it {done}", f"have not {missing}; they {done}"
