"""Pure. What torch's flight recorder tells of a worker's process groups, in the agent's values.

The format is that of ``_dump_fr_trace_json`` in torch 2.6 and later; fields that another version
lacks count as not known. Times are those of the worker's clock.
Source: ``torch/csrc/distributed/c10d/FlightRecorder.hpp`` (2.13.0).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct, field

from drumbeat.model import CollectiveCall, GroupCalls
from drumbeat.text.format import one_line

CALLS_MAX = 8  # of each group, the latest
GROUPS_MAX = 32  # of one worker; those with calls that are not done come first
TEXT_CHARACTERS_MAX = 120  # of a name or of the sizes of a call
RANKS_CHARACTERS_MAX = 2_000  # else the ranks of a group count as not known
RANKS_MAX = 1_000_000  # of a group, likewise
_NAMES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"}
_NAMES |= {"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8"}
_NAMES |= {"Bool": "bool"}
_POINT_TO_POINT = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
_DONE = "completed"


class _Entry(Struct):
    process_group: tuple[str, str] = ("", "")
    record_id: int = 0
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    is_p2p: bool = False
    profiling_name: str = ""
    input_sizes: list[list[int]] = field(default_factory=list)
    input_dtypes: list[str] = field(default_factory=list)
    state: str = ""
    retired: bool = False
    time_created_ns: int = 0


class _Status(Struct):
    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


class _Recorded(Struct):
    entries: list[_Entry] = field(default_factory=list)
    pg_status: dict[str, _Status] = field(default_factory=dict)


class _Answer(Struct):
    groups: list[tuple[str, str, str]]
    recorded: _Recorded


# Numbers are written as texts in some places.
_ANSWER = msgspec.json.Decoder(_Answer, strict=False)
_RECORDED = msgspec.json.Decoder(_Recorded, strict=False)


class Progress(Struct, frozen=True):
    """How far the process groups of a worker are: equal as long as none of them moves."""

    counts: tuple[tuple[str, int, int], ...]  # name, calls made, calls done

    @property
    def is_waiting(self) -> bool:
        """Whether a call was made that is not done."""
        return any(made > done for _, made, done in self.counts)


def parse_progress(answer: bytes) -> Progress | None:
    """Return how far the groups are; None if there are none, or the answer can't be read."""
    try:
        status = _RECORDED.decode(answer or b"{}").pg_status
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    counts = (
        (name, group.last_enqueued_collective, group.last_completed_collective)
        for name, group in status.items()
    )
    return Progress(tuple(sorted(counts))) if status else None


def parse_calls(answer: bytes, *, now_ns: int) -> tuple[GroupCalls, ...] | None:
    """Return the latest calls of each group; None if the answer can't be read or there is none.

    ``now_ns``: wall time of this host, for the ages.
    """
    try:
        dump = _ANSWER.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    by_group: dict[str, list[_Entry]] = {}
    for entry in sorted(dump.recorded.entries, key=lambda entry: entry.record_id):
        by_group.setdefault(entry.process_group[0], []).append(entry)
    groups = [
        _group(name, label, ranks, by_group.get(name, ()), now_ns)
        for name, label, ranks in dump.groups
    ]
    groups.sort(key=lambda group: all(call.is_done for call in group.calls))
    return tuple(groups[:GROUPS_MAX])


def _group(name: str, label: str, ranks: str, entries: Sequence[_Entry], now_ns: int) -> GroupCalls:
    members = _members(ranks) if any(entry.is_p2p for entry in entries) else ()
    kept = entries[-CALLS_MAX:]
    # A call that is not done may be older than the latest ones.
    oldest = next((entry for entry in entries[:-CALLS_MAX] if not _is_done(entry)), None)
    if oldest is not None:
        kept = [oldest, *entries[-CALLS_MAX + 1 :]]
    return GroupCalls(
        name=one_line(name, TEXT_CHARACTERS_MAX),
        ranks=ranks if len(ranks) <= RANKS_CHARACTERS_MAX else "",
        label="" if label == "undefined" else one_line(label, TEXT_CHARACTERS_MAX),
        calls=tuple(_call(entry, members, now_ns) for entry in kept),
    )


def _call(entry: _Entry, members: Sequence[int], now_ns: int) -> CollectiveCall:
    op, peer = entry.profiling_name.partition(":")[2] or entry.profiling_name, None
    if entry.is_p2p and (match := _POINT_TO_POINT.fullmatch(op)):
        op, place = match[1], int(match[3])
        peer = members[place] if place < len(members) else None
    age_s = (now_ns - entry.time_created_ns) / 1e9 if entry.time_created_ns else None
    return CollectiveCall(
        sequence=entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id,
        op=one_line(op, TEXT_CHARACTERS_MAX),
        tensors=_tensors(entry.input_dtypes, entry.input_sizes),
        is_done=_is_done(entry),
        age_s=None if age_s is None else max(0.0, age_s),
        peer=peer,
    )


def _is_done(entry: _Entry) -> bool:
    return entry.retired or entry.state == _DONE


def _tensors(types: Sequence[str], sizes: Iterable[Sequence[int]]) -> str:
    texts = [
        f"{_NAMES.get(kind, kind)} {list(size)}" for kind, size in zip(types, sizes, strict=False)
    ]
    return one_line(", ".join(texts), TEXT_CHARACTERS_MAX)


def _members(ranks: str) -> list[int]:
    """Return the ranks of ranges with strides, e.g. "0-3,8-14:2"; none of what is not that."""
    members: list[int] = []
    try:
        for part in filter(None, ranks[:RANKS_CHARACTERS_MAX].split(",")):
            bounds, _, step = part.partition(":")
            low, _, high = bounds.partition("-")
            members += range(int(low), min(int(high or low), RANKS_MAX) + 1, int(step or 1))
            if len(members) > RANKS_MAX:
                return []
    except ValueError:
        return []
    return members
