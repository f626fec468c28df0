"""Shell. The command line of ``coordinator``: options to a checked configuration."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from coordinator.config import CoordinatorConfig, ResetLimits, default_state_dir
from coordinator.errors import CallFailed, InvalidConfiguration, StartupError
from drumbeat.command import options
from drumbeat.command.settings import QUIET, by_option, settings_of

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
    params["state_dir"] = _state_dir_of(params["state_dir"], params["port"])
    params["log_level"] = options.log_level(params["log_level"], is_quiet=quiet)
    config = CoordinatorConfig(**params)
    if violations := by_option(config.validate(), config):
        raise InvalidConfiguration(violations)
    return config


def _state_dir_of(text: str | None, port: int) -> str | None:
    if text is not None:
        return str(Path(text).absolute())
    state_home = os.environ.get("XDG_STATE_HOME", "")
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    return default_state_dir(port, state_home=state_home, home=home)


@coordinator.command(
    cls=options.SectionedCommand, epilog=_RESET_EPILOG, params=options.options_of(RESET_SETTINGS)
)
def reset_limits(**params: Any) -> ResetLimits:
    """Forget what was learned of how long things take in a run.

    Sections and heartbeats whose timeout is "auto" have no limit from then on,
    until it is learned anew. For a change that makes a run slower.
    """
    return ResetLimits(**params)


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
        parsed = options.parse(coordinator, argv, program="coordinator")
        match parsed:
            case CoordinatorConfig():
                return _run_logged(parsed, run)
            case ResetLimits():
                forgotten = reset(parsed)
                limits = "1 limit" if forgotten == 1 else f"{forgotten} limits"
                click.echo(f"coordinator: run {parsed.run_id}: {limits} forgotten")
                return 0
        return int(parsed)
    except CallFailed as error:
        options.write_error("coordinator", str(error), error.hint)
        return error.exit_code
    except StartupError as error:
        options.write_error("coordinator", str(error), _hint_of(error))
        return error.exit_code


def _run_logged(config: CoordinatorConfig, run: Callable[[CoordinatorConfig], int]) -> int:
    # Imported here: it costs more than all of --help, which needs no log.
    from drumbeat.command import logs  # noqa: PLC0415

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
