"""Shell. The commands: ``drumbeat agent`` and ``drumbeat coordinator``, each also alone."""

import sys
from collections.abc import Sequence
from importlib import import_module

from drumbeat import VERSION

USAGE = """\
Usage: drumbeat [--version] [--help] COMMAND ...

  Elastic, fault-tolerant training.

Commands:
  agent        Run the workers of this machine, as part of a run.
  coordinator  Decide over runs, show them and steer them.

'drumbeat COMMAND --help' says more. Both are commands of their own, too: 'agent' and 'coordinator'.
"""
EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command ``drumbeat``; return the exit code."""
    first, *rest = [*(sys.argv[1:] if argv is None else argv)] or ["--help"]
    if first in ("agent", "coordinator"):
        return _run(first, rest)
    if first in ("--help", "-h", "--version"):
        print(f"drumbeat {VERSION}" if first == "--version" else USAGE.rstrip())
        return 0
    print(
        f"drumbeat: error: {first!r} is no command, allowed are 'agent' and 'coordinator'\n"
        "drumbeat: hint: try 'drumbeat --help'",
        file=sys.stderr,
    )
    return EXIT_USAGE


def agent() -> int:
    """Run the command ``agent``; return its exit code."""
    return _run("agent")


def coordinator() -> int:
    """Run the command ``coordinator``; return its exit code."""
    return _run("coordinator")


def _run(command: str, argv: Sequence[str] | None = None) -> int:
    if sys.platform != "linux":
        print(
            f"{command}: error: this system is {sys.platform!r}, and drumbeat runs on Linux only\n"
            f"{command}: hint: use a Linux machine or container; training code that imports "
            "worker_sdk alone runs anywhere",
            file=sys.stderr,
        )
        return EXIT_USAGE
    return int(import_module(f"drumbeat.{command}.__main__").main(argv))


if __name__ == "__main__":
    sys.exit(main())
