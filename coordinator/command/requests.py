"""Pure. What operators can ask of a coordinator that runs, each as its command was told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from coordinator.wire.stack_groups import parse_ranks
from drumbeat.access.settings import AccessSettings
from drumbeat.access.token import Role
from drumbeat.command import settings
from drumbeat.command.settings import (
    PORT_DEFAULT,
    Setting,
    declare,
    one_of,
    printable,
    setting,
    text,
)
from drumbeat.durations import parse_duration, short_duration

_DAY_S = 24 * 3600.0
_DAYS = re.compile(r"([0-9]{1,5})[ ]?d", re.ASCII)
_TTL_MAX_DAYS = 3650


def _seconds(given: str) -> float:
    days = _DAYS.fullmatch(given.strip())
    return int(days[1]) * _DAY_S if days else parse_duration(given)


def _ttl(given: Any) -> float:
    seconds = _seconds(given) if isinstance(given, str) else float(given)
    if not 1 <= seconds <= _TTL_MAX_DAYS * _DAY_S:
        raise ValueError
    return seconds


_TTL = settings.Kind(
    f"1 second to {_TTL_MAX_DAYS} days, e.g. 90m, 12h, 30d", _ttl, _ttl, short_duration, "DURATION"
)
_RUN_ID = text("a name", len)
_ONLY_RUN = Setting(
    None,
    _RUN_ID,
    "Options",
    "The only run that it is about.",
    shown_default="all runs",
    has_variable=False,
)
_REASON = Setting(
    None,
    printable(256),
    "Options",
    "Why, for the events of the run and for its agents.",
    shown_default="none",
    has_variable=False,
)


_GRACE = Setting(
    None,
    settings.seconds(),
    "Options",
    "How long training may take to save first; 0: not at all. It ends as soon as all ranks have "
    "saved, and at once if training does not ask when to save.",
    shown_default="--checkpoint-grace of the coordinator",
    has_variable=False,
)


def _ranks(given: Any) -> tuple[int, ...]:
    return parse_ranks(given, _RANKS_MAX) if isinstance(given, str) else tuple(given)


_RANKS_MAX = 10_000
_RANKS = settings.Kind(
    f"ranks and ranges of them, {_RANKS_MAX} at most, e.g. 17 or 0,8-15",
    _ranks,
    _ranks,
    lambda ranks: ",".join(map(str, ranks)),
    "RANKS",
)


@dataclass(frozen=True, kw_only=True)
class Request(AccessSettings):
    """What all of them are told: where the coordinator is, who asks, and what to write."""

    coordinator: str = setting(
        f"127.0.0.1:{PORT_DEFAULT}",
        settings.ADDRESSES,
        "Options",
        "Where the coordinator listens; port 29400 if none is given. Of a cluster all addresses: "
        "the one that leads is found from any of them.",
    )
    use_proxy: bool = declare(settings.USE_PROXY)
    output: str = setting(
        "text",
        one_of(("text", "json")),
        "Options",
        "text, to be read; json, for programs, as docs/operating.md describes it.",
        flags=("-o", "--output"),
        has_variable=False,
    )


@dataclass(frozen=True, kw_only=True)
class ResetLimits(Request):
    """``coordinator reset-limits``."""

    run_id: str = setting(None, _RUN_ID, "Options", "The run.", is_required=True)


@dataclass(frozen=True, kw_only=True)
class StopRun(Request):
    """``coordinator stop``."""

    run_id: str  # an argument
    reason: str | None = declare(_REASON)
    grace: float | None = declare(_GRACE)


@dataclass(frozen=True, kw_only=True)
class RestartRun(Request):
    """``coordinator restart``."""

    run_id: str  # an argument
    reason: str | None = declare(_REASON)
    grace: float | None = declare(_GRACE)


@dataclass(frozen=True, kw_only=True)
class CheckpointRun(Request):
    """``coordinator checkpoint``."""

    run_id: str  # an argument
    reason: str | None = declare(_REASON)
    grace: float | None = declare(_GRACE._replace(help="How long it may take, at most."))


@dataclass(frozen=True, kw_only=True)
class ForgetRun(Request):
    """``coordinator forget``."""

    run_id: str  # an argument


@dataclass(frozen=True, kw_only=True)
class DrainAgent(Request):
    """``coordinator drain``."""

    name: str  # an argument
    run_id: str | None = declare(_ONLY_RUN)
    reason: str | None = declare(_REASON)
    grace: float | None = declare(_GRACE)


@dataclass(frozen=True, kw_only=True)
class UndrainAgent(Request):
    """``coordinator undrain``."""

    name: str  # an argument
    run_id: str | None = declare(_ONLY_RUN)
    reason: str | None = declare(_REASON)


@dataclass(frozen=True, kw_only=True)
class ListDrains(Request):
    """``coordinator drains``."""


@dataclass(frozen=True, kw_only=True)
class CreateToken(Request):
    """``coordinator token create``."""

    role: str = setting(
        None,
        one_of(tuple(map(str, Role))),
        "Options",
        "What it allows. join: agents may join, and report failures; view: reading; admin: "
        "everything.",
        is_required=True,
        has_variable=False,  # DRUMBEAT_ROLE is that of workers, and DRUMBEAT_RUN_ID for agents
    )
    run_id: str | None = setting(
        None,
        _RUN_ID,
        "Options",
        "The only run that it is for, with the role join.",
        shown_default="any run",
        has_variable=False,
    )
    ttl: float | None = setting(
        None,
        _TTL,
        "Options",
        "How long it lets callers in; agents that came before may come back after that.",
        shown_default="until it is revoked",
        has_variable=False,
    )


@dataclass(frozen=True, kw_only=True)
class ListTokens(Request):
    """``coordinator token list``."""


@dataclass(frozen=True, kw_only=True)
class RevokeToken(Request):
    """``coordinator token revoke``."""

    token_id: str  # an argument


@dataclass(frozen=True, kw_only=True)
class ShowAuthority(Request):
    """``coordinator authority show``."""


@dataclass(frozen=True, kw_only=True)
class RotateAuthority(Request):
    """``coordinator authority rotate``."""


@dataclass(frozen=True, kw_only=True)
class RetireAuthority(Request):
    """``coordinator authority retire``."""


@dataclass(frozen=True, kw_only=True)
class ListMembers(Request):
    """``coordinator members``."""


@dataclass(frozen=True, kw_only=True)
class StepDown(Request):
    """``coordinator step-down``."""

    reason: str | None = declare(_REASON._replace(help="Why, for the logs of the coordinators."))


@dataclass(frozen=True, kw_only=True)
class Looking(Request):
    """What the commands that show something are told."""


@dataclass(frozen=True, kw_only=True)
class ShowStatus(Looking):
    """``coordinator status``."""

    run_id: str | None = None  # an argument; None: all runs


@dataclass(frozen=True, kw_only=True)
class ShowEvents(Looking):
    """``coordinator events``."""

    run_id: str  # an argument
    follow: bool = setting(
        False,
        settings.FLAG,
        "Options",
        "Go on with what is decided from now on, until the run has ended; through a restart of "
        "the coordinator, too.",
        flags=("-f", "--follow"),
        has_variable=False,
    )
    since: float | None = setting(
        None,
        _TTL._replace(allowed="a time that has passed since, e.g. 90s, 15m, 12h, 3d"),
        "Options",
        "Only what was decided within this time.",
        shown_default="all that is known",
        has_variable=False,
    )


@dataclass(frozen=True, kw_only=True)
class ExplainRun(Looking):
    """``coordinator why``."""

    run_id: str  # an argument


@dataclass(frozen=True, kw_only=True)
class WatchRun(Looking):
    """``coordinator watch``."""

    run_id: str  # an argument


@dataclass(frozen=True, kw_only=True)
class ShowStacks(Looking):
    """``coordinator stacks``."""

    run_id: str  # an argument
    rank: tuple[int, ...] = setting(
        (),
        _RANKS,
        "Options",
        "Only the workers of these ranks, e.g. 17 or 0,8-15.",
        shown_default="all",
        has_variable=False,  # DRUMBEAT_RANK may come to be that of workers
    )
    signal: bool = setting(
        False,
        settings.FLAG,
        "Options",
        "Signal workers that do not answer; it can end their system calls early (EINTR).",
        has_variable=False,
    )


@dataclass(frozen=True, kw_only=True)
class ShowLogs(Looking):
    """``coordinator logs``."""

    run_id: str  # an argument
    rank: tuple[int, ...] = setting(
        (),
        _RANKS,
        "Options",
        "Only the workers of these ranks, e.g. 17 or 0,8-15; at most 1000.",
        shown_default="all",
        has_variable=False,
    )
    follow: bool = setting(
        False,
        settings.FLAG,
        "Options",
        "Go on with what is written from now on, until the run has ended; over all its rounds, "
        "and through a restart of the coordinator.",
        flags=("-f", "--follow"),
        has_variable=False,
    )
    tail: int = setting(
        20,
        settings.number(0, 10_000),
        "Options",
        "How many lines to begin with, of each rank and each of its two streams.",
        flags=("-n", "--tail"),
        has_variable=False,
    )


@dataclass(frozen=True, kw_only=True)
class ShowGoodput(Looking):
    """``coordinator goodput``."""

    run_id: str  # an argument
    segments: bool = setting(
        False,
        settings.FLAG,
        "Options",
        "Show the latest 1,000 times of one part each, too: what the run did when, and what a "
        "time was lost for.",
        flags=("--segments",),
        has_variable=False,
    )


@dataclass(frozen=True, kw_only=True)
class LinkPage(Request):
    """``coordinator page``."""

    run_id: str | None = None  # an argument; None: all runs
    role: str | None = setting(
        None,
        one_of(("view", "admin")),
        "Options",
        "What it allows. view: reading, of one run alone if one is named; admin: everything.",
        shown_default="what you may do yourself",
        has_variable=False,
    )


COMMANDS: dict[str, type[Request]] = {
    "reset-limits": ResetLimits,
    "stop": StopRun,
    "restart": RestartRun,
    "checkpoint": CheckpointRun,
    "forget": ForgetRun,
    "drain": DrainAgent,
    "undrain": UndrainAgent,
    "drains": ListDrains,
    "token create": CreateToken,
    "token list": ListTokens,
    "token revoke": RevokeToken,
    "authority show": ShowAuthority,
    "authority rotate": RotateAuthority,
    "authority retire": RetireAuthority,
    "status": ShowStatus,
    "events": ShowEvents,
    "why": ExplainRun,
    "watch": WatchRun,
    "stacks": ShowStacks,
    "logs": ShowLogs,
    "members": ListMembers,
    "step-down": StepDown,
    "goodput": ShowGoodput,
    "page": LinkPage,
}


def settings_of(request: type[Request]) -> dict[str, Setting]:
    """Return the settings of a request, its own ones first and those of access last."""
    declared, common = settings.settings_of(request), settings.settings_of(Request)
    ranks = {name: (each.section != "Options", name in common) for name, each in declared.items()}
    return {name: declared[name] for name in sorted(declared, key=ranks.__getitem__)}
