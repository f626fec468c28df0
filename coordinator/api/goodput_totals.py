"""Shell. What the time of all runs went into, added up by owner or by week."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from drumbeat.v1 import query_pb2 as pb
from drumbeat.wire.mapping import seconds_of

_WEEK_S, _MONDAY_S = 7 * 86_400, 4 * 86_400  # 1970-01-05 was a Monday
_TRAINED = (pb.PART_KIND_TRAINING, pb.PART_KIND_AWAY)
_LEAST_S = 0.001  # of what is no error of rounding; the length of an instant
_ALL = ""

Goodputs = Iterable[tuple[pb.Run, pb.GetGoodputResponse]]
# When it began and ended, in seconds since 1970; what of it is added up, and how much.
Piece = tuple[float, float, str, float]


def totals_document(
    goodputs: Goodputs, *, by: str, since_s: float | None, now: float
) -> dict[str, Any]:
    """Add up accounts that have segments, by "owner" or "week"; ``now`` is seconds since 1970."""
    sums = defaultdict[tuple[str | None, str], float](float)
    runs = set[tuple[str | None, str, int]]()
    oldest = 0.0 if since_s is None else now - since_s
    for run, account in goodputs:
        for began, ended, name, amount in _pieces(account, now, now - seconds_of(run.ended_age)):
            at = max(began, oldest)
            while at < ended:
                row, end = run.labels.get("owner") or None, ended
                if by == "week":
                    end = min(ended, at - (at - _MONDAY_S) % _WEEK_S + _WEEK_S)
                    row = datetime.fromtimestamp(at, UTC).strftime("%G-W%V")
                for key in (row, _ALL):
                    sums[key, name] += amount * (end - at) / (ended - began)
                    runs.add((key, run.run_id, run.generation))
                at = end

    def shown(row: str | None) -> dict[str, Any]:
        gpu_s, trained_s = sums[row, "gpu_s"], sums[row, "trained_s"]
        return {
            "name": row or None,
            "runs_count": sum(key == row for key, *_ in runs),
            "gpu_s": gpu_s,
            "trained_s": trained_s,
            "effective_ratio": trained_s / gpu_s if gpu_s else None,
            "failures_count": round(sums[row, "failures_count"]),
        }

    rows = [shown(row) for row in {row for row, *_ in runs} - {_ALL}]
    rows.sort(key=lambda row: (row["name"] is None, row["name"] or ""))
    if by == "owner":
        rows.sort(key=lambda row: -row["gpu_s"])  # those with as much stay by name
    return {"by": by, "since_s": since_s, "rows": rows, "total": shown(_ALL)}


def _pieces(account: pb.GetGoodputResponse, now: float, end: float) -> Iterator[Piece]:
    """Yield segments and failures; of what was before the first of them no more is known."""
    began = first = end - seconds_of(account.whole)
    rest = defaultdict[pb.PartKind.ValueType, float](
        float, {part.kind: part.host_seconds for part in account.parts}
    )
    spent = []
    for segment in reversed(account.segments):
        first, time_s = now - seconds_of(segment.age), seconds_of(segment.time)
        spent.append((first, first + time_s, segment.kind, segment.host_seconds))
        rest[segment.kind] -= segment.host_seconds
    spent += [(began, first if first - began > _LEAST_S else end, *item) for item in rest.items()]
    for at, until, kind, host_s in spent:
        names = ("gpu_s", "trained_s") if kind in _TRAINED else ("gpu_s",)
        for name in names if kind != pb.PART_KIND_UNKNOWN and host_s > _LEAST_S else ():
            yield at, until, name, host_s * account.workers_per_host
    failed = [now - age for age in account.failure_ages_seconds]
    for at in [*[began] * (account.failures_count - len(failed)), *failed]:
        yield at, at + _LEAST_S, "failures_count", 1.0
