"""Shell. The commands ``coordinator journal …``: each is about a journal that lies still."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from drumbeat.command import options
from drumbeat.command.options import Source
from drumbeat.command.settings import by_option, settings_of
from drumbeat.coordinator.command.archiving.requests import JOURNAL_VERBS, JournalRequest
from drumbeat.coordinator.errors import InvalidConfiguration

EXIT_CODES = """
\b
Exit codes:
  0  done; of check: all of it can be read
  1  the journal or the file could not be read or written
  2  usage, or refused: a coordinator is using it, there is something already
  3  etcd could not be reached
"""


def _epilog(*examples: str) -> str:
    return "\n  ".join(("\b\nExamples:", *examples)) + f"\n{EXIT_CODES}"


@click.group(
    no_args_is_help=False,
    epilog=_epilog(*(verb.example for verb in JOURNAL_VERBS.values())),
)
def journal() -> None:
    """Move or check what coordinators keep.

    Runs, tokens, drains and the certificate authority, between a state directory and etcd, while
    no coordinator uses either.
    """


def _made(name: str, /, **params: Any) -> JournalRequest:
    if params["state_dir"] is not None:
        params["state_dir"] = str(Path(params["state_dir"]).absolute())
        if options.source_of(click.get_current_context(), "journal") is Source.VARIABLE:
            params["journal"] = None  # what is said of all commands, but not of this one
    asked = JournalRequest(verb=name, **params)
    if violations := by_option(asked.validate(), asked):
        raise InvalidConfiguration(*violations)
    return asked


for _name, _verb in JOURNAL_VERBS.items():
    _file = [click.Argument(["file"], metavar="FILE", type=click.Path())] if _verb.has_file else []
    journal.add_command(
        options.SectionedCommand(
            _name,
            callback=partial(_made, _name),
            help=_verb.help,
            epilog=_epilog(_verb.example),
            params=[*options.options_of(settings_of(JournalRequest)), *_file],
        )
    )
