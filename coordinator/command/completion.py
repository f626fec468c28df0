"""Shell. What a shell completes beside commands and options: the ids of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drumbeat.access import arguments
from drumbeat.coordinator.api import requests

if TYPE_CHECKING:
    import click

# A user who presses a key waits for it; without an answer nothing is completed.
TIMEOUT_S = 1.0


def run_ids(ctx: click.Context, _argument: click.Parameter, begun: str) -> list[str]:
    """Return the ids that begin so, of the coordinator that the line or environment names."""
    from drumbeat.command.loading import load_grpc_quietly  # noqa: PLC0415

    load_grpc_quietly()
    import grpc  # noqa: PLC0415

    from drumbeat.coordinator.command.looking.reading import Reader, calls_of  # noqa: PLC0415
    from drumbeat.coordinator.errors import CallFailed  # noqa: PLC0415

    params = {name: ctx.params[name] for name in requests.settings_of(requests.Request)}
    arguments.settle(ctx, params)
    try:
        calls = calls_of(requests.Request(**params))
        found = calls.ask(
            lambda *opened: Reader(*opened, timeout_s=TIMEOUT_S).runs(), is_patient=False
        )
    except (grpc.RpcError, CallFailed):
        return []
    return [
        run_id for run_id in dict.fromkeys(run.run_id for run in found) if run_id.startswith(begun)
    ]
