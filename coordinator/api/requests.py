"""Pure. What operators can ask of a coordinator that runs, each as its command was told.

The docstring of a request is the help of its command.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

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
from drumbeat.coordinator.wire.stack_groups import parse_ranks
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
_RANK = Setting(
    (),
    _RANKS,
    "Options",
    "Only the workers of these ranks, e.g. 17 or 0,8-15.",
    shown_default="all",
    has_variable=False,  # DRUMBEAT_RANK may come to be that of workers
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
    """Forget what was learned of how long things take in a run.

    Sections and heartbeats whose timeout is "auto" have no limit from then on,
    until it is learned anew. For a change that makes a run slower.
    """

    run_id: str = setting(None, _RUN_ID, "Options", "The run.", is_required=True)


@dataclass(frozen=True, kw_only=True)
class _Steering(Request):
    """What is asked of a run that trains."""

    run_id: str  # an argument
    reason: str | None = declare(_REASON)
    grace: float | None = declare(_GRACE)


@dataclass(frozen=True, kw_only=True)
class StopRun(_Steering):
    """End a run in order.

    Training may save first; then its workers are stopped as at a restart. Its agents end with exit
    code 4, and say who stopped it and why. Harmless if repeated, and for a run that has ended.
    """


@dataclass(frozen=True, kw_only=True)
class RestartRun(_Steering):
    """Begin another round of a run now, with the agents that are there.

    Training may save first. Workers go on from their latest checkpoint. It is not charged to the
    restarts of --max-restarts.
    """


@dataclass(frozen=True, kw_only=True)
class CheckpointRun(_Steering):
    """Have training save now, at one step on all ranks, and go on.

    It has to ask when to save, with worker_sdk.should_checkpoint; if it does not, nothing happens.
    The events of the run say when all have saved.
    """

    grace: float | None = declare(_GRACE._replace(help="How long it may take, at most."))


@dataclass(frozen=True, kw_only=True)
class ForgetRun(Request):
    """Remove a run that has ended, and those before that had its name.

    Its verdict and its events are gone then. One that lives is refused: stop it first.
    """

    run_id: str  # an argument


@dataclass(frozen=True, kw_only=True)
class DrainAgent(Request):
    """Make agents leave their runs, and keep them out of rounds.

    NAME is an agent's or a host's. Training may save first; then its workers are stopped, a standby
    or a smaller round goes on, and no restart is charged; a run that has too few agents left waits
    for others. The agents end with exit code 0. Those of that name or host that are started later
    stand by until `undrain`.
    """

    name: str  # an argument
    run_id: str | None = declare(_ONLY_RUN)
    reason: str | None = declare(_REASON)
    grace: float | None = declare(_GRACE)


@dataclass(frozen=True, kw_only=True)
class UndrainAgent(Request):
    """Let agents take part in rounds again.

    NAME and --run-id are those of the drain. Who stands by for it joins its run at once.
    """

    name: str  # an argument
    run_id: str | None = declare(_ONLY_RUN)
    reason: str | None = declare(_REASON)


@dataclass(frozen=True, kw_only=True)
class ListDrains(Request):
    """List who is kept out of rounds, since when, by whom and why."""


@dataclass(frozen=True, kw_only=True)
class CreateToken(Request):
    """Make a token and print it, alone on standard output.

    It is shown this once: the coordinator keeps a hash of it. Who has it has its role, so keep
    it in a file for its owner alone, and give that with --token-file, or as DRUMBEAT_TOKEN. Its id,
    which `token list` shows, is no secret. An agent that is training with a token that expires
    goes on, and may come back; one whose token is revoked ends.
    """

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
    """List all tokens, the oldest first.

    Those that have lately expired or were revoked are among them. Secrets are not shown.
    """


@dataclass(frozen=True, kw_only=True)
class RevokeToken(Request):
    """Revoke a token, and end what it opened.

    Agents that joined with it end, and so do their workers, unless their --token-file has another
    one by now. Harmless if repeated.
    """

    token_id: str  # an argument


@dataclass(frozen=True, kw_only=True)
class ShowAuthority(Request):
    """List the authorities that are served.

    The newest comes first: new tokens pin it.
    """


@dataclass(frozen=True, kw_only=True)
class RotateAuthority(Request):
    """Replace it; those before are served, too.

    No agent leaves its round: those that are connected are told of the new authority. Tokens that
    are made from now on pin it.
    """


@dataclass(frozen=True, kw_only=True)
class RetireAuthority(Request):
    """Serve the newest authority alone.

    Tokens of before it open nothing new then. What is connected stays connected, and agents that
    were connected since the authority was replaced may come back.
    """


@dataclass(frozen=True, kw_only=True)
class ListMembers(Request):
    """List the coordinators of a cluster, and say which of them leads.

    The first that answers is asked, whether it leads or not.
    """


@dataclass(frozen=True, kw_only=True)
class StepDown(Request):
    """Have another coordinator of the cluster lead instead of the one that does.

    Workers go on, and agents follow at once. It is refused if there is no other one.
    """

    reason: str | None = declare(_REASON._replace(help="Why, for the logs of the coordinators."))


@dataclass(frozen=True, kw_only=True)
class Looking(Request):
    """What the commands that show something are told."""


@dataclass(frozen=True, kw_only=True)
class ShowStatus(Looking):
    """Show all runs, or one of them.

    Of one run: what it does and why, its agents and workers, who is behind, and what was last
    decided.
    """

    run_id: str | None = None  # an argument; None: all runs


@dataclass(frozen=True, kw_only=True)
class ShowEvents(Looking):
    """Show what was decided on a run, and why.

    The latest run that has this id is shown. With -o json each event is a line.
    """

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
    """Say in sentences why a run is as it is.

    What failed or is waited for, the root cause and what shows it, what was done, what it cost,
    and what to try.
    """

    run_id: str  # an argument


@dataclass(frozen=True, kw_only=True)
class WatchRun(Looking):
    """Show one run as `status` does, live until it has ended.

    It is shown anew when something is decided, at most once a second, and through a restart of the
    coordinator.
    """

    run_id: str  # an argument


@dataclass(frozen=True, kw_only=True)
class ShowStacks(Looking):
    """Show where the workers of a run are now: their Python stacks, grouped by equal ones.

    Workers do not notice that they are asked, and a stopped one stays stopped. They have stacks to
    show once they have used the SDK, e.g. called worker_sdk.heartbeat; those that can't answer are
    named with the reason.
    """

    run_id: str  # an argument
    rank: tuple[int, ...] = declare(_RANK)
    signal: bool = setting(
        False,
        settings.FLAG,
        "Options",
        "Signal workers that do not answer; it can end their system calls early (EINTR).",
        has_variable=False,
    )


@dataclass(frozen=True, kw_only=True)
class ShowLogs(Looking):
    """Show the output of a run's workers, from all hosts, as their agents have it.

    Each line stands behind its rank. A reader that is too slow loses lines and is told how many;
    no worker waits for it. Of ranks that have nothing to show the reason is told.
    """

    run_id: str  # an argument
    rank: tuple[int, ...] = declare(
        _RANK._replace(help="Only the workers of these ranks, e.g. 17 or 0,8-15; at most 1000.")
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
    """Show what the time of a run went into, over all its rounds.

    How much of it was training, and what the rest was lost to: waiting, starting, steps done once
    more, hangs, stops; by cause, and by the host that was the cause.
    """

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
    """Print a link to the page, of all runs or of one.

    A browser that opens it within five minutes is let in, once, and stays in for half a day. Who
    has the link has what it allows: it is as secret as a token. The coordinator has to serve the
    page, with --http-port.
    """

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
