"""Shell. How commands of operators are declared: options, help, the request that each makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from coordinator.command import requests
from coordinator.command.completion import run_ids
from coordinator.command.requests import Request
from drumbeat.access import arguments
from drumbeat.command import options

EXIT_CODES = """
\b
Exit codes:
  0  done
  1  the coordinator failed at it
  2  usage, or the coordinator refused
  3  the coordinator could not be reached
"""

RUN = click.argument("run_id", metavar="RUN", shell_complete=run_ids)


def command(
    group: click.Group | None, name: str, epilog: str, request: type[Request]
) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a command that returns a request."""
    params = options.options_of(requests.settings_of(request))
    make = click.command if group is None else group.command
    return make(name, cls=options.SectionedCommand, epilog=f"{epilog}{EXIT_CODES}", params=params)


def made(request: type[Request], ctx: click.Context, params: dict[str, Any]) -> Request:
    """Return what a command was asked, with what it is told of access from elsewhere."""
    arguments.settle(ctx, params)
    return request(**params)
