"""Shell. Entry point of ``coordinator`` and ``python -m coordinator``."""

import sys

from coordinator import cli
from coordinator.config import CoordinatorConfig, ResetLimits
from drumbeat.command.console import open_missing


def main(argv: list[str] | None = None) -> int:
    """Run the command with real services; ``argv`` None stands for this process's own."""
    open_missing()
    return cli.main(argv, run=_serve, reset=_reset)


def _serve(config: CoordinatorConfig) -> int:
    # Imported late: grpc takes longer to import than a wrong command line to refuse.
    from coordinator.shell.server import run  # noqa: PLC0415

    return run(config)


def _reset(asked: ResetLimits) -> int:
    from coordinator.client import reset_limits  # noqa: PLC0415

    return reset_limits(asked)


if __name__ == "__main__":
    sys.exit(main())
