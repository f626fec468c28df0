"""Pure. Stacks of many workers as one look: grouped by where their first threads are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from drumbeat.coordinator.core.failures.stack_frames import Frame, frames_of, place
from drumbeat.text.format import count, one_line, printable, ranges

COLLECTIVES_MAX = 4  # of a group are shown
RANKS_NAMED_MAX = 4  # of a group are named with their hosts; more are shown as ranges
_RANKS_CHARACTERS_MAX = 400  # of a line that names ranks as ranges
_NO_STACKS = "; no stacks: "  # between the state of a process and the reason, as agents write it
_RANK_OR_RANGE = re.compile(r" *([0-9]{1,9})(?:-([0-9]{1,9}))? *", re.ASCII)


class Worker(NamedTuple):
    """One worker, with its stacks or the reason why there are none."""

    rank: int
    local_rank: int
    name: str
    host: str
    pid: int
    stacks: str
    problem: str
    collective: str = ""  # in which it waits, or which it has finished, in words


def workers_of(answer: Any) -> list[Worker]:
    """Return the workers in the answer of one agent, a ``drumbeat.v1.GetStacksResponse``."""
    return [
        Worker(
            worker.rank,
            worker.local_rank,
            answer.name,
            answer.host,
            worker.pid,
            worker.stacks,
            worker.problem,
            worker.collective,
        )
        for worker in answer.workers
    ]


class Group(NamedTuple):
    """Workers whose first threads are at the same place, by all their calls, innermost first."""

    frames: tuple[Frame, ...]
    workers: tuple[Worker, ...]


def grouped(workers: Iterable[Worker]) -> list[Group]:
    """Return the groups of those that have stacks, the largest first."""
    by_frames: dict[tuple[Frame, ...], list[Worker]] = {}
    for worker in sorted(workers):
        if worker.stacks:
            by_frames.setdefault(frames_of(worker.stacks), []).append(worker)
    groups = [Group(frames, tuple(members)) for frames, members in by_frames.items()]
    return sorted(groups, key=lambda group: (-len(group.workers), group.workers[0].rank))


def text(workers: Sequence[Worker]) -> str:
    """Return it all to be read: a line for each group, their stacks, then who gave none."""
    if not workers:
        return "no worker has one of these ranks\n"
    groups = grouped(workers)
    lines = [_line(group) for group in groups]
    for group in groups:
        first = group.workers[0]
        thread = printable(first.stacks).strip("\n").partition("\n\n")[0]
        lines += ["", _line(group), *_collectives(group), *thread.splitlines()[1:]]
    silent = _silent(workers)
    lines += [""] * bool(groups and silent)
    lines += [f"{_who(members)} gave no stacks: {one_line(why)}" for why, members in silent.items()]
    return "\n".join(lines) + "\n"


def _collectives(group: Group) -> list[str]:
    """Return a line for each collective that the workers of a group wait in or have finished."""
    by_call: dict[str, list[Worker]] = {}
    for worker in group.workers:
        if worker.collective:
            by_call.setdefault(worker.collective.partition(" since ")[0], []).append(worker)
    if len(by_call) == 1 and len(*by_call.values()) == len(group.workers):
        return [f"  {group.workers[0].collective}"]
    lines = [f"  {_who(members)}: {what}" for what, members in by_call.items()]
    return lines[:COLLECTIVES_MAX]


def document(run_id: str, workers: Sequence[Worker]) -> dict[str, Any]:
    """Return it all for programs, as docs/operating.md describes it."""
    return {
        "run_id": run_id,
        "groups": [
            {
                "place": place(group.frames),
                "ranks": [worker.rank for worker in group.workers],
                "frames": [frame._asdict() for frame in group.frames],
                "stacks": group.workers[0].stacks,
                "collectives": [line.strip() for line in _collectives(group)],
                "workers": [_document(worker) for worker in group.workers],
            }
            for group in grouped(workers)
        ],
        "unanswered": [
            {**_document(worker), "reason": _reason(worker)}
            for worker in workers
            if not worker.stacks
        ],
    }


def parse_ranks(given: str, most: int) -> tuple[int, ...]:
    """Read what ``ranges`` writes, each rank once. Raises ``ValueError``, for too many too."""
    ranks: list[int] = []
    for part in given.split(","):
        if not (match := _RANK_OR_RANGE.fullmatch(part)):
            raise ValueError
        first = int(match[1])
        last = int(match[2] or first)
        if not first <= last < first + most - len(ranks):
            raise ValueError
        ranks += range(first, last + 1)
    return tuple(dict.fromkeys(ranks))


def _document(worker: Worker) -> dict[str, Any]:
    names = ("rank", "local_rank", "name", "host", "pid", "collective")
    return {name: getattr(worker, name) for name in names}


def _silent(workers: Iterable[Worker]) -> dict[str, list[Worker]]:
    """Return those without stacks by the reason, without the number of the process in it."""
    by_reason: dict[str, list[Worker]] = {}
    for worker in workers:
        if not worker.stacks:
            why = re.sub(r"\bprocess \d+\b", "its process", _reason(worker))
            by_reason.setdefault(why, []).append(worker)
    return by_reason


def _reason(worker: Worker) -> str:
    """Return why a worker gave no stacks, and then what its process does."""
    state, _, why = worker.problem.rpartition(_NO_STACKS)
    return f"{why} ({state})" if state else why


def _line(group: Group) -> str:
    return f"in {place(group.frames)}: {_who(group.workers)}"


def _who(workers: Sequence[Worker]) -> str:
    if len(workers) > RANKS_NAMED_MAX:
        named = one_line(ranges(worker.rank for worker in workers), _RANKS_CHARACTERS_MAX)
    else:
        named = ", ".join(f"{worker.rank} on {one_line(worker.name, 64)}" for worker in workers)
    return f"{count(len(workers), 'rank')} ({named})"
