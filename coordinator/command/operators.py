"""Shell. The commands of operators: each asks a coordinator that runs for one thing."""

from __future__ import annotations

from typing import Any

import click

from coordinator.command import requests
from coordinator.command.completion import run_ids
from coordinator.command.declaration import EXIT_CODES, RUN, command, made
from coordinator.command.looking.commands import LOOKING
from coordinator.command.requests import Request
from drumbeat.command import options


def add_to(root: options.SectionedGroup) -> None:
    """Give the command ``coordinator`` those of operators."""
    root.add_section("Looking", *LOOKING, page)
    root.add_section(
        "Steering", stop, restart, checkpoint, drain, undrain, drains, forget, reset_limits
    )
    root.add_section("Access", token, authority)
    root.add_section("High availability", members, step_down)


@command(
    None,
    "reset-limits",
    """\b
Examples:
  coordinator reset-limits --run-id mt5
  coordinator reset-limits --run-id mt5 --coordinator head:29400 --token-file operator.token
""",
    requests.ResetLimits,
)
@click.pass_context
def reset_limits(ctx: click.Context, /, **params: Any) -> Request:
    """Forget what was learned of how long things take in a run.

    Sections and heartbeats whose timeout is "auto" have no limit from then on,
    until it is learned anew. For a change that makes a run slower.
    """
    return made(requests.ResetLimits, ctx, params)


@command(
    None,
    "stop",
    """\b
Examples:
  coordinator stop mt5
  coordinator stop mt5 --reason "wrong data set" --grace 30s
""",
    requests.StopRun,
)
@RUN
@click.pass_context
def stop(ctx: click.Context, /, **params: Any) -> Request:
    """End a run in order.

    Training may save first; then its workers are stopped as at a restart. Its agents end with exit
    code 4, and say who stopped it and why. Harmless if repeated, and for a run that has ended.
    """
    return made(requests.StopRun, ctx, params)


@command(
    None,
    "restart",
    """\b
Examples:
  coordinator restart mt5
  coordinator restart mt5 --reason "new driver on gpu3"
""",
    requests.RestartRun,
)
@RUN
@click.pass_context
def restart(ctx: click.Context, /, **params: Any) -> Request:
    """Begin another round of a run now, with the agents that are there.

    Training may save first. Workers go on from their latest checkpoint. It is not charged to the
    restarts of --max-restarts.
    """
    return made(requests.RestartRun, ctx, params)


@command(
    None,
    "forget",
    """\b
Examples:
  coordinator forget mt5
""",
    requests.ForgetRun,
)
@RUN
@click.pass_context
def forget(ctx: click.Context, /, **params: Any) -> Request:
    """Remove a run that has ended, and those before that had its name.

    Its verdict and its events are gone then. One that lives is refused: stop it first.
    """
    return made(requests.ForgetRun, ctx, params)


@command(
    None,
    "drain",
    """\b
Examples:
  coordinator drain gpu7 --reason "memory errors"
  coordinator drain gpu7 --run-id mt5 --grace 2m
""",
    requests.DrainAgent,
)
@click.argument("name", metavar="NAME")
@click.pass_context
def drain(ctx: click.Context, /, **params: Any) -> Request:
    """Make agents leave their runs, and keep them out of rounds.

    NAME is an agent's or a host's. Training may save first; then its workers are stopped, a standby
    or a smaller round goes on, and no restart is charged; a run that has too few agents left waits
    for others. The agents end with exit code 0. Those of that name or host that are started later
    stand by until `undrain`.
    """
    return made(requests.DrainAgent, ctx, params)


@command(
    None,
    "undrain",
    """\b
Examples:
  coordinator undrain gpu7
""",
    requests.UndrainAgent,
)
@click.argument("name", metavar="NAME")
@click.pass_context
def undrain(ctx: click.Context, /, **params: Any) -> Request:
    """Let agents take part in rounds again.

    NAME and --run-id are those of the drain. Who stands by for it joins its run at once.
    """
    return made(requests.UndrainAgent, ctx, params)


@command(
    None,
    "drains",
    """\b
Examples:
  coordinator drains
""",
    requests.ListDrains,
)
@click.pass_context
def drains(ctx: click.Context, /, **params: Any) -> Request:
    """List who is kept out of rounds, since when, by whom and why."""
    return made(requests.ListDrains, ctx, params)


@click.group(
    no_args_is_help=False,
    epilog=f"""\b
Examples:
  coordinator token create --role join --run-id exp1 --ttl 12h
  coordinator token list
  coordinator token revoke k3v9qr2m
{EXIT_CODES}""",
)
def token() -> None:
    """Make, list and revoke tokens.

    A token is one string that lets its bearer in: it says what it allows, and which coordinator
    to trust.
    """


