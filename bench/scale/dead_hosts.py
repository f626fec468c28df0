"""Are hosts that die together told from agents whose heartbeats a coordinator reads too late?

``python -m bench.scale.dead_hosts [TRIALS]``: a third of all agents stand still at once, so that
their connections stay open and answer nothing. Each of them has to be lost within the lease, none
of the others, and the coordinator must not take itself to be behind.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys

from bench.harness import LOOPBACK, Scene
from bench.scale import fake_agents
from bench.scale.fleet_processes import FleetProcesses

AGENTS, PROCESSES = 600, 3
SETTLE_S = 3.0
WATCHED_S = 7.0  # the lease, and what a busy machine takes
_LOST = re.compile(r"bench: host-(\d+): ")


async def trial(scene: Scene, frontends: int) -> tuple[bool, str]:
    """Return whether all was judged right, and what was judged."""
    _, port = scene.start_coordinator(0, "--frontends", str(frontends))
    credentials = scene.credentials(port)
    address, log = f"{LOOPBACK}:{port}", scene.directory / "coordinator.log"
    share = AGENTS // PROCESSES
    async with FleetProcesses(
        address, AGENTS, credentials=credentials, processes=PROCESSES
    ) as fleet:
        await fleet.time_to_assign()
        await asyncio.sleep(SETTLE_S)
        os.kill(fleet.pids[0], signal.SIGSTOP)
        try:
            await asyncio.sleep(WATCHED_S)
            text = log.read_text()
        finally:
            os.kill(fleet.pids[0], signal.SIGCONT)
    lost = {int(number) for number in _LOST.findall(text)}
    is_behind = "read too late" in text
    what = f"{len(lost)} lost, {len(lost - set(range(share)))} of them wrongly"
    return lost == set(range(share)) and not is_behind, f"{what}; behind: {is_behind}"


def main(trials: int) -> None:
    """Print each trial, and how many were right."""
    right = 0
    for number in range(trials):
        with Scene() as scene:
            is_right, what = fake_agents.run(trial(scene, number % 2))
        right += is_right
        print(f"{number % 2} front ends: {what}", flush=True)
    print(f"{right} of {trials} right: {AGENTS // PROCESSES} of {AGENTS} agents died at once")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
