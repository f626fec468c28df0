"""Shell. Entry point of ``coordinator`` and ``python -m coordinator``."""

import sys

from coordinator.command.cli import main

if __name__ == "__main__":
    sys.exit(main())
