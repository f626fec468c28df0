"""Shell. The commands of operators: each asks a coordinator that runs for one thing."""

from __future__ import annotations

import click

from drumbeat.command import options
from drumbeat.coordinator.api import requests
from drumbeat.coordinator.api.declaration import command, epilog


def add_to(root: options.SectionedGroup) -> None:
    """Give the command ``coordinator`` those of operators."""
    root.add_section("Looking", *LOOKING)
    root.add_section("Steering", *STEERING)
    root.add_section("Access", token, authority)
    root.add_section("High availability", *HIGH_AVAILABILITY)


LOOKING = (
    command(
        requests.ShowStatus,
        "coordinator status",
        "coordinator status mt5",
        "coordinator status mt5 -o json | jq '.agents[] | select(.silence_s > 5) | .name'",
    ),
    command(
        requests.WatchRun,
        "coordinator watch mt5",
        "coordinator watch mt5 -o json | jq -r .behind",
    ),
    command(
        requests.ShowEvents,
        "coordinator events mt5",
        "coordinator events mt5 --since 1h",
        "coordinator events mt5 --follow -o json",
    ),
    command(requests.ExplainRun, "coordinator why mt5"),
    command(
        requests.ShowStacks,
        "coordinator stacks mt5",
        "coordinator stacks mt5 --rank 17",
        "coordinator stacks mt5 --rank 17 --signal",
        "coordinator stacks mt5 -o json | jq '.groups[-1].ranks'",
    ),
    command(
        requests.ShowLogs,
        "coordinator logs mt5",
        "coordinator logs mt5 --rank 17 --tail 200",
        "coordinator logs mt5 --follow",
        "coordinator logs mt5 --follow -o json | jq -r 'select(.stream == \"stderr\") | .line'",
    ),
    command(
        requests.ShowGoodput,
        "coordinator goodput mt5",
        "coordinator goodput mt5 -o json | jq .effective_ratio",
        "coordinator goodput mt5 --segments",
    ),
    command(requests.LinkPage, "coordinator page", "coordinator page mt5 --role view"),
)

STEERING = (
    command(
        requests.StopRun,
        "coordinator stop mt5",
        'coordinator stop mt5 --reason "wrong data set" --grace 30s',
    ),
    command(
        requests.RestartRun,
        "coordinator restart mt5",
        'coordinator restart mt5 --reason "new driver on gpu3"',
    ),
    command(
        requests.CheckpointRun,
        'coordinator checkpoint mt5 --reason "before the network is changed"',
    ),
    command(
        requests.DrainAgent,
        'coordinator drain gpu7 --reason "memory errors"',
        "coordinator drain gpu7 --run-id mt5 --grace 2m",
    ),
    command(requests.UndrainAgent, "coordinator undrain gpu7"),
    command(requests.ListDrains, "coordinator drains"),
    command(requests.ForgetRun, "coordinator forget mt5"),
    command(
        requests.ResetLimits,
        "coordinator reset-limits --run-id mt5",
        "coordinator reset-limits --run-id mt5 --coordinator head:29400 --token-file "
        "operator.token",
    ),
)

HIGH_AVAILABILITY = (
    command(requests.ListMembers, "coordinator members --coordinator head1,head2,head3"),
    command(requests.StepDown, 'coordinator step-down --reason "new kernel on head1"'),
)


@click.group(
    no_args_is_help=False,
    epilog=epilog(
        "coordinator token create --role join --run-id exp1 --ttl 12h",
        "coordinator token list",
        "coordinator token revoke k3v9qr2m",
    ),
)
def token() -> None:
    """Make, list and revoke tokens.

    A token is one string that lets its bearer in: it says what it allows, and which coordinator
    to trust.
    """


token.add_command(
    command(
        requests.CreateToken,
        "coordinator token create --role join --run-id exp1 --ttl 12h",
        "coordinator token create --role view > viewer.token",
        "ssh head coordinator token create --role join | ssh gpu7 'umask 077; cat > join.token'",
    )
)
token.add_command(
    command(
        requests.ListTokens,
        "coordinator token list --coordinator head:29400 --token-file operator.token",
    )
)
token.add_command(command(requests.RevokeToken, "coordinator token revoke k3v9qr2m"))


@click.group(
    no_args_is_help=False,
    epilog=epilog("coordinator authority show", "coordinator authority rotate"),
)
def authority() -> None:
    """Show or replace the certificate authority.

    Each token pins the authority of its time. To replace it: `rotate`, then give all who have
    a token a new one, then `retire`.
    """


authority.add_command(command(requests.ShowAuthority, "coordinator authority show"))
authority.add_command(command(requests.RotateAuthority, "coordinator authority rotate"))
authority.add_command(command(requests.RetireAuthority, "coordinator authority retire"))
