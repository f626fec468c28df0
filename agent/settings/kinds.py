"""Pure. The values that settings of an agent take beside numbers and durations."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Any

from drumbeat.command.settings import Kind, number, text

AGENTS_MAX = 1_000_000
"""Bound of what an agent asks for; the coordinator has a lower limit of its own."""

WORKERS_PER_HOST_MAX = 4096
"""More workers than any host has cores; more is a slip of the keyboard."""

RESTARTS_MAX = 1_000_000
"""Practically endless, and still far from the end of the protocol's field."""

SIGNALS_HANDLED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""Signals that end an agent unless it is told otherwise; torchrun's."""

SIGNALS_ALLOWED = (
    *SIGNALS_HANDLED, "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPWR", "SIGXCPU", "SIGXFSZ",
)  # fmt: skip
"""Signals that can be handled at all, and that mean nothing else to an agent."""

_SIGNAL_NAMES = f"names separated by commas, of {', '.join(SIGNALS_ALLOWED)}"

LABELS_MAX = 64
"""Labels of an agent; what it says of itself stays small."""

_LABEL = re.compile(r"[A-Za-z0-9._/-]{1,63}=[A-Za-z0-9._:/-]{0,63}", re.ASCII)
_LABELS_ALLOWED = (
    f"up to {LABELS_MAX} of KEY=VALUE separated by commas, each KEY once, of up to 63 of "
    "A-Z a-z 0-9 . _ / -"
)

NOWHERE = "0"
"""Value of redirects and tee that means no stream of any worker."""

STREAMS_ALLOWED = (
    "Std.OUT and the like, a map of these by local rank, or a text of 0 (none), 1 (stdout), "
    '2 (stderr), 3 (both), for each local rank as in "0:3,1:2"'
)

# It names a directory, where dots alone mean another one. Empty: made up.
_RUN_ID_FORM = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{0,128}", re.ASCII)
_NNODES = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?", re.ASCII)
_RANKS = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*", re.ASCII)


class NumaMode(StrEnum):
    """How near its GPU a worker runs, and how alone; see ``agent.workers.devices.binding``."""

    NODE = "node"
    """All CPUs of the GPU's NUMA node."""
    SOCKET = "socket"
    """All CPUs of the GPU's socket, its other NUMA nodes included."""
    EXCLUSIVE = "exclusive"
    """This worker's share of the physical cores of the GPU's node."""
    CORE_COMPLEX = "core-complex"
    """One group of cores of the GPU's node that share their last-level cache."""


def parse_nnodes(given: str) -> tuple[int, int]:
    """Read how many agents a round has: "N", or "MIN:MAX". ``ValueError`` for anything else."""
    match = _NNODES.fullmatch(given.strip())
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high <= AGENTS_MAX:
        raise ValueError(
            f"{given!r} is given, allowed is N or MIN:MAX with 1 <= MIN <= MAX <= {AGENTS_MAX}"
        )
    return low, high


_COUNT = number(1, WORKERS_PER_HOST_MAX)


def parse_workers(given: str) -> int | str:
    """Read a number of workers, or a word for what the host has. ``ValueError`` else."""
    word = given.strip().lower()
    if word in ("auto", "gpu", "cpu"):
        return word
    try:
        return int(_COUNT.parse(given))
    except ValueError:
        allowed = f"a number from 1 to {WORKERS_PER_HOST_MAX}, auto, gpu or cpu"
        raise ValueError(f"{given!r} is given, allowed is {allowed}") from None


def parse_ranks(given: str) -> frozenset[int] | None:
    """Read local ranks, "0,2"; empty: None. ``ValueError`` for anything else."""
    if not given.strip():
        return None
    compact = given.replace(" ", "")
    if _RANKS.fullmatch(compact) is None:
        raise ValueError(f"{given!r} is given, allowed are local ranks separated by commas: 0,2")
    return frozenset(int(rank) for rank in compact.split(","))


