"""Shell. Of what command line and environment say of access, what counts."""

from __future__ import annotations

from typing import Any

import click

from drumbeat.access.settings import ACCESS_NAMES
from drumbeat.command.options import Source, source_of

_RIVALS = (*(("insecure", name) for name in ACCESS_NAMES[:-1]), ("token", "token_file"))


def settle(ctx: click.Context, params: dict[str, Any], *, is_needed: bool = True) -> None:
    """Drop what a variable says against an argument, or for a command that needs no access.

    Variables are set for all commands of a user or host; arguments are meant for this one.
    """
    source = {name: source_of(ctx, name) for name in ACCESS_NAMES}
    if not is_needed:
        for name in ACCESS_NAMES:
            if source[name] is not Source.ARGUMENT:
                _drop(params, name)
    for rivals in _RIVALS:
        weaker, stronger = sorted(rivals, key=source.__getitem__)
        if params[stronger] and source[weaker] < source[stronger]:
            _drop(params, weaker)


def _drop(params: dict[str, Any], name: str) -> None:
    params[name] = False if name == "insecure" else None
