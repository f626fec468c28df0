"""Shell. The command line of ``coordinator``, and what it asks of one that runs."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from coordinator.config import CoordinatorConfig, ResetLimits, default_state_dir
from coordinator.errors import CallFailed, CommandFailed, InvalidConfiguration
from drumbeat.command import options
from drumbeat.command.console import open_missing
from drumbeat.command.settings import QUIET, by_option, settings_of
from drumbeat.format import count

# A coordinator answers within milliseconds; one that restarts is back within seconds.
CALL_TIMEOUT_S = 10.0
SETTINGS = settings_of(CoordinatorConfig)
RESET_SETTINGS = settings_of(ResetLimits)

_SERVE_EPILOG = """\b
Examples:
  coordinator serve
  coordinator serve --host 0.0.0.0 --insecure
  coordinator serve --port 29500 --state-dir /var/lib/drumbeat

\b
Exit codes:
  0  ended in order, e.g. by SIGTERM
  1  failed while it ran
  2  could not start: usage, port or state directory
"""

_RESET_EPILOG = """\b
Examples:
  coordinator reset-limits --run-id mt5
  coordinator reset-limits --run-id mt5 --coordinator head:29400

\b
Exit codes:
  0  they are forgotten, or there were none
  1  the coordinator failed at it
  2  usage, or there is no such run
  3  the coordinator could not be reached
"""


@click.group(no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@options.version_option("coordinator")
def coordinator() -> None:
    """Decide who trains together, with which ranks, and when to restart.

    One coordinator serves many runs. Agents (`agent join`) connect to it.
    """


@coordinator.command(
    cls=options.SectionedCommand,
    epilog=_SERVE_EPILOG,
    params=options.options_of(SETTINGS, {"quiet": QUIET}),
)
def serve(*, quiet: bool, **params: Any) -> CoordinatorConfig:
    """Serve agents until SIGTERM or SIGINT.

    A DURATION is a number of seconds, or has a unit: 500ms, 30s, 1.5m, 2h.
    """
    if params["host"].startswith("[") and params["host"].endswith("]"):
        params["host"] = params["host"][1:-1]
    if params["state_dir"] is not None:
        params["state_dir"] = str(Path(params["state_dir"]).absolute())
    else:
        params["state_dir"] = default_state_dir(
            params["port"],
            state_home=os.environ.get("XDG_STATE_HOME", ""),
            home=os.path.expanduser("~"),  # noqa: PTH111 - Path.home() raises where there is none
        )
    params["log_level"] = options.log_level(params["log_level"], is_quiet=quiet)
    config = CoordinatorConfig(**params)
    if violations := by_option(config.validate(), config):
        raise InvalidConfiguration(*violations)
    return config


@coordinator.command(
    "reset-limits",
    cls=options.SectionedCommand,
    epilog=_RESET_EPILOG,
    params=options.options_of(RESET_SETTINGS),
)
def reset(**params: Any) -> ResetLimits:
    """Forget what was learned of how long things take in a run.

    Sections and heartbeats whose timeout is "auto" have no limit from then on,
    until it is learned anew. For a change that makes a run slower.
    """
    return ResetLimits(**params)


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line, do what it says, and return the exit code."""
    open_missing()
    return options.run(coordinator, argv, _do, program="coordinator", errors=CommandFailed)


def reset_limits(asked: ResetLimits, *, timeout_s: float = CALL_TIMEOUT_S) -> int:
    """Have the learned limits of a run forgotten; return how many. Raises ``CallFailed``."""
    # Imported late, here and below: neither --help nor a wrong command line needs grpc or a log.
    import grpc  # noqa: PLC0415

    from drumbeat.v1 import control_pb2, control_pb2_grpc  # noqa: PLC0415

    options = [("grpc.enable_http_proxy", int(asked.use_proxy))]
    with grpc.insecure_channel(asked.coordinator, options) as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        request = control_pb2.ResetLimitsRequest(run_id=asked.run_id)
        try:
            return stub.ResetLimits(request, timeout=timeout_s).forgotten
        except grpc.RpcError as error:
            at, details = f"the coordinator at {asked.coordinator}", str(error.details() or "")
            match error.code():
                case grpc.StatusCode.NOT_FOUND | grpc.StatusCode.INVALID_ARGUMENT:
                    failed = CallFailed(details, 2, "--run-id names the run")
                case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
                    hint = "--coordinator HOST:PORT says where it listens"
                    failed = CallFailed(f"{at} cannot be reached: {details}", 3, hint)
                case status:
                    failed = CallFailed(f"{at} failed: {status.name}: {details}", 1)
            raise failed from error


def _do(asked: CoordinatorConfig | ResetLimits) -> int:
    from drumbeat.command.logs import configure_logs, load_grpc_quietly  # noqa: PLC0415

    load_grpc_quietly()
    if isinstance(asked, ResetLimits):
        forgotten = count(reset_limits(asked), "limit")
        click.echo(f"coordinator: run {asked.run_id}: {forgotten} forgotten")
        return 0
    from coordinator.shell.server import run  # noqa: PLC0415

    configure_logs(asked.log_format, level=asked.log_level, program="coordinator")
    return run(asked)
