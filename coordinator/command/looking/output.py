"""Shell. Writes to standard output: documents as lines of JSON, and text."""

from __future__ import annotations

import json
import sys

from drumbeat.access.redaction import without_tokens
from drumbeat.coordinator.api.documents import Document
from drumbeat.coordinator.command.request import Request


def write(text: str) -> None:
    """Write to standard output, whatever it can't encode as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(without_tokens(text).encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def write_json(*documents: Document) -> None:
    """Write documents, a line each."""
    write("".join(f"{json.dumps(document)}\n" for document in documents))


def write_document(asked: Request, document: Document, screen: str) -> None:
    """Write a document, or the text that a function of ``screens`` makes of it."""
    if asked.output == "json":
        write_json(document)
        return
    from drumbeat.coordinator.command.looking import screens  # noqa: PLC0415 - rich, for text alone

    write(screens.text_of(getattr(screens, screen)(document)))


def has_colours() -> bool:
    """Return whether standard output is a terminal that is to have colours."""
    if not sys.stdout.isatty():
        return False
    from rich.console import Console  # noqa: PLC0415 - for terminals alone

    console = Console(file=sys.stdout)
    return console.color_system is not None and not console.no_color
