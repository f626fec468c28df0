"""Pure. Options of the verbs in the table of operations."""

from __future__ import annotations

import re
from typing import Any

from drumbeat.access.token import Role
from drumbeat.command import settings
from drumbeat.command.settings import FLAG, Kind, Setting, one_of, printable, text
from drumbeat.coordinator.api.listing import HEALTHS, OUTCOMES, PHASES, SORTS
from drumbeat.coordinator.api.log_lines import LEVELS as LOG_LEVELS
from drumbeat.coordinator.core.rehearsal.model import FAULTS_MAX, PAUSE_MAX_S
from drumbeat.coordinator.wire.stack_groups import parse_ranks
from drumbeat.text.durations import parse_duration, short_duration

_DAY_S = 24 * 3600.0
_DAYS = re.compile(r"([0-9]{1,5})[ ]?([dw])", re.ASCII)
_TTL_MAX_DAYS = 3650
_RANKS_MAX = 10_000
_FAULT_WORDS = ("worker", "agent", "host-pause")


def _option(default: Any, kind: Kind, about: str, shown: str = "", **more: Any) -> Setting:
    """Declare an option without a variable: DRUMBEAT_RUN_ID and others are meant for agents."""
    return Setting(default, kind, "Options", about, shown_default=shown, has_variable=False, **more)


def _seconds(given: Any) -> float:
    days = _DAYS.fullmatch(given.strip()) if isinstance(given, str) else None
    days_s = _DAY_S * (7 if days and days[2] == "w" else 1)
    seconds = int(days[1]) * days_s if days else parse_duration(str(given))
    if not 1 <= seconds <= _TTL_MAX_DAYS * _DAY_S:
        raise ValueError
    return seconds


def _archive(given: Any) -> str:
    if not str(given).endswith((".tar.gz", ".tgz")):
        raise ValueError
    return str(given)


def _ranks(given: Any) -> tuple[int, ...]:
    return parse_ranks(given, _RANKS_MAX) if isinstance(given, str) else tuple(given)


def _faults(given: Any) -> tuple[str, ...]:
    words = given.split(",") if isinstance(given, str) else given
    faults = tuple(dict.fromkeys(word.strip() for word in words))
    if not faults or not set(faults) <= set(_FAULT_WORDS):
        raise ValueError
    return faults


_TTL = Kind(
    f"1 second to {_TTL_MAX_DAYS} days, e.g. 90m, 12h, 30d",
    _seconds,
    _seconds,
    short_duration,
    "DURATION",
)
_RANKS = Kind(
    f"ranks and ranges of them, {_RANKS_MAX} at most, e.g. 17 or 0,8-15",
    _ranks,
    _ranks,
    lambda ranks: ",".join(map(str, ranks)),
    "RANKS",
)
_ARCHIVE = Kind("a path that ends in .tar.gz or .tgz", _archive, _archive, metavar="FILE")
_FAULTS = Kind(
    f"some of {', '.join(_FAULT_WORDS)}",
    _faults,
    _faults,
    ",".join,
    "LIST",
)
_RUN_ID = text("a name", len)

RUN_ID = Setting(None, _RUN_ID, "Options", "The run.", is_required=True)
ONLY_RUN = _option(None, _RUN_ID, "Only this run.", "all runs")
REASON = _option(
    None, printable(256), "The reason, for the events of the run and its agents.", "none"
)
GRACE = _option(
    None,
    settings.seconds(),
    "How long training may take to save first; 0: not at all. The wait ends as soon as all ranks "
    "have saved, and at once if training does not ask when to save.",
    "--checkpoint-grace of the coordinator",
)
ROLE = _option(
    None,
    one_of(tuple(map(str, Role))),
    "What the token allows. join: agents may join and report failures; view: reading; admin: "
    "everything.",
    is_required=True,
)
PAGE_ROLE = _option(
    None,
    one_of(("view", "admin")),
    "What the link allows. view: reading, of one run alone if a run is named; admin: everything.",
    "your own role",
)
TTL = _option(
    None,
    _TTL,
    "How long the token lets callers in. Agents that joined before may come back later.",
    "until it is revoked",
)
SINCE = _option(
    None,
    _TTL._replace(allowed="a time that has passed since, e.g. 90s, 15m, 12h, 3d"),
    "Show only events of the last DURATION.",
    "all that is known",
)
PHASE = _option(
    None,
    one_of((*PHASES, *HEALTHS, *OUTCOMES)),
    "Only runs in this phase or health.",
    "all",
)
SORT = _option(
    "health",
    one_of(SORTS),
    "The order. health: those that need attention first; age: the youngest first; step, restarts "
    "and trained: those with most first.",
)
ALL = _option(False, FLAG, "Add up all runs, living and ended, that the coordinator knows.")
BY = _option("owner", one_of(("owner", "week")), "With --all: a row for each of these.")
RANK = _option((), _RANKS, "Only the workers of these ranks, e.g. 17 or 0,8-15.", "all")
SIGNAL = _option(
    False,
    FLAG,
    "Signal workers that do not answer; this can end their system calls early (EINTR).",
)
FOLLOW = _option(
    False,
    FLAG,
    "Keep showing what is new until the run has ended; reconnect if the coordinator restarts.",
    flags=("-f", "--follow"),
)
TAIL = _option(
    None,
    settings.number(0, 10_000),
    "Number of lines to begin with, for each rank and each of its two streams.",
    "20; 10000 with --grep or --level",
    flags=("-n", "--tail"),
)
ROUND = _option(
    None,
    settings.number(0, 2**63 - 1),
    "The end of the output of this round, as far as the coordinator has kept it.",
    "the current round; of a run that has ended the last one",
    flags=("--round",),
)
GREP = _option(None, text("a text", len), "Only lines with this text, in any case.", "all lines")
LEVEL = _option(
    None,
    one_of(LOG_LEVELS),
    "Only lines that look like log records of at least this level, and the lines that follow them.",
    "all lines",
)
TIMESTAMPS = _option(False, FLAG, "Show when lines were read, where that is known.")
SEGMENTS = _option(False, FLAG, "Also list the last 1,000 time segments.", flags=("--segments",))
ARCHIVE = _option(
    None,
    _ARCHIVE,
    "The archive to write.",
    "drumbeat-RUN-TIME.tar.gz in the working directory",
    flags=("-o", "--output"),
)
FORCE = _option(False, FLAG, "Replace the file if it is there already.")
REHEARSAL = {
    "faults": _option(
        _FAULT_WORDS,
        _FAULTS,
        "The faults to draw from. worker: one worker is killed; agent: one agent is killed, if "
        "enough are left; host-pause: all workers of a host are stopped for a while.",
    ),
    "every": _option(600.0, settings.seconds(1.0), "Mean time from one fault to the next."),
    "at_most": _option(3, settings.number(1, FAULTS_MAX), "Number of faults."),
    "pause": _option(30.0, settings.seconds(0.1, PAUSE_MAX_S), "How long a host-pause lasts."),
    "seed": _option(None, settings.number(0, 2**32 - 1), "Seed of the draws.", "drawn"),
    "is_first_now": _option(False, FLAG, "Inject the first fault at once.", flags=("--now",)),
    "may_overlap": _option(
        False, FLAG, "Do not wait for the run to recover.", flags=("--overlap",)
    ),
    "is_end": _option(False, FLAG, "End the rehearsal of the run.", flags=("--stop",)),
}
REHEARSAL_SHOWN = {
    "detach": _option(False, FLAG, "Begin the rehearsal, and do not wait for it."),
    "report": _option(False, FLAG, "Show only what the latest rehearsal has shown so far."),
}
