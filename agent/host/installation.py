"""Shell. Starts our own modules as processes, and finds entry points of other packages."""

import sys
from typing import Any


def own_process(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of ours, whatever the working directory has."""
    return [sys.executable, "-P", "-m", module, *arguments]


def installed(*groups: str) -> dict[str, Any]:
    """Return the entry points of these groups; of two with one name, that of the later group."""
    # Imported here: it costs more than the rest, and only foreign code needs it.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {point.name: point for group in groups for point in entry_points(group=group)}
