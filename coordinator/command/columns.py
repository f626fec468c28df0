"""Pure. Rows of documents as the cells of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from drumbeat.command.table import short

Document = dict[str, Any]
# By their heads: the key of a document, or what makes the text of it.
Columns = Mapping[str, str | Callable[[Document], str]]


def cells(columns: Columns, documents: Iterable[Document]) -> list[list[str]]:
    """Return the texts; empty for what is not known. Keys that end in ``_s`` are durations."""
    return [[_cell(column, document) for column in columns.values()] for document in documents]


def _cell(column: str | Callable[[Document], str], document: Document) -> str:
    if not isinstance(column, str):
        return column(document)
    value: Any = document.get(column)
    if value is None:
        return ""
    return short(value) if column.endswith("_s") else str(value)


def rounded(key: str) -> Callable[[Document], str]:
    """Return the column of a duration in whole seconds."""
    return lambda document: "" if document[key] is None else short(round(document[key]))
