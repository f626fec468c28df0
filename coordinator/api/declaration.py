"""Shell. How commands of operators are declared: options, help, the request that each makes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from drumbeat.access import arguments
from drumbeat.command import options
from drumbeat.coordinator.api import requests
from drumbeat.coordinator.api.requests import Request
from drumbeat.coordinator.command.completion import run_ids

EXIT_CODES = """
\b
Exit codes:
  0  done
  1  the coordinator failed at it
  2  usage, or the coordinator refused
  3  the coordinator could not be reached
"""

_NAMES = {request: name.rpartition(" ")[2] for name, request in requests.COMMANDS.items()}
_METAVARS = {"run_id": "RUN", "name": "NAME", "token_id": "ID"}


def command(request: type[Request], *examples: str) -> click.Command:
    """Declare the command of a request. Fields that are no settings are its arguments."""

    def made(**params: Any) -> Request:
        arguments.settle(click.get_current_context(), params)
        return request(**params)

    params = options.options_of(requests.settings_of(request))
    for each in fields(request):
        if "setting" not in each.metadata:
            params.append(_argument(each.name, is_required=each.default is not None))
    return options.SectionedCommand(
        _NAMES[request],
        callback=made,
        help=request.__doc__,
        epilog=epilog(*examples),
        params=params,
    )


def epilog(*examples: str) -> str:
    """Return what stands below the help of a command."""
    return "\n  ".join(("\b\nExamples:", *examples)) + f"\n{EXIT_CODES}"


def _argument(name: str, *, is_required: bool) -> click.Argument:
    metavar = _METAVARS[name] if is_required else f"[{_METAVARS[name]}]"
    completed = run_ids if name == "run_id" else None
    return click.Argument([name], metavar=metavar, required=is_required, shell_complete=completed)
