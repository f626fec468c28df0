"""A worker that trains: steps with heartbeats, saved now and then, resumed after a restart.

Its argument is a directory for what it saves. It ends once there is a file ``end`` in it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import worker_sdk

STEP_S = 0.02
SAVED_EVERY = 50


def main() -> None:
    """Train."""
    folder = Path(sys.argv[1])
    saved = folder / f"step-{os.environ['RANK']}"
    step = int(saved.read_text()) if saved.exists() else 0
    while not (folder / "end").exists():
        step += 1
        time.sleep(STEP_S)
        worker_sdk.heartbeat(step=step, loss=1000 / step)
        if step % SAVED_EVERY == 0:
            draft = saved.with_suffix(".new")
            draft.write_text(str(step))
            draft.rename(saved)


if __name__ == "__main__":
    main()
