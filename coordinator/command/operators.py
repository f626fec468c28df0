"""Shell. The commands of operators, made of the verbs in the table of operations."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import click

from drumbeat.access import arguments
from drumbeat.command import options
from drumbeat.coordinator.api.operations import VERBS, Verb
from drumbeat.coordinator.command.request import Request, common_settings, request

EXIT_CODES = """
\b
Exit codes:
  0  done
  1  the coordinator failed at it
  2  usage, or the coordinator refused
  3  the coordinator could not be reached
"""

# A user who presses a key waits for the answer; without one nothing is completed.
COMPLETION_TIMEOUT_S = 1.0
_METAVARS = {"run_id": "RUN", "name": "NAME", "token_id": "ID", "text": "TEXT"}
_GROUPS = {
    "token": """Make, list and revoke tokens.

    A token is a string that lets its bearer in: it says what it allows, and which coordinator to
    trust.
    """,
    "authority": """Show or replace the certificate authority.

    Each token pins the authority of its time. To replace it: `rotate`, then give all who have a
    token a new one, then `retire`.
    """,
}


def add_to(root: options.SectionedGroup) -> None:
    """Give the command ``coordinator`` the verbs of operators, in the order of the table."""
    owners: dict[str, click.Group] = {}
    for _, verb in VERBS.values():
        owner, _, name = verb.name.rpartition(" ")
        command = _command(verb, name)
        if not owner:
            root.add_section(verb.section, command)
            continue
        if owner not in owners:
            owners[owner] = _group(owner)
            root.add_section(verb.section, owners[owner])
        owners[owner].add_command(command)


def _command(verb: Verb, name: str) -> click.Command:
    own = {flag for option in verb.settings.values() for flag in option.flags}
    common = {
        name: setting
        for name, setting in common_settings().items()
        if own.isdisjoint(setting.flags)
    }
    params = options.options_of(verb.settings, common)
    return options.SectionedCommand(
        name,
        callback=partial(_asked, verb),
        help=verb.help,
        epilog=_epilog(verb.examples),
        params=[*params, *(_argument(verb, field) for field in verb.arguments)],
    )


def _group(name: str) -> click.Group:
    examples = [verb.examples[0] for _, verb in VERBS.values() if verb.name.startswith(f"{name} ")]
    return click.Group(name, no_args_is_help=False, help=_GROUPS[name], epilog=_epilog(examples))


def _asked(verb: Verb, /, **given: Any) -> Request:
    arguments.settle(click.get_current_context(), given)
    return request(verb.name, **given)


def _argument(verb: Verb, field: str) -> click.Argument:
    metavar = f"[{_METAVARS[field]}]" if verb.is_optional else _METAVARS[field]
    return click.Argument(
        [field],
        metavar=metavar,
        required=not verb.is_optional,
        shell_complete=_run_ids if field == "run_id" else None,
    )


def _epilog(examples: Iterable[str]) -> str:
    return "\n  ".join(("\b\nExamples:", *examples)) + f"\n{EXIT_CODES}"


def _run_ids(ctx: click.Context, _argument: click.Parameter, begun: str) -> list[str]:
    """Return the ids that begin so, of the coordinator that the line or environment names."""
    from drumbeat.command.loading import load_grpc_quietly  # noqa: PLC0415

    load_grpc_quietly()
    import grpc  # noqa: PLC0415

    from drumbeat.coordinator.command.client import ask, calls_of  # noqa: PLC0415
    from drumbeat.coordinator.errors import CallFailed  # noqa: PLC0415

    given = {name: ctx.params[name] for name in common_settings() if name in ctx.params}
    arguments.settle(ctx, given)
    try:
        runs = ask(
            calls_of(request("status", **given)),
            lambda client: client.runs(timeout_s=COMPLETION_TIMEOUT_S),
            is_patient=False,
        )
    except (grpc.RpcError, CallFailed):
        return []
    ids = dict.fromkeys(run.run_id for run in runs)
    return [run_id for run_id in ids if run_id.startswith(begun)]
