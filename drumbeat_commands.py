"""Shell. Starts our commands and helper processes, whatever else has the names of our packages.

``agent`` and ``coordinator`` are also names that users give to folders, and with
``PYTHONPATH=.``, or with a package of that name installed elsewhere, Python would find those
first. This module has a name that none of them has. In a process that it starts, our packages
come from where it lies itself; workers are started without it and find what their user means.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

PACKAGES = frozenset({"agent", "coordinator", "drumbeat", "standalone", "worker_sdk"})

_HERE = Path(__file__).resolve().parent
_PLACES = [str(_HERE)]


class OwnPackages:
    """Finds our packages, and nothing else."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a package of ours is; None for everything else."""
        if path is not None or name not in PACKAGES:
            return None
        return PathFinder.find_spec(name, _PLACES, target)


def pin() -> None:
    """Have our packages found before any of the same name, in this process."""
    if OwnPackages not in sys.meta_path:
        sys.meta_path.insert(0, OwnPackages)


def agent() -> int:
    """Run the command ``agent``; return its exit code."""
    return _run("agent")


def coordinator() -> int:
    """Run the command ``coordinator``; return its exit code."""
    return _run("coordinator")


def _run(command: str) -> int:
    if sys.platform != "linux":
        print(
            f"{command}: error: this system is {sys.platform!r}, and drumbeat runs on Linux only\n"
            f"{command}: hint: use a Linux machine or container; training code that imports "
            "worker_sdk alone runs anywhere",
            file=sys.stderr,
        )
        return 2
    pin()
    try:
        main = import_module(f"{command}.__main__").main
    except Exception as error:
        if not (others := _overwriting(command)):
            raise
        names = ", ".join(others)
        print(
            f"{command}: error: the package {command!r} in {_HERE} is broken by another one of "
            f"that name, of {names}: {type(error).__name__}: {error}\n"
            f"{command}: hint: install drumbeat, or {names}, into an environment of its own",
            file=sys.stderr,
        )
        return 2
    return int(main())


def _overwriting(package: str) -> list[str]:
    """Return the other distributions that have put files into a package of ours."""
    from importlib.metadata import packages_distributions  # noqa: PLC0415 - slow, and rare

    return sorted({*packages_distributions().get(package, ())} - {"drumbeat"})


def main(argv: Sequence[str]) -> None:
    """Run the module of ours that comes first; what follows are its arguments."""
    from runpy import run_module  # noqa: PLC0415 - commands need none

    pin()
    sys.argv = [*argv]
    run_module(argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