@command(
    token,
    "create",
    """\b
Examples:
  coordinator token create --role join --run-id exp1 --ttl 12h
  coordinator token create --role view > viewer.token
  ssh head coordinator token create --role join | ssh gpu7 'umask 077; cat > join.token'
""",
    requests.CreateToken,
)
@click.pass_context
def create(ctx: click.Context, /, **params: Any) -> Request:
    """Make a token and print it, alone on standard output.

    It is shown this once: the coordinator keeps a hash of it. Who has it has its role, so keep
    it in a file for its owner alone, and give that with --token-file, or as DRUMBEAT_TOKEN. Its id,
    which `token list` shows, is no secret. An agent that is training with a token that expires
    goes on, and may come back; one whose token is revoked ends.
    """
    return made(requests.CreateToken, ctx, params)


@command(
    token,
    "list",
    """\b
Examples:
  coordinator token list --coordinator head:29400 --token-file operator.token
""",
    requests.ListTokens,
)
@click.pass_context
def list_tokens(ctx: click.Context, /, **params: Any) -> Request:
    """List all tokens, the oldest first.

    Those that have lately expired or were revoked are among them. Secrets are not shown.
    """
    return made(requests.ListTokens, ctx, params)


@command(
    token,
    "revoke",
    """\b
Examples:
  coordinator token revoke k3v9qr2m
""",
    requests.RevokeToken,
)
@click.argument("token_id", metavar="ID")
@click.pass_context
def revoke(ctx: click.Context, /, **params: Any) -> Request:
    """Revoke a token, and end what it opened.

    Agents that joined with it end, and so do their workers, unless their --token-file has another
    one by now. Harmless if repeated.
    """
    return made(requests.RevokeToken, ctx, params)


@click.group(
    no_args_is_help=False,
    epilog=f"""\b
Examples:
  coordinator authority show
  coordinator authority rotate
{EXIT_CODES}""",
)
def authority() -> None:
    """Show or replace the certificate authority.

    Each token pins the authority of its time. To replace it: `rotate`, then give all who have
    a token a new one, then `retire`.
    """


@command(
    authority,
    "show",
    """\b
Examples:
  coordinator authority show
""",
    requests.ShowAuthority,
)
@click.pass_context
def show(ctx: click.Context, /, **params: Any) -> Request:
    """List the authorities that are served.

    The newest comes first: new tokens pin it.
    """
    return made(requests.ShowAuthority, ctx, params)


@command(
    authority,
    "rotate",
    """\b
Examples:
  coordinator authority rotate
""",
    requests.RotateAuthority,
)
@click.pass_context
def rotate(ctx: click.Context, /, **params: Any) -> Request:
    """Replace it; those before are served, too.

    No agent leaves its round: those that are connected are told of the new authority. Tokens that
    are made from now on pin it.
    """
    return made(requests.RotateAuthority, ctx, params)


@command(
    authority,
    "retire",
    """\b
Examples:
  coordinator authority retire
""",
    requests.RetireAuthority,
)
@click.pass_context
def retire(ctx: click.Context, /, **params: Any) -> Request:
    """Serve the newest authority alone.

    Tokens of before it open nothing new then. What is connected stays connected, and agents that
    were connected since the authority was replaced may come back.
    """
    return made(requests.RetireAuthority, ctx, params)


@command(
    None,
    "members",
    """\b
Examples:
  coordinator members --coordinator head1,head2,head3
""",
    requests.ListMembers,
)
@click.pass_context
def members(ctx: click.Context, /, **params: Any) -> Request:
    """List the coordinators of a cluster, and say which of them leads.

    The first that answers is asked, whether it leads or not.
    """
    return made(requests.ListMembers, ctx, params)


@command(
    None,
    "step-down",
    """\b
Examples:
  coordinator step-down --reason "new kernel on head1"
""",
    requests.StepDown,
)
@click.pass_context
def step_down(ctx: click.Context, /, **params: Any) -> Request:
    """Have another coordinator of the cluster lead instead of the one that does.

    Workers go on, and agents follow at once. It is refused if there is no other one.
    """
    return made(requests.StepDown, ctx, params)


@command(
    None,
    "page",
    """\b
Examples:
  coordinator page
  coordinator page mt5 --role view
""",
    requests.LinkPage,
)
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=run_ids)
@click.pass_context
def page(ctx: click.Context, /, **params: Any) -> Request:
    """Print a link to the page, of all runs or of one.

    A browser that opens it within five minutes is let in, once, and stays in for half a day. Who
    has the link has what it allows: it is as secret as a token. The coordinator has to serve the
    page, with --http-port.
    """
    return made(requests.LinkPage, ctx, params)


@command(
    None,
    "checkpoint",
    """\b
Examples:
  coordinator checkpoint mt5 --reason "before the network is changed"
""",
    requests.CheckpointRun,
)
@RUN
@click.pass_context
def checkpoint(ctx: click.Context, /, **params: Any) -> Request:
    """Have training save now, at one step on all ranks, and go on.

    It has to ask when to save, with worker_sdk.should_checkpoint; if it does not, nothing happens.
    The events of the run say when all have saved.
    """
    return made(requests.CheckpointRun, ctx, params)
