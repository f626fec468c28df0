"""Shell. The options of ``agent join`` that say when a worker counts as one that hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from agent.watchdog.core.model import AUTO, Auto, Limit, WatchdogPolicy
from drumbeat import options

F = TypeVar("F", bound=Callable[..., Any])

OPTION_OF_FIELD = {
    "startup_timeout_s": "--startup-timeout",
    "runtime_timeout_s": "--runtime-timeout",
    "progress_timeout_s": "--progress-timeout",
    "exit_timeout_s": "--exit-timeout",
    "kill_grace_s": "--hang-grace",
}

NONE = "none"
"""Switches a limit off; so does 0."""

_OFF = "off"
"""What a limit that is off is handed on as: click takes None for "not given"."""


class LimitType(options.ParamType):
    """A duration, "none", and for some "auto"."""

    name = "limit"

    def __init__(self, *, is_learnable: bool = False) -> None:
        self._is_learnable = is_learnable
        self._duration = options.DurationType(min_s=0.1)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | Auto | str:
        """Read the text."""
        if isinstance(value, Auto):
            return value
        word = str(value).strip().lower()
        if word in (NONE, _OFF, "0"):
            return _OFF
        if word == "auto" and self._is_learnable:
            return AUTO
        try:
            return self._duration.convert(value, param, ctx)
        except click.BadParameter as error:
            more = ", none" + (" or auto" if self._is_learnable else "")
            self.fail(f"{error.message.rstrip('.')}; also allowed: 0{more}.", param, ctx)


_DECLARATIONS = (
    options.option(
        "--startup-timeout",
        section="Hangs",
        type=LimitType(),
        metavar="DURATION|none",
        default=NONE,
        help="How long a worker may take to its first heartbeat. What counts as hanging gets its "
        "stacks taken, and is ended.",
    ),
    options.option(
        "--progress-timeout",
        section="Hangs",
        type=LimitType(is_learnable=True),
        metavar="DURATION|auto|none",
        default=NONE,
        help="Longest time between two heartbeats; auto: learned from those of the run.",
    ),
    options.option(
        "--runtime-timeout",
        section="Hangs",
        type=LimitType(),
        metavar="DURATION|none",
        default="5m",
        help="How long no thread of a worker's interpreter may run, e.g. because native code "
        "holds its lock. For workers that use the SDK.",
    ),
    options.option(
        "--exit-timeout",
        section="Hangs",
        type=LimitType(),
        metavar="DURATION|none",
        default="5m",
        help="How long a worker's interpreter may take to end. For workers that use the SDK.",
    ),
    options.option(
        "--hang-grace",
        section="Hangs",
        type=options.DURATION,
        metavar="DURATION",
        default="5s",
        help="Time that a worker which hangs has between SIGTERM and SIGKILL.",
    ),
)


def hang_options(function: F) -> F:
    """Declare all of them."""
    for declare in reversed(_DECLARATIONS):
        function = declare(function)
    return function


def watchdog_of(params: dict[str, Any]) -> WatchdogPolicy:
    """Build the policy from the options, by their names."""

    def limit(name: str) -> float | None:
        return None if params[name] == _OFF else float(params[name])

    progress: Limit = None
    if params["progress_timeout"] != _OFF:
        progress = params["progress_timeout"]
    return WatchdogPolicy(
        startup_timeout_s=limit("startup_timeout"),
        runtime_timeout_s=limit("runtime_timeout"),
        progress_timeout_s=progress,
        exit_timeout_s=limit("exit_timeout"),
        kill_grace_s=params["hang_grace"],
    )
