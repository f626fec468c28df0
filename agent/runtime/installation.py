"""Shell. Where our packages are, for processes of our own, and what others offer by name."""

import sys
from pathlib import Path
from typing import Any

_STARTER = Path(__file__).resolve().parents[2] / "drumbeat_commands.py"


def own_process(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of ours, whatever is called ``agent`` here."""
    return [sys.executable, "-P", str(_STARTER), module, *arguments]


def installed(*groups: str) -> dict[str, Any]:
    """Return the entry points of these groups; of two with one name, that of the later group."""
    # Imported here: it costs more than the rest, and only foreign code needs it.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {point.name: point for group in groups for point in entry_points(group=group)}
