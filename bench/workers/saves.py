"""A worker whose training asks when to save, or measures what that costs.

saves.py HOST PORT DIRECTORY [cost]
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import worker_sdk
from bench.host import timer_loads
from bench.workers.timers import arrive

STEP_S = 0.005


def train(directory: Path) -> None:
    """Make steps until this process is ended; leave the instant at which this rank saved."""
    step = 0
    while True:
        time.sleep(STEP_S)
        worker_sdk.heartbeat(step)
        if worker_sdk.should_checkpoint(step):
            (directory / f"saved-{os.environ['RANK']}").write_text(str(time.monotonic()))
            worker_sdk.checkpointed(step, wait=True)
        step += 1


def measure(directory: Path) -> None:
    """Leave what a call costs without a notice and, once there is one, while it is pending."""
    figures = {"idle": costs()}
    (directory / "idle").touch()
    while worker_sdk.notice() is None:
        time.sleep(STEP_S)
    figures["pending"] = costs()
    (directory / "costs.new").write_text(json.dumps(figures))
    (directory / "costs.new").rename(directory / "costs.json")
    worker_sdk.checkpointed(0)
    time.sleep(60)


def costs() -> dict[str, float]:
    # Always the same step: none that is chosen is ever reached.
    asked = timer_loads.call_cost(lambda _step: worker_sdk.should_checkpoint(0))
    told = timer_loads.call_cost(lambda _step: worker_sdk.notice())
    return {"should_checkpoint": asked["p50"], "notice": told["p50"]}


if __name__ == "__main__":
    worker_sdk.heartbeat(0)
    arrive(*sys.argv[1:3])
    {"cost": measure}.get((sys.argv[4:] or [""])[0], train)(Path(sys.argv[3]))
