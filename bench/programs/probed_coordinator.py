"""The coordinator's command, with a probe of how long its event loop is held up at a time.

Usage: as ``coordinator``. At SIGUSR1 it writes to the file that PROBE_FILE names the longest
stop since the last time, in milliseconds of the loop's own work: what other processes take of the
machine meanwhile does not count.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from drumbeat.coordinator.command.cli import main


def install(path: Path) -> None:
    """Time all that event loops of this process run."""
    run, clock, longest_s = asyncio.Handle._run, time.thread_time, 0.0  # noqa: SLF001

    def timed(self: asyncio.Handle) -> None:
        nonlocal longest_s
        began = clock()
        run(self)
        longest_s = max(longest_s, clock() - began)

    def tell(*_: Any) -> None:
        nonlocal longest_s
        told = path.with_suffix(".new")
        told.write_text(f"{longest_s * 1e3:.3f}")
        told.rename(path)
        longest_s = 0.0

    asyncio.Handle._run = timed  # type: ignore[method-assign] # noqa: SLF001
    signal.signal(signal.SIGUSR1, tell)


if __name__ == "__main__":
    install(Path(os.environ["PROBE_FILE"]))
    sys.exit(main())
