"""A worker whose function starts again in process, with faults where it is told.

``python -m tests.support.workers.iterating JSON``: ``{"faults": {"RANK:ITERATION": FAULT}, ...}``,
ranks as they were at the start. In an iteration with a fault all others go on until they are
interrupted. Each step of note is a line on standard output.
"""

from __future__ import annotations

import collections
import itertools
import json
import os
import signal
import sys
import time
from typing import Any

from worker_sdk import inprocess

PLAN: dict[str, Any] = json.loads(sys.argv[1])
FIRST_RANK = int(os.environ["RANK"])
ROUND = int(os.environ["DRUMBEAT_ROUND"])


def tell(what: str, **more: object) -> None:
    words = [f"{name}={value}" for name, value in more.items()]
    line = " ".join([f"r{ROUND} w{FIRST_RANK} {what}", *words]) + "\n"
    os.write(1, line.encode())  # whole lines, whoever else writes


def fail(fault: str) -> None:
    match fault:
        case "raise":
            raise ValueError("told to raise")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(600)
        case "hold":
            collections.deque(itertools.repeat(None), maxlen=0)
        case _:
            raise AssertionError(fault)


def spec() -> dict[str, Any]:
    options: dict[str, Any] = {
        "soft_timeout": 60,
        "hard_timeout": 90,
        "abort": None,
        **PLAN.get("options", {}),
    }
    if "active" in PLAN:
        options["rank_assignment"] = inprocess.Compose(
            inprocess.MaxActiveWorldSize(PLAN["active"]), inprocess.ShiftRanks()
        )
    return options


@inprocess.Wrapper(**spec())
def train(call: inprocess.CallWrapper) -> str:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
    seat = {name.lower(): os.environ[name] for name in names}
    tell("enter", iteration=call.iteration, **seat, pid=os.getpid())
    faults = {
        key: fault for key, fault in PLAN["faults"].items() if key.endswith(f":{call.iteration}")
    }
    mine = faults.get(f"{FIRST_RANK}:{call.iteration}")
    if PLAN.get("only_round", ROUND) == ROUND:
        if mine is not None:
            fail(mine)
        elif faults:
            while True:
                call.ping()
                time.sleep(0.01)
    return seat["rank"]


if __name__ == "__main__":
    tell("returned", value=train())
