"""Many restarts in one process leave nothing behind."""

import os
import subprocess
import sys

import pytest

from tests.support.layering import ROOT

PROGRAM = """
import gc, logging, os, threading, time
from tests.support.inprocess.peers import InMemory, Iterations, Limits
from worker_sdk import inprocess
from worker_sdk.inprocess.restart.call_wrapper import Current, AgentLink

logging.disable()
transport = InMemory()
model = transport.model = Iterations.of(1, {0: transport.deliver})
Current.link = AgentLink(transport, Limits())
seen = []

def pages():
    return int(open("/proc/self/statm").read().split()[1])

@inprocess.Wrapper()
def train(call: inprocess.CallWrapper):
    model.said.clear(); model.begins.clear(); model.reasons.clear()
    ballast = bytearray(4_000_000)
    if call.iteration % 50 == 0:
        gc.collect()
        seen.append(
            (threading.active_count(), len(os.listdir("/proc/self/fd")),
             len(gc.get_objects()), pages())
        )
    if call.iteration < 200:
        if call.iteration % 2:
            model.interrupt("stop")
            time.sleep(600)
        raise ValueError("again")

train()
threads, descriptors, objects, memory = zip(*seen)
assert len(seen) == 5
assert len(set(threads)) == 1, threads
assert len(set(descriptors)) == 1, descriptors
assert objects[-1] - objects[1] < 100, objects
# Of the 150 ballasts of 4 MB that lie between, no two are there at once.
assert (memory[-1] - memory[1]) * 4096 < 8_000_000, memory
"""


@pytest.mark.slow
def test_200_restarts_keep_threads_descriptors_and_memory_flat() -> None:
    env = os.environ | {"PYTHONPATH": f"{ROOT}", "RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, timeout=100, check=False)
    assert done.returncode == 0
