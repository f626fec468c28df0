"""Shell. The commands of operators: each asks a coordinator that runs for one thing."""

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

_RUN = click.argument("run_id", metavar="RUN", shell_complete=run_ids)


def add_to(root: options.SectionedGroup) -> None:
    """Give the command ``coordinator`` those of operators."""
    root.add_section("Looking", status, watch, events, why, stacks, logs)
    root.add_section("Steering", stop, restart, drain, undrain, drains, forget, reset_limits)
    root.add_section("Access", token, authority)
    root.add_section("High availability", members, step_down)


def _command(
    group: click.Group | None, name: str, epilog: str, request: type[Request]
) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a command that returns a request."""
    params = options.options_of(requests.settings_of(request))
    make = click.command if group is None else group.command
    return make(name, cls=options.SectionedCommand, epilog=f"{epilog}{EXIT_CODES}", params=params)


def _made(request: type[Request], ctx: click.Context, params: dict[str, Any]) -> Request:
    arguments.settle(ctx, params)
    return request(**params)


@_command(
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
    return _made(requests.ResetLimits, ctx, params)


@_command(
    None,
    "stop",
    """\b
Examples:
  coordinator stop mt5
  coordinator stop mt5 --reason "wrong data set" --grace 30s
""",
    requests.StopRun,
)
@_RUN
@click.pass_context
def stop(ctx: click.Context, /, **params: Any) -> Request:
    """End a run in order.

    Training may save first; then its workers are stopped as at a restart. Its agents end with exit
    code 4, and say who stopped it and why. Harmless if repeated, and for a run that has ended.
    """
    return _made(requests.StopRun, ctx, params)


@_command(
    None,
    "restart",
    """\b
Examples:
  coordinator restart mt5
  coordinator restart mt5 --reason "new driver on gpu3"
""",
    requests.RestartRun,
)
@_RUN
@click.pass_context
def restart(ctx: click.Context, /, **params: Any) -> Request:
    """Begin another round of a run now, with the agents that are there.

    Training may save first. Workers go on from their latest checkpoint. It is not charged to the
    restarts of --max-restarts.
    """
    return _made(requests.RestartRun, ctx, params)


@_command(
    None,
    "forget",
    """\b
Examples:
  coordinator forget mt5
""",
    requests.ForgetRun,
)
@_RUN
@click.pass_context
def forget(ctx: click.Context, /, **params: Any) -> Request:
    """Remove a run that has ended, and those before that had its name.

    Its verdict and its events are gone then. One that lives is refused: stop it first.
    """
    return _made(requests.ForgetRun, ctx, params)


@_command(
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
    return _made(requests.DrainAgent, ctx, params)


@_command(
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
    return _made(requests.UndrainAgent, ctx, params)


@_command(
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
    return _made(requests.ListDrains, ctx, params)


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


@_command(
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
    return _made(requests.CreateToken, ctx, params)


@_command(
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
    return _made(requests.ListTokens, ctx, params)


@_command(
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
    return _made(requests.RevokeToken, ctx, params)


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


@_command(
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
    return _made(requests.ShowAuthority, ctx, params)


@_command(
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
    return _made(requests.RotateAuthority, ctx, params)


@_command(
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
    return _made(requests.RetireAuthority, ctx, params)


@_command(
    None,
    "status",
    """\b
Examples:
  coordinator status
  coordinator status mt5
  coordinator status mt5 -o json | jq '.agents[] | select(.silence_s > 5) | .name'
""",
    requests.ShowStatus,
)
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=run_ids)
@click.pass_context
def status(ctx: click.Context, /, **params: Any) -> Request:
    """Show all runs, or one of them.

    Of one run: what it does and why, its agents and workers, who is behind, and what was last
    decided.
    """
    return _made(requests.ShowStatus, ctx, params)


@_command(
    None,
    "events",
    """\b
Examples:
  coordinator events mt5
  coordinator events mt5 --since 1h
  coordinator events mt5 --follow -o json
""",
    requests.ShowEvents,
)
@_RUN
@click.pass_context
def events(ctx: click.Context, /, **params: Any) -> Request:
    """Show what was decided on a run, and why.

    The latest run that has this id is shown. With -o json each event is a line.
    """
    return _made(requests.ShowEvents, ctx, params)


@_command(
    None,
    "why",
    """\b
Examples:
  coordinator why mt5
""",
    requests.ExplainRun,
)
@_RUN
@click.pass_context
def why(ctx: click.Context, /, **params: Any) -> Request:
    """Say in sentences why a run is as it is.

    What failed or is waited for, the root cause and what shows it, what was done, what it cost,
    and what to try.
    """
    return _made(requests.ExplainRun, ctx, params)


@_command(
    None,
    "watch",
    """\b
Examples:
  coordinator watch mt5
  coordinator watch mt5 -o json | jq -r .behind
""",
    requests.WatchRun,
)
@_RUN
@click.pass_context
def watch(ctx: click.Context, /, **params: Any) -> Request:
    """Show one run as `status` does, live until it has ended.

    It is shown anew when something is decided, at most once a second, and through a restart of the
    coordinator.
    """
    return _made(requests.WatchRun, ctx, params)


@_command(
    None,
    "stacks",
    """\b
Examples:
  coordinator stacks mt5
  coordinator stacks mt5 --rank 17
  coordinator stacks mt5 -o json | jq '.groups[-1].ranks'
""",
    requests.ShowStacks,
)
@_RUN
@click.pass_context
def stacks(ctx: click.Context, /, **params: Any) -> Request:
    """Show where the workers of a run are now: their Python stacks, grouped by equal ones.

    Nothing is stopped. Workers have stacks to show once they have used the SDK, e.g. called
    worker_sdk.heartbeat; those that can't answer are named with the reason.
    """
    return _made(requests.ShowStacks, ctx, params)


@_command(
    None,
    "logs",
    """\b
Examples:
  coordinator logs mt5
  coordinator logs mt5 --rank 17 --tail 200
  coordinator logs mt5 --follow
  coordinator logs mt5 --follow -o json | jq -r 'select(.stream == "stderr") | .line'
""",
    requests.ShowLogs,
)
@_RUN
@click.pass_context
def logs(ctx: click.Context, /, **params: Any) -> Request:
    """Show the output of a run's workers, from all hosts, as their agents have it.

    Each line stands behind its rank. A reader that is too slow loses lines and is told how many;
    no worker waits for it. Of ranks that have nothing to show the reason is told.
    """
    return _made(requests.ShowLogs, ctx, params)


@_command(
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
    return _made(requests.ListMembers, ctx, params)


@_command(
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
    return _made(requests.StepDown, ctx, params)
