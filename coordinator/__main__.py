"""Shell. Entry point of ``coordinator`` and ``python -m coordinator``."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from coordinator import cli
from coordinator.config import CoordinatorConfig, ResetLimits
from drumbeat.command.standard_streams import open_missing

if TYPE_CHECKING:
    from collections.abc import Callable


def main(argv: list[str] | None = None) -> int:
    """Run the command with real services; ``argv`` None stands for this process's own."""
    open_missing()
    return cli.main(argv, run=_serve, reset=_reset)


def _serve(config: CoordinatorConfig) -> int:
    # Imported late: grpc takes longer to import than a wrong command line to refuse.
    run: Callable[[CoordinatorConfig], int] = import_module("coordinator.shell.server").run
    return run(config)


def _reset(asked: ResetLimits) -> int:
    reset: Callable[[ResetLimits], int] = import_module("coordinator.client").reset_limits
    return reset(asked)


if __name__ == "__main__":
    sys.exit(main())
