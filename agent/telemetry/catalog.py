"""Shell. Finds an event handler by its name: one of ours, or an installed package's.

A package offers one as an entry point of the group ``drumbeat.event_handlers``: a
class or function that is called without arguments and returns the handler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from agent.errors import UnknownEventHandler
from agent.telemetry.handlers import ConsoleHandler, EventHandler, JsonLinesHandler

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "drumbeat.event_handlers"
NULL, CONSOLE, JSON_LINES = "null", "console", "jsonl"
BUILT_IN = (NULL, CONSOLE, JSON_LINES)

Factory = Callable[[], EventHandler]


def check_name(name: str) -> None:
    """Make sure that there is such a handler, without loading it.

    Raises:
        UnknownEventHandler: There is none; it lists those there are.
    """
    if name not in BUILT_IN and name not in (installed := _installed()):
        raise UnknownEventHandler(name, (*BUILT_IN, *sorted(installed)))


def factory(name: str, file: str | None) -> Factory | None:
    """Return what makes the handler of a checked name; ``None`` if nobody listens.

    Args:
        name: One of ours, or of an entry point.
        file: Absolute path of the file of ``jsonl``.
    """
    match name:
        case "null":
            return None
        case "console":
            return ConsoleHandler
        case "jsonl":
            assert file is not None, "checked with the configuration"
            return lambda: JsonLinesHandler(file)
        case _:
            return lambda: _load(name)


def _load(name: str) -> EventHandler:
    installed = _installed()
    if name not in installed:
        raise UnknownEventHandler(name, (*BUILT_IN, *sorted(installed)))
    return cast("EventHandler", installed[name].load()())


def _installed() -> dict[str, EntryPoint]:
    # Imported here: it costs more than the rest, and only a foreign handler needs it.
    from importlib.metadata import entry_points  # noqa: PLC0415

    found = {point.name: point for point in entry_points(group=GROUP)}
    return {name: point for name, point in found.items() if name not in BUILT_IN}
