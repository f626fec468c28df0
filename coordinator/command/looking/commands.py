"""Shell. The commands that show something, as they are declared."""

from __future__ import annotations

from typing import Any

import click

from coordinator.command import requests
from coordinator.command.completion import run_ids
from coordinator.command.declaration import RUN, command, made
from coordinator.command.requests import Request


@command(
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
    return made(requests.ShowStatus, ctx, params)


@command(
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
@RUN
@click.pass_context
def events(ctx: click.Context, /, **params: Any) -> Request:
    """Show what was decided on a run, and why.

    The latest run that has this id is shown. With -o json each event is a line.
    """
    return made(requests.ShowEvents, ctx, params)


@command(
    None,
    "why",
    """\b
Examples:
  coordinator why mt5
""",
    requests.ExplainRun,
)
@RUN
@click.pass_context
def why(ctx: click.Context, /, **params: Any) -> Request:
    """Say in sentences why a run is as it is.

    What failed or is waited for, the root cause and what shows it, what was done, what it cost,
    and what to try.
    """
    return made(requests.ExplainRun, ctx, params)


@command(
    None,
    "watch",
    """\b
Examples:
  coordinator watch mt5
  coordinator watch mt5 -o json | jq -r .behind
""",
    requests.WatchRun,
)
@RUN
@click.pass_context
def watch(ctx: click.Context, /, **params: Any) -> Request:
    """Show one run as `status` does, live until it has ended.

    It is shown anew when something is decided, at most once a second, and through a restart of the
    coordinator.
    """
    return made(requests.WatchRun, ctx, params)


@command(
    None,
    "stacks",
    """\b
Examples:
  coordinator stacks mt5
  coordinator stacks mt5 --rank 17
  coordinator stacks mt5 --rank 17 --signal
  coordinator stacks mt5 -o json | jq '.groups[-1].ranks'
""",
    requests.ShowStacks,
)
@RUN
@click.pass_context
def stacks(ctx: click.Context, /, **params: Any) -> Request:
    """Show where the workers of a run are now: their Python stacks, grouped by equal ones.

    Workers do not notice that they are asked, and a stopped one stays stopped. They have stacks to
    show once they have used the SDK, e.g. called worker_sdk.heartbeat; those that can't answer are
    named with the reason.
    """
    return made(requests.ShowStacks, ctx, params)


@command(
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
@RUN
@click.pass_context
def logs(ctx: click.Context, /, **params: Any) -> Request:
    """Show the output of a run's workers, from all hosts, as their agents have it.

    Each line stands behind its rank. A reader that is too slow loses lines and is told how many;
    no worker waits for it. Of ranks that have nothing to show the reason is told.
    """
    return made(requests.ShowLogs, ctx, params)


@command(
    None,
    "goodput",
    """\b
Examples:
  coordinator goodput mt5
  coordinator goodput mt5 -o json | jq .effective_ratio
  coordinator goodput mt5 --segments
""",
    requests.ShowGoodput,
)
@RUN
@click.pass_context
def goodput(ctx: click.Context, /, **params: Any) -> Request:
    """Show what the time of a run went into, over all its rounds.

    How much of it was training, and what the rest was lost to: waiting, starting, steps done once
    more, hangs, stops; by cause, and by the host that was the cause.
    """
    return made(requests.ShowGoodput, ctx, params)


LOOKING = (status, watch, events, why, stacks, logs, goodput)
