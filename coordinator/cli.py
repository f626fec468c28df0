"""Shell. The command line of ``coordinator``: options to a checked configuration."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from coordinator.config import PORT_DEFAULT, CoordinatorConfig, ResetLimits, default_state_dir
from coordinator.errors import CallFailed, InvalidConfiguration, StartupError
from drumbeat import options

_DEFAULTS = CoordinatorConfig()
_OPTION_OF_FIELD = {
    "heartbeat_interval_s": "--heartbeat-interval",
    "host": "--host",
    "lease_s": "--lease",
    "log_format": "--log-format",
    "log_level": "--log-level",
    "port": "--port",
    "state_dir": "--state-dir",
}

_EXAMPLES = """\b
Examples:
  coordinator serve
  coordinator serve --host 0.0.0.0 --insecure
  coordinator serve --port 29500 --state-dir /var/lib/drumbeat
"""

_EXIT_CODES = """\b
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


def _state_dir_of(text: str | None, port: int) -> str | None:
    if text is not None:
        return str(Path(text).absolute())
    state_home = os.environ.get("XDG_STATE_HOME", "")
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    return default_state_dir(port, state_home=state_home, home=home)


def config_of(params: dict[str, Any]) -> CoordinatorConfig:
    """Build the configuration from the options, by their names, and check it.

    Raises:
        InvalidConfiguration: Values break rules; each is named as its option is.
    """
    config = CoordinatorConfig(
        host=_without_brackets(params["host"]),
        port=params["port"],
        state_dir=_state_dir_of(params["state_dir"], params["port"]),
        heartbeat_interval_s=params["heartbeat_interval"],
        lease_s=params["lease"],
        **options.log_settings(params),
        is_insecure=params["insecure"],
    )
    violations = tuple(
        dataclasses.replace(found, field=_OPTION_OF_FIELD.get(found.field, found.field))
        for found in config.validate()
    )
    if violations:
        raise InvalidConfiguration(violations)
    return config


def _without_brackets(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


@click.group(no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@options.version_option("coordinator")
def coordinator() -> None:
    """Decide who trains together, with which ranks, and when to restart.

    One coordinator serves many runs. Agents (`agent join`) connect to it.
    """


@coordinator.command(cls=options.SectionedCommand, epilog=f"{_EXAMPLES}\n{_EXIT_CODES}")
@options.option(
    "--host",
    section="Listening",
    default=_DEFAULTS.host,
    help="Address to listen on; 0.0.0.0 and :: stand for all.",
)
@options.option(
    "--port",
    section="Listening",
    type=options.PORT_OR_ZERO,
    metavar="PORT",
    default=PORT_DEFAULT,
    help="Port to listen on; 0 takes a free one.",
)
@options.option(
    "--insecure",
    section="Listening",
    is_flag=True,
    help="Allow an address that other machines reach, although authentication does not exist "
    "yet: everyone who reaches the port can join, read and end every run.",
)
@options.option(
    "--state-dir",
    section="State",
    metavar="DIR",
    show_default="$XDG_STATE_HOME/drumbeat/coordinator-PORT; temporary with --port 0",
    help="Directory of the journal; with it, a restarted coordinator knows every run.",
)
@options.option(
    "--heartbeat-interval",
    section="Liveness",
    type=options.DURATION,
    metavar="DURATION",
    default=f"{_DEFAULTS.heartbeat_interval_s:g}s",
    help="How often an agent beats; up to 0.4 of the lease in runs of thousands.",
)
@options.option(
    "--lease",
    section="Liveness",
    type=options.DURATION,
    metavar="DURATION",
    default=f"{_DEFAULTS.lease_s:g}s",
    help="Silence after which an agent is given up; more than twice the interval.",
)
@options.console_options
def serve(**params: Any) -> CoordinatorConfig:
    """Serve agents until SIGTERM or SIGINT.

    A DURATION is a number of seconds, or has a unit: 500ms, 30s, 1.5m, 2h.
    """
    return config_of(params)


@coordinator.command(cls=options.SectionedCommand, epilog=_RESET_EPILOG)
@options.option("--run-id", required=True, metavar="NAME", help="The run.")
@options.option(
    "--coordinator",
    type=options.HOST_PORT,
    metavar="HOST:PORT",
    default=f"127.0.0.1:{PORT_DEFAULT}",
    help="Where the coordinator listens; port 29400 if none is given.",
)
@options.proxy_option()
def reset_limits(**params: Any) -> ResetLimits:
    """Forget what was learned of how long things take in a run.

    Sections and heartbeats whose timeout is "auto" have no limit from then on,
    until it is learned anew. For a change that makes a run slower.
    """
    return ResetLimits(
        run_id=params["run_id"],
        coordinator=str(params["coordinator"]),
        is_proxied=params["use_proxy"],
    )


def main(
    argv: Sequence[str] | None = None,
    *,
    run: Callable[[CoordinatorConfig], int],
    reset: Callable[[ResetLimits], int],
) -> int:
    """Read the command line, do what it says, and return the exit code.

    Args:
        argv: Arguments after the program's name; None stands for those of this process.
        run: Serves until it is told to end, and returns the exit code.
        reset: Has a coordinator forget limits, and returns how many there were.
    """
    try:
        parsed = options.parse(
            coordinator, None if argv is None else list(argv), program="coordinator"
        )
        if isinstance(parsed, ResetLimits):
            return _reset(parsed, reset)
        if not isinstance(parsed, CoordinatorConfig):
            return int(parsed)
        return _run_logged(parsed, run)
    except StartupError as error:
        options.write_error("coordinator", str(error), _hint_of(error))
        return error.exit_code


def _run_logged(config: CoordinatorConfig, run: Callable[[CoordinatorConfig], int]) -> int:
    # Imported here: it costs more than all of --help, which needs no log.
    from drumbeat import logs  # noqa: PLC0415

    logs.configure_logs(config.log_format, level=config.log_level, program="coordinator")
    try:
        return run(config)
    except StartupError as error:
        # Behind what was logged, and not for ever if the console is stalled.
        logs.write_text(options.error_text("coordinator", str(error), _hint_of(error)))
        return error.exit_code
    finally:
        logs.close_logs()


def _hint_of(error: StartupError) -> str:
    return error.hint or "try 'coordinator serve --help'"


def _reset(asked: ResetLimits, reset: Callable[[ResetLimits], int]) -> int:
    try:
        forgotten = reset(asked)
    except CallFailed as error:
        options.write_error("coordinator", str(error), error.hint)
        return error.exit_code
    limits = "1 limit" if forgotten == 1 else f"{forgotten} limits"
    click.echo(f"coordinator: run {asked.run_id}: {limits} forgotten")
    return 0
