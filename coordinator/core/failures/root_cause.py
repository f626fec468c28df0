"""Pure. Which failure explains a round, and which records are kept to tell."""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Iterable, Sequence
from math import inf

from msgspec.structs import replace

from drumbeat.coordinator.core.failures.hang_diagnosis import describe_limit
from drumbeat.coordinator.core.failures.stack_frames import place, telling_frames
from drumbeat.coordinator.core.inprocess.records import IterationPhase, IterationState
from drumbeat.coordinator.core.model import FailureRecord, Hang, HangDiagnosis, HungRank
from drumbeat.text.format import one_line

# Ages are measured on each host and travel over the network; what is closer
# together than this can't be put in order honestly.
CANDIDATE_WINDOW_S = 0.001
# A record is placed by the end of its process. One that hung was found out before,
# by as much as its agent may take to end it, SIGKILL after SIGTERM included.
HANG_END_S = 10.0
# Of those that explain a round; a report goes to every agent, the rest is a number.
CAUSES_SHOWN_MAX = 4
# Of what a worker said at its end, in a reason that names several.
CAUSE_CHARACTERS_MAX = 300
# An exception's type and place, as a traceback shows them; and how much of them is compared.
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?:: |:?$)")
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')
SIGNATURE_CHARACTERS_MAX = 120
# What a Python program exits with for any error, so it tells nothing of the cause.
_ANY_ERROR = "exit code 1"
# Of a table that is not bounded in bytes: one that an older coordinator kept.
NO_LIMIT = 1 << 60


def unhealed(
    records: Iterable[FailureRecord], iterations: IterationState | None
) -> list[FailureRecord]:
    """Return the records without those that restarts in process of their round have healed.

    What happened in the last iteration counts, unless that was completed.
    """
    if iterations is None or iterations.phase is IterationPhase.NONE:
        return list(records)
    first = iterations.iteration + (iterations.phase is IterationPhase.COMPLETED)
    return [
        r
        for r in records
        if not r.interruption or r.round_id != iterations.round_id or r.iteration >= first
    ]


def root_causes(
    records: Iterable[FailureRecord], round_id: int, hang: HangDiagnosis | None = None
) -> list[FailureRecord]:
    """Return what explains the failure of a round; of a hang that was judged, its cause.

    Else the earliest failures whose worker was not being stopped. Several only if they lie within
    ``CANDIDATE_WINDOW_S``, or if a worker that hung ended so soon after that it may have been
    first. Instants are those of the coordinator's clock.
    """
    records = list(records)
    earliest = _earliest(records, round_id)
    if hang is None or not explains(hang, earliest, round_id):
        return earliest
    return [_blamed(cause, hang, records) for cause in hang.causes]


def explains(
    hang: HangDiagnosis | None, earliest: Sequence[FailureRecord], round_id: int | None
) -> bool:
    """Return whether a round failed of its hang: nothing failed before that was judged."""
    if hang is None or hang.round_id != round_id or not hang.is_held or hang.is_over:
        return False
    return not earliest or bool(earliest[0].hang) or earliest[0].happened_at >= hang.at_s


def _blamed(
    cause: HungRank, hang: HangDiagnosis, records: Iterable[FailureRecord]
) -> FailureRecord:
    """Return the record of a rank that caused a hang; it may have been ended as all others."""
    reported: FailureRecord | None = None
    for record in records:
        who = record.round_id, record.incarnation, record.worker.local_rank
        if who == (hang.round_id, cause.incarnation, cause.worker.local_rank):
            reported = record if reported is None or record.hang is not None else reported
    if reported is not None and reported.hang is not None:
        own = reported.hang
        # To be looked at may have woken it. What was judged counts.
        is_same = own.stacks and place(telling_frames(own.stacks)) in cause.place
        stacks = own.stacks if is_same else cause.stacks or own.stacks
        return replace(reported, hang=replace(own, stacks=stacks))
    seen = Hang(
        kind=hang.limit.kind,
        scope=hang.limit.scope,
        limit_s=hang.limit.limit_s,
        elapsed_s=hang.limit.elapsed_s,
        progress=cause.progress,
        stacks=cause.stacks,
        evidence=cause.notes,
    )
    message = f"it was {cause.place} while other ranks exceeded a limit: {describe_limit(seen)}"
    if reported is not None:
        return replace(reported, hang=seen, message=reported.message or message)
    return FailureRecord(
        incarnation=cause.incarnation,
        sequence=0,
        round_id=hang.round_id,
        host=cause.host,
        name=cause.agent,
        worker=cause.worker,
        happened_at=hang.at_s,
        pid=cause.pid,
        message=message,
        is_stopped_by_agent=True,
        hang=seen,
    )


