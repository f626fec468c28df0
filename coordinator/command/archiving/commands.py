"""Shell. The commands ``coordinator journal …``: each is about a journal that lies still."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from drumbeat.command import options
from drumbeat.command.options import Source
from drumbeat.command.settings import by_option, settings_of
from drumbeat.coordinator.command.archiving import requests
from drumbeat.coordinator.command.archiving.requests import JournalRequest
from drumbeat.coordinator.errors import InvalidConfiguration

EXIT_CODES = """
\b
Exit codes:
  0  done; of check: all of it can be read
  1  the journal or the file could not be read or written
  2  usage, or refused: a coordinator is using it, there is something already
  3  etcd could not be reached
"""

_FILE = click.argument("file", metavar="FILE", type=click.Path())


@click.group(
    no_args_is_help=False,
    epilog=f"""\b
Examples:
  coordinator journal check --state-dir /var/lib/drumbeat
  coordinator journal export runs.jsonl --state-dir /var/lib/drumbeat
  coordinator journal import runs.jsonl --journal etcd://10.0.0.1,10.0.0.2,10.0.0.3/prod
{EXIT_CODES}""",
)
def journal() -> None:
    """Move or check what coordinators keep.

    Runs, tokens, drains and the certificate authority, between a state directory and etcd, while
    no coordinator uses either.
    """


def _command(
    name: str, example: str, request: type[JournalRequest]
) -> Callable[[Callable[..., Any]], click.Command]:
    return journal.command(
        name,
        cls=options.SectionedCommand,
        epilog=f"\b\nExamples:\n  {example}\n{EXIT_CODES}",
        params=options.options_of(settings_of(request)),
    )


def _made(request: type[JournalRequest], params: dict[str, Any]) -> JournalRequest:
    if params["state_dir"] is not None:
        params["state_dir"] = str(Path(params["state_dir"]).absolute())
        if options.source_of(click.get_current_context(), "journal") is Source.VARIABLE:
            params["journal"] = None  # what is said of all commands, but not of this one
    asked = request(**params)
    if violations := by_option(asked.validate(), asked):
        raise InvalidConfiguration(*violations)
    return asked


@_command(
    "export",
    "coordinator journal export runs.jsonl --state-dir /var/lib/drumbeat",
    requests.ExportJournal,
)
@_FILE
def export(**params: Any) -> JournalRequest:
    """Write a journal to a file, as lines of JSON.

    The file is for you alone: it has the key of the certificate authority.
    """
    return _made(requests.ExportJournal, params)


@_command(
    "import",
    "coordinator journal import runs.jsonl --journal etcd://10.0.0.1,10.0.0.2,10.0.0.3/prod",
    requests.ImportJournal,
)
@_FILE
def import_(**params: Any) -> JournalRequest:
    """Read a journal from a file into a place that has none.

    Coordinators go on with the runs, and agents and tokens find the same certificate authority.
    """
    return _made(requests.ImportJournal, params)


@_command(
    "check",
    "coordinator journal check --journal etcd://10.0.0.1,10.0.0.2,10.0.0.3/prod",
    requests.CheckJournal,
)
def check(**params: Any) -> JournalRequest:
    """Say what is in a journal, and name all that cannot be read.

    On etcd also while a coordinator leads.
    """
    return _made(requests.CheckJournal, params)