def parse_filters(given: str) -> tuple[str, ...]:
    """Read texts separated by commas; a double comma is one comma within a text."""
    # A zero byte can be part of no argument and no variable of the environment.
    parts = given.replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


def parse_labels(given: str) -> tuple[str, ...]:
    """Read labels, "rack=b7,zone=a". ``ValueError`` for anything else."""
    return _read_labels(tuple(part.strip() for part in given.split(",") if part.strip()))


def parse_signals(given: str) -> tuple[str, ...]:
    """Read names separated by commas, each once. ``ValueError`` for anything else."""
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",")))
    if not set(names) <= set(SIGNALS_ALLOWED):
        raise ValueError(f"{given!r} is given, allowed is {_SIGNAL_NAMES}")
    return names


def _parse_streams(given: str) -> str:
    if given != NOWHERE:
        # Imported here: it costs as much as the rest of the command line, and few need it.
        from agent.workers.output.std import Std  # noqa: PLC0415

        Std.from_str(given)
    return given


def _read_streams(value: Any) -> str:
    if isinstance(value, dict):
        value = ",".join(f"{rank}:{int(std)}" for rank, std in value.items()) or NOWHERE
    return _parse_streams(value if isinstance(value, str) else str(int(value)))


def _read_ranks(value: Any) -> frozenset[int] | None:
    if not isinstance(value, (AbstractSet, list, tuple)) or any(type(r) is not int for r in value):
        raise TypeError
    return frozenset(value) or None  # as in torch, an empty filter means all


def _read_filters(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        raise TypeError
    return tuple(value)


def _read_labels(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        raise TypeError
    names = [each.partition("=")[0] for each in value]
    is_each_once = len(set(names)) == len(names) <= LABELS_MAX
    if not is_each_once or not all(map(_LABEL.fullmatch, value)):
        raise ValueError(f"{','.join(value)!r} is given, allowed is {_LABELS_ALLOWED}")
    return tuple(value)


def _read_signals(value: Any) -> tuple[str, ...]:
    if (
        not isinstance(value, tuple)
        or not value
        or not all(name in SIGNALS_ALLOWED for name in value)
    ):
        raise ValueError
    return tuple(value)


def _read_logs_specs(value: Any) -> Any:
    if not isinstance(value, (str, bytes)) and not callable(getattr(value, "reify", None)):
        raise TypeError
    return value


def _is_address(value: str) -> bool:
    is_bounded = 1 <= len(value) <= 253  # of a DNS name
    return is_bounded and value.isprintable() and not any(letter.isspace() for letter in value)


RUN_ID = text(
    "1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'; not '.' or '..'",
    _RUN_ID_FORM.fullmatch,
)
AGENT_NAME = text(
    "up to 253 printable characters without spaces", lambda value: not value or _is_address(value)
)
HOST = text("a host name or an IP address", _is_address, metavar="ADDR")
HOST_OR_EMPTY = HOST._replace(read=lambda value: value and HOST.read(value))
PATH = text("a path", lambda value: value, metavar="PATH")
STREAMS = Kind(STREAMS_ALLOWED, _read_streams, _parse_streams, metavar="STREAMS")
LABELS = Kind(_LABELS_ALLOWED, _read_labels, parse_labels, ",".join, "KEY=VALUE[,...]")
FILTERS = Kind("a list of texts, or None", _read_filters, parse_filters, metavar="TEXT[,TEXT]...")


WORKERS = _COUNT._replace(parse=parse_workers, metavar="N|auto|gpu|cpu")
TEXT = text("a text", lambda _: True, metavar="TEXT")
RANKS = Kind("local ranks, or None", _read_ranks, parse_ranks, metavar="RANK[,RANK]...")
LOGS_SPECS = Kind(
    "logs specs, which have a method reify, the name of some, or None",
    _read_logs_specs,
    metavar="NAME",
)
SIGNALS = Kind(
    _SIGNAL_NAMES,
    _read_signals,
    parse_signals,
    ",".join,
    "NAME,...",
)
