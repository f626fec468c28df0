"""Pure. What the stack of a thread shows: its calls, where that is in short, and what it does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from drumbeat.text.format import one_line

# Of a place, which is shown in front of all else, so that it fits into 80 columns with the ranks.
_FUNCTION_CHARACTERS_MAX, _FILE_CHARACTERS_MAX = 32, 28
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}) in (.*)')
# What is between a user's line and what it called, and tells nothing.
_WRAPPERS = re.compile(r"wrapper|inner|_.*|<.*>|decorate_.*")
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib/python3[^/]*/|^<frozen "
    r"|\.(?:so(?:\.[\d.]+)?|c|cc|cpp|cu|pyx|h)$"
)
# Code in which a rank waits for other ranks. Saving checkpoints and starting workers lie in the
# same folder of torch and wait for a disk or for processes instead.
_WAITS = re.compile(
    r"/torch/distributed/(?!checkpoint/|elastic/|launcher/)"
    r"|/torch/nn/parallel/distributed\.py$"
    r"|/horovod/\w+/mpi_ops\.py$"
    r"|/deepspeed/comm/"
    r"|/worker_sdk/inprocess/"
)
# Code that computes or waits for other ranks: a backward pass reduces gradients on its way, and a
# GPU finishes its collectives when it is synchronized.
_MAY_WAIT = re.compile(
    r"/torch/autograd/(?:graph|__init__)\.py$|/torch/cuda/(?:__init__|streams)\.py$"
)
# The same where the call is made of C, and shows in the source alone.
_MAY_WAIT_LINE = re.compile(r"\.(?:wait|item|cpu|tolist|numpy|synchronize)\(")
_PLAIN_WAIT = re.compile(r"/threading\.py$")


class Activity(StrEnum):
    """What a rank does, as far as its stack shows it."""

    WAITS = "waits for other ranks"
    MAY_WAIT = "computes, or waits for other ranks"
    BUSY = "waits for no other rank"
    STOPPED = "is stopped"
    SILENT = "gave no stack"


class Frame(NamedTuple):
    """One call."""

    file: str
    line: int
    function: str


def frames_of(stacks: str) -> tuple[Frame, ...]:
    """Return the calls of the first thread, innermost first; none if there is no Python in it."""
    return next(iter(_threads(stacks)), ())


def telling_frames(stacks: str) -> tuple[Frame, ...]:
    """Return the calls of the thread that trains: the first, or the one the first waits for.

    A program may train in a thread, and have its first thread wait for that one to end.
    """
    first, *rest = _threads(stacks) or [()]
    if first and _PLAIN_WAIT.search(first[0].file):
        return next((thread for thread in rest if activity_of(thread) is Activity.WAITS), first)
    return first


def activity_of(frames: Sequence[Frame], source_line: str = "") -> Activity:
    """Return what a thread does, judged by its innermost call and the text of that line."""
    if not frames:
        return Activity.BUSY
    file = frames[0].file
    if _WAITS.search(file):
        return Activity.WAITS
    may_wait = _MAY_WAIT.search(file) or _MAY_WAIT_LINE.search(source_line)
    return Activity.MAY_WAIT if may_wait else Activity.BUSY


def place(frames: Sequence[Frame]) -> str:
    """Return where that is in short: what the user's own code called last, and from which line."""
    if not frames:
        return "no Python code"
    at = next((i for i, frame in enumerate(frames) if not _LIBRARY.search(frame.file)), 0)
    own, inner = frames[at], reversed(frames[:at])
    called = next((frame for frame in inner if not _WRAPPERS.fullmatch(frame.function)), own)
    function = one_line(called.function, _FUNCTION_CHARACTERS_MAX)
    file = one_line(own.file.rpartition("/")[2], _FILE_CHARACTERS_MAX)
    return f"{function} ({file}:{own.line})"


def _threads(stacks: str) -> list[tuple[Frame, ...]]:
    return [
        tuple(
            Frame(match[1], int(match[2]), match[3])
            for match in map(_FRAME.fullmatch, block.splitlines())
            if match
        )
        for block in stacks.strip("\n").split("\n\n")
    ]
