"""Pure. Stacks of many workers as one look: grouped by where their first threads are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from drumbeat.format import count, one_line, printable

RANKS_NAMED_MAX = 4  # of a group are named with their hosts; more are shown as ranges
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
# What is between a user's line and what it called, and tells nothing.
_WRAPPERS = re.compile(r"wrapper|inner|_.*|<.*>|decorate_.*")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3[^/]*/|^<frozen ")
_NAME_CHARACTERS_MAX = 80
_RANK_OR_RANGE = re.compile(r" *([0-9]{1,9})(?:-([0-9]{1,9}))? *", re.ASCII)


class Frame(NamedTuple):
    """One call."""

    file: str
    line: int
    function: str

    @property
    def is_of_library(self) -> bool:
        """Whether it is not the user's own code."""
        return _LIBRARY.search(self.file) is not None


class Worker(NamedTuple):
    """One worker, with its stacks or the reason why there are none."""

    rank: int
    local_rank: int
    name: str
    host: str
    pid: int
    stacks: str
    problem: str


class Group(NamedTuple):
    """Workers whose first threads are at the same place, by all their calls, innermost first."""

    frames: tuple[Frame, ...]
    workers: tuple[Worker, ...]


def grouped(workers: Iterable[Worker]) -> list[Group]:
    """Return the groups of those that have stacks, the largest first."""
    found: dict[tuple[Frame, ...], list[Worker]] = {}
    for worker in sorted(workers):
        if worker.stacks:
            found.setdefault(frames_of(worker.stacks), []).append(worker)
    groups = [Group(frames, tuple(members)) for frames, members in found.items()]
    return sorted(groups, key=lambda group: (-len(group.workers), group.workers[0].rank))


def frames_of(stacks: str) -> tuple[Frame, ...]:
    """Return the calls of the first thread; none if there is no Python in it."""
    first = stacks.strip("\n").partition("\n\n")[0]
    found = map(_FRAME.fullmatch, first.splitlines())
    return tuple(Frame(each[1], int(each[2]), each[3]) for each in found if each)


def place(frames: Sequence[Frame]) -> str:
    """Return where that is in short: what the user's own code called last, and from which line."""
    if not frames:
        return "no Python code"
    at = next((i for i, frame in enumerate(frames) if not frame.is_of_library), 0)
    own, inner = frames[at], reversed(frames[:at])
    called = next((each for each in inner if not _WRAPPERS.fullmatch(each.function)), own)
    file = own.file.rpartition("/")[2]
    return one_line(f"{called.function} ({file}:{own.line})", _NAME_CHARACTERS_MAX)


def text(workers: Sequence[Worker]) -> str:
    """Return it all to be read: a line for each group, the silent workers, then the stacks."""
    if not workers:
        return "no worker has one of these ranks\n"
    groups = grouped(workers)
    lines = [_line(group) for group in groups]
    for why, silent in _silent(workers).items():
        lines.append(f"{_who(silent)} gave no stacks: {one_line(why)}")
    for group in groups:
        first = group.workers[0]
        thread = printable(first.stacks).strip("\n").partition("\n\n")[0]
        lines += ["", _line(group), *thread.splitlines()[1:]]
    return "\n".join(lines) + "\n"


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
                "workers": [_told(worker) for worker in group.workers],
            }
            for group in grouped(workers)
        ],
        "unanswered": [
            {**_told(worker), "reason": worker.problem} for worker in workers if not worker.stacks
        ],
    }


def parse_ranks(given: str, most: int) -> tuple[int, ...]:
    """Read what ``ranges`` writes, each rank once. Raises ``ValueError``, for too many too."""
    found: list[int] = []
    for part in given.split(","):
        if not (match := _RANK_OR_RANGE.fullmatch(part)):
            raise ValueError
        first = int(match[1])
        last = int(match[2] or first)
        if not first <= last < first + most - len(found):
            raise ValueError
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def ranges(ranks: Iterable[int]) -> str:
    """Return whole numbers in short: "0-3,7"."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


def _told(worker: Worker) -> dict[str, Any]:
    return {name: getattr(worker, name) for name in ("rank", "local_rank", "name", "host", "pid")}


def _silent(workers: Iterable[Worker]) -> dict[str, list[Worker]]:
    """Return those without stacks by the reason, without the number of the process in it."""
    found: dict[str, list[Worker]] = {}
    for worker in workers:
        if not worker.stacks:
            why = re.sub(r"\bprocess \d+\b", "its process", worker.problem)
            found.setdefault(why, []).append(worker)
    return found


def _line(group: Group) -> str:
    return f"{_who(group.workers)} in {place(group.frames)}"


def _who(workers: Sequence[Worker]) -> str:
    if len(workers) > RANKS_NAMED_MAX:
        named = ranges(worker.rank for worker in workers)
    else:
        named = ", ".join(f"{each.rank} on {one_line(each.name, 64)}" for each in workers)
    return f"{count(len(workers), 'rank')} ({named})"
