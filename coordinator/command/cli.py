"""Shell. The command line of ``coordinator``: the server, and how a line becomes an exit code."""

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from drumbeat.command import options
from drumbeat.command.console import open_missing
from drumbeat.command.settings import QUIET, by_option, settings_of
from drumbeat.coordinator.command import operators
from drumbeat.coordinator.command.archiving.commands import journal
from drumbeat.coordinator.command.archiving.requests import JournalRequest
from drumbeat.coordinator.command.operators import EXIT_CODES
from drumbeat.coordinator.command.request import Request
from drumbeat.coordinator.config import CoordinatorConfig, default_state_dir
from drumbeat.coordinator.errors import CallFailed, CommandFailed, InvalidConfiguration

SETTINGS = settings_of(CoordinatorConfig)

_SERVE_EPILOG = """\b
Examples:
  coordinator serve
  coordinator serve --host 0.0.0.0
  coordinator serve --port 29500 --state-dir /var/lib/drumbeat

\b
Exit codes:
  0  ended in order, e.g. by SIGTERM
  1  failed while it ran
  2  could not start: usage, port or state directory
"""


_EPILOG = f"""\b
Examples:
  coordinator serve --host 0.0.0.0
  coordinator status mt5 --coordinator head:29400 --token-file operator.token
  coordinator COMMAND --help

All but serve and evidence take -o json.
{EXIT_CODES}
{options.DOCUMENTATION}"""


@click.group(
    cls=options.SectionedGroup,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)
@options.version_option("coordinator")
def coordinator() -> None:
    """Decide who trains together, with which ranks, and when to restart.

    One coordinator serves many runs. Agents (`agent join`) connect to it.
    """


@click.command(
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
    elif not params["once"]:
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


coordinator.add_section("Serving", serve)
operators.add_to(coordinator)
coordinator.add_section("Journal", journal)


def main(argv: Sequence[str] | None = None, *, path: str = "coordinator") -> int:
    """Read the command line, do what it says, and return the exit code."""
    open_missing()
    return options.run(
        coordinator, argv, _execute, program="coordinator", path=path, errors=CommandFailed
    )


def _execute(asked: CoordinatorConfig | Request | JournalRequest) -> int:
    # Imported late: neither --help nor a wrong command line needs grpc or a log.
    from drumbeat.command import loading  # noqa: PLC0415

    loading.load_grpc_quietly()
    if isinstance(asked, JournalRequest | Request):
        return _ask(asked)
    loading.load_structlog_alone()
    from drumbeat.command.logs import configure_logs  # noqa: PLC0415
    from drumbeat.coordinator.serving.run import run  # noqa: PLC0415

    gc.freeze()  # what is loaded stays to the end: no collection looks at it again
    configure_logs(asked.log_format, level=asked.log_level, program="coordinator")
    return run(asked)


def _ask(asked: Request | JournalRequest) -> int:
    """Ask a coordinator that runs, or look at a journal; print what comes of it."""
    try:
        with options.writing_output(lambda problem: CallFailed(problem, 1)):
            if isinstance(asked, JournalRequest):
                from drumbeat.coordinator.command.archiving import verbs  # noqa: PLC0415

                verbs.perform(asked, click.echo)
            elif asked.is_looking:
                from drumbeat.coordinator.command.looking.verbs import show  # noqa: PLC0415

                show(asked)
            else:
                from drumbeat.coordinator.command.answers import perform  # noqa: PLC0415

                click.echo(perform(asked))
    except KeyboardInterrupt:  # how one ends what follows
        return options.EXIT_INTERRUPTED
    return 0
