"""Shell. How a process of our own is started, so that it finds our packages and no others."""

from __future__ import annotations

import sys
from pathlib import Path

_STARTER = Path(__file__).resolve().parents[2] / "drumbeat_commands.py"


def own_process(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of ours, whatever is called ``agent`` here."""
    return [sys.executable, "-P", str(_STARTER), module, *arguments]
