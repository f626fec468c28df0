"""Shell. The command line that runs a module of ours as a process."""

import sys


def own_process(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of ours, whatever the working directory has."""
    return [sys.executable, "-P", "-m", module, *arguments]
