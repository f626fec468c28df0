"""Shell. Carries out the commands that show something; returns their exit codes."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import grpc

from coordinator.command.calls import failure_of
from coordinator.command.looking import stacks
from coordinator.command.looking.documents import run_document, status_document
from coordinator.command.looking.reading import Reader, channel_of, read_stacks
from coordinator.command.requests import Looking, ShowStacks, ShowStatus
from drumbeat.access.redaction import without_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.command.looking.documents import Document


def show(asked: Looking) -> int:
    """Show what is asked for; return the exit code. Raises ``CallFailed``."""
    try:
        _VERBS[type(asked)](asked)
        sys.stdout.flush()
    except BrokenPipeError:  # what reads it has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except grpc.RpcError as error:
        raise failure_of(asked, error) from error
    return 0


def _status(asked: ShowStatus) -> None:
    with channel_of(asked) as (channel, metadata):
        reader = Reader(channel, metadata)
        if asked.run_id is None:
            runs = [run_document(run) for run in reader.runs()]
        else:
            status = read_status(reader, asked.run_id)
    if asked.output == "json":
        write_json({"runs": runs} if asked.run_id is None else status)
        return
    from coordinator.command.looking import screens  # noqa: PLC0415 - rich, for text alone

    screen = screens.runs_screen(runs) if asked.run_id is None else screens.status_screen(status)
    write(screens.text_of(screen))


def read_status(reader: Reader, run_id: str) -> Document:
    """Return what there is to see of a run."""
    run = reader.run(run_id)
    return status_document(run, reader.agents(run), reader.latest_events(run))


def write_json(document: Document) -> None:
    """Write a document as one line."""
    write(json.dumps(document) + "\n")


def write(text: str) -> None:
    """Write to standard output, whatever it can't encode as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(without_tokens(text).encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def _stacks(asked: ShowStacks) -> None:
    with channel_of(asked) as (channel, metadata):
        answers = read_stacks(channel, metadata, asked.run_id, asked.rank)
    if asked.output == "json":
        write_json(stacks.document(asked.run_id, answers))
    else:
        write(stacks.text(answers))


_VERBS: dict[type[Looking], Callable[[Any], None]] = {ShowStatus: _status, ShowStacks: _stacks}
