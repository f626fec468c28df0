"""Shell. The command ``coordinator``."""

import sys

from drumbeat.coordinator.command.cli import main

if __name__ == "__main__":
    sys.exit(main())
