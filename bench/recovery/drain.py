"""How long until the others train again without a host that is drained, and what asking costs?

Without torch: what a worker imports is its own time.
"""

from __future__ import annotations

import json
import time
import uuid

from bench.figures import OURS, OneOfEach, one_of_each
from bench.harness import STEP_S, BenchmarkError, Scene
from drumbeat.v1 import control_pb2

HOSTS = 3
PROGRAM = "bench.workers.saves"


def drain(_side: str) -> OneOfEach:
    """Drain one of three hosts; return how long it took, in all and after the checkpoint."""
    with Scene() as scene:
        _, port = scene.start_coordinator()
        command = ("--module", PROGRAM, *scene.worker[1:], str(scene.directory))
        for name in (f"agent-{number}" for number in range(HOSTS)):
            scene.worker = ("--name", name, *command)
            scene.start_ours(name, port, "2:3", workers=1)
        scene.require_ranks(HOSTS)
        asked_at = time.monotonic()
        request = control_pb2.DrainAgentRequest(name=name, request_id=uuid.uuid4().hex)
        scene.call(port, "DrainAgent", request)
        up_at = max(arrival.at for arrival in scene.require_ranks(HOSTS - 1))
        saved = [scene.directory / f"saved-{rank}" for rank in range(HOSTS)]
        saved_at = max(float(path.read_text()) for path in saved)
        return {"whole": up_at - asked_at, "after_save": up_at - saved_at}


def asking(_side: str) -> OneOfEach:
    """Return what the calls of training cost without a notice and with one, in microseconds."""
    with Scene() as scene:
        _, port = scene.start_coordinator()
        scene.worker = ("--module", PROGRAM, *scene.worker[1:], str(scene.directory), "cost")
        scene.start_ours("agent", port, workers=1)
        scene.require_ranks(1)
        wait_for(scene, "idle")
        request = control_pb2.RestartRunRequest(run_id="bench", request_id=uuid.uuid4().hex)
        scene.call(port, "RestartRun", request)
        wait_for(scene, "costs.json")
        found = json.loads((scene.directory / "costs.json").read_text())
        return {f"{what}_{when}": us for when, each in found.items() for what, us in each.items()}


def wait_for(scene: Scene, name: str) -> None:
    deadline = time.monotonic() + STEP_S
    while not (scene.directory / name).exists():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"the worker did not come through\n{scene.log_ends()}")
        time.sleep(0.01)


TEXT = f"one of {HOSTS} hosts is drained while training asks when to save: the others up again"

QUESTIONS = (
    *one_of_each(drain).questions(
        "drain",
        (
            ("after_save", "s", f"{TEXT}, after the last has saved"),
            ("whole", "s", f"{TEXT}, after it was asked for"),
        ),
        OURS,
        repeats=5,
    ),
    *one_of_each(asking).questions(
        "asking",
        (
            (f"{what}_{when}", "us", f"{what}(), {told}, p50")
            for what in ("should_checkpoint", "notice")
            for when, told in (("idle", "without a notice"), ("pending", "while one is pending"))
        ),
        OURS,
        repeats=3,
    ),
)