def _earliest(records: Iterable[FailureRecord], round_id: int) -> list[FailureRecord]:
    causes = sorted(
        (r for r in records if r.round_id == round_id and not r.is_victim),
        key=lambda r: (r.happened_at, r.worker.rank),
    )
    first = [r for r in causes if r.happened_at - causes[0].happened_at <= CANDIDATE_WINDOW_S]
    if any(record.hang for record in first):
        return first
    hung = [r for r in causes if r.hang and r.happened_at - first[0].happened_at <= HANG_END_S]
    return first + [r for r in hung if r.happened_at - hung[0].happened_at <= CANDIDATE_WINDOW_S]


def signature(record: FailureRecord) -> str:
    """Name a root cause by what is the same on any host."""
    if record.hang is not None:
        return f"a hang ({record.hang.kind.lower()})"
    if not (kind := exception_type(record.message)):
        return record.signal_name or f"exit code {record.exit_code}"
    frames = _FRAME.findall(record.traceback or record.stderr_tail)
    at = f" at {frames[-1][0].rpartition('/')[2]}:{frames[-1][1]}" if frames else ""
    return one_line(f"{kind}{at}", SIGNATURE_CHARACTERS_MAX)


def exception_type(message: str) -> str:
    """Return the type of the exception that a message begins with; empty: it does with none."""
    match = _EXCEPTION.match(message.strip().partition("\n")[0])
    return match[1][:SIGNATURE_CHARACTERS_MAX] if match else ""


def failed_alike(
    records: Iterable[FailureRecord], round_id: int, causes: Iterable[FailureRecord]
) -> set[str]:
    """Return the agents whose workers failed in a round as a root cause did, on their own."""
    signatures = {signature(cause) for cause in causes} - {_ANY_ERROR}
    own = (r for r in records if r.round_id == round_id and not r.is_stopped_by_agent)
    return {record.incarnation for record in own if signature(record) in signatures}


def describe(causes: Sequence[FailureRecord]) -> str:
    """Name the causes in one line."""
    shown = [_named(record) for record in causes[:CAUSES_SHOWN_MAX]]
    if hidden := len(causes) - len(shown):
        shown.append(f"one of {hidden} others")
    return " or ".join(shown)


def _named(record: FailureRecord) -> str:
    who = f"rank {record.worker.rank} on {record.agent}"
    lines = record.message.strip().splitlines()
    why = one_line(lines[0], CAUSE_CHARACTERS_MAX) if lines else ""
    if record.has_never_run and why:
        return f"{who}: {why}"
    if record.hang is not None:
        return f"{who} hung: {describe_limit(record.hang)}"
    if record.interruption is not None:
        return f"{who}: {record.interruption}{f': {why}' if why else ''}"
    ending = record.signal_name or f"exit code {record.exit_code}"
    return f"{who} ({ending}{f', {why}' if why else ''})"


def room_for(
    records: Sequence[FailureRecord],
    record: FailureRecord,
    *,
    held: int,
    count_max: int,
    bytes_max: int = NO_LIMIT,
) -> tuple[int, int] | None:
    """Return how many records of a table stay beside a new one, and the bytes of all then.

    ``None`` if it is the new one that goes. ``held`` are the bytes in the table. The latest
    rounds come first, in them the latest iterations, in these the earliest failures: what
    explains the present outlives what explained the past. Tables stay in this order, because a
    machine room can fail at once and each record must cost little.
    """
    kept, held, telling = len(records), held + record.size_bytes, _telling(record)
    while kept and (kept >= count_max or held > bytes_max):
        kept -= 1
        if telling >= _telling(records[kept]):
            return None
        held -= records[kept].size_bytes
    return kept, held


def insert_most_telling(
    records: list[FailureRecord], record: FailureRecord, *, held: int, **limits: int
) -> int:
    """Insert a record as ``room_for`` says; return the bytes that are in the table now."""
    if (room := room_for(records, record, held=held, **limits)) is None:
        return held
    del records[room[0] :]
    insort(records, record, key=_telling)
    return room[1]


def _telling(record: FailureRecord) -> tuple[int, float, bool, float]:
    # What happened in no iteration was healed by none.
    iteration = inf if record.interruption is None else record.iteration
    return (-record.round_id, -iteration, record.is_victim, record.happened_at)
