"""Looks at workers, in whatever state they are, leave them as they were."""

import asyncio
import json
import os
import random
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from drumbeat.agent.watchdog.outside import find_program
from drumbeat.agent.watchdog.stack_taking import BUSY
from tests.support.cluster import Agent, Cluster, Coordinator
from tests.support.etcd import Port
from tests.support.pages import Browser
from tests.support.processes import DEADLINE_S
from tests.support.waiting import wait_until_sync
from tests.support.workers.ways_to_be import LOOKS, WAYS

pytestmark = pytest.mark.timeout(300)

READER_LOOKS = int(os.environ.get("DRUMBEAT_LOOKS", "2"))
"""Of readers, in an order that a seed decides; with 7 and 3 of the watchdog at 10 states: 100."""
EVERY_S = 3.0
"""Between two looks of the watchdog, at timers that only report."""
NAMES = [way.__name__ for way in WAYS]
WITH_LOCK = {name for name in NAMES if name.endswith("with_lock")}
HELD = {"stop", "be_traced"}
TOO_SLOW = ("py-spy took longer than", BUSY)
FROM_OUTSIDE = set() if find_program() is None else WITH_LOCK | {"stop"}
"""Those whose stacks are read from their memory, where py-spy is."""

TRACER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
pid = int(sys.argv[1])
for task in map(int, os.listdir(f"/proc/{pid}/task")):
    if libc.ptrace(16, task, 0, 0):  # attach
        print("refused", os.strerror(ctypes.get_errno()), flush=True)
        sys.exit()
    os.waitpid(task, 0x40000000)  # of any thread
print("attached", flush=True)
while True:  # nothing is heard of it as long as it is left alone
    print("event", *os.waitpid(-1, 0x40000000), flush=True)
"""


def state_of(pid: int, name: str) -> dict[str, Any]:
    """Return what a look must not change."""
    found: dict[str, Any] = {}
    for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
        lines = (task / "status").read_text().splitlines()
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        is_first = task.name == str(pid)
        told = {key: fields[key] for key in ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")}
        told["TracerPid"] = fields["TracerPid"]
        # The thread that answers runs. Of a process that is held, none does.
        if name in HELD or (is_first and name != "run_python"):
            switches = "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"
            told |= {key: fields[key] for key in ("State", *switches)}
        found[task.name] = told
    return found


class Scene:
    """A run with a worker in each state, and the ways to look at it."""

    def __init__(self, cluster: Cluster, port: Port) -> None:
        self.coordinator: Coordinator = cluster.coordinator(
            "--http-port", port.address.rpartition(":")[2]
        )
        self.agent: Agent = cluster.agent(
            *("--nproc-per-node", str(len(WAYS)), "--max-restarts", "0", "--tee", "3"),
            *("-m", "tests.support.workers.ways_to_be", str(EVERY_S)),
            coordinator=self.coordinator,
        )
        for name in NAMES:
            self.agent.wait_for_line(f"began {name}")
        self.run_id = cluster.run_id
        status = json.loads(self.coordinator.operate("status", "run", "-o", "json").stdout)
        workers = {each["rank"]: each for agent in status["agents"] for each in agent["workers"]}
        self.pids = {name: workers[rank]["pid"] for rank, name in enumerate(NAMES)}
        self.tracer = cluster.script(TRACER, str(self.pids["be_traced"]))
        if "refused" in self.tracer.wait_for_line("attached|refused")[0]:
            pytest.skip("this host does not let one process trace another")
        wait_until_sync(lambda: " T " in self.stat("stop"), DEADLINE_S)
        wait_until_sync(lambda: " Z " in self.stat("end_first_thread"), DEADLINE_S)
        for name in WITH_LOCK | {"sleep_in_python", "sleep_in_c", "wait_for_lock"}:
            wait_until_sync(partial(self.is_asleep, name), DEADLINE_S)

    def is_asleep(self, name: str) -> bool:
        return " S " in self.stat(name)

    def stat(self, name: str) -> str:
        return Path(f"/proc/{self.pids[name]}/stat").read_text()

    def states(self) -> dict[str, dict[str, Any]]:
        return {name: state_of(pid, name) for name, pid in self.pids.items()}

    def by_command(self) -> dict[str, Any]:
        asked = self.coordinator.operate("stacks", "run", "-o", "json")
        assert asked.wait() == 0, asked.log()
        return dict(json.loads(asked.stdout))

    def by_page(self) -> dict[str, Any]:
        link = self.coordinator.operate("page", "run").stdout.split()[-1]

        async def look() -> dict[str, Any]:
            async with aiohttp.ClientSession() as session:
                browser = Browser(re.match(r"https?://[^/]+", link)[0], session, tls=False)  # type: ignore[index]
                assert (await browser.enter(link)).status == 200
                return dict((await browser.get("/api/runs/run/stacks")).json)

        return asyncio.run(look())

    def are_looks_over(self) -> bool:
        """Whether the watchdog has looked at all workers; one that is traced it does not judge."""
        told, traced = self.agent.stderr, f'"worker.local_rank": {NAMES.index("be_traced")}'
        left_alone = told.count('"event": "worker hangs, is left alone"')
        not_judged = sum(traced in line for line in told.splitlines() if "hang not judged" in line)
        return left_alone >= LOOKS * (len(WAYS) - 1) and not_judged >= LOOKS


@pytest.fixture
def scene(cluster: Cluster) -> Iterator[Scene]:
    port = Port()
    yield Scene(cluster, port)
    port.close()


def is_too_slow(answer: dict[str, Any]) -> bool:
    """Whether the machine was too busy to read a worker in time, as the answer says."""
    return any(why in each["reason"] for why in TOO_SLOW for each in answer["unanswered"])


def check_answer(told: dict[str, Any]) -> None:
    """Each worker that can be read has stacks, of each other the state is told."""
    silent = {NAMES[each["rank"]]: each["reason"] for each in told["unanswered"]}
    assert set(silent) == (WITH_LOCK | HELD) - FROM_OUTSIDE, silent
    for name in WITH_LOCK - FROM_OUTSIDE:
        assert "native code may hold the interpreter's lock" in silent[name]
        assert "coordinator stacks --signal" in silent[name]
    stopped = "stopped by SIGSTOP or a similar signal (SIGCONT continues it)"
    assert stopped in silent.get("stop", stopped)
    assert "stopped by a debugger" in silent["be_traced"]
    places = {NAMES[rank]: each["place"] for each in told["groups"] for rank in each["ranks"]}
    for name in FROM_OUTSIDE | {"sleep_in_c", "sleep_in_python"}:
        assert name in places[name], places


@pytest.mark.slow
def test_workers_stay_as_they_are_while_they_are_looked_at(scene: Scene) -> None:
    before, looks = scene.states(), random.Random(22)
    for _ in range(READER_LOOKS):
        look = looks.choice([scene.by_command, scene.by_page])
        while is_too_slow(answer := look()):
            pass
        check_answer(answer)
        assert scene.states() == before
    wait_until_sync(scene.are_looks_over, DEADLINE_S + LOOKS * EVERY_S)
    assert scene.states() == before
    why = scene.coordinator.operate("why", "run").stdout
    assert f"pid {scene.pids['stop']}" in " ".join(why.split()), why
    assert "Stopped (SIGSTOP, a similar signal or a debugger;" in " ".join(why.split()), why
    assert "event" not in scene.tracer.stdout.replace("attached", ""), "the tracer was woken"
    assert "returned from" not in scene.agent.log(), "a call ended early"
    assert scene.agent.is_running


@pytest.mark.slow
def test_only_a_signal_that_is_asked_for_shows_who_holds_the_lock(scene: Scene) -> None:
    before = scene.states()
    asked = scene.coordinator.operate("stacks", "run", "--signal", "-o", "json")
    told = json.loads(asked.stdout)
    assert {NAMES[each["rank"]] for each in told["unanswered"]} == HELD - FROM_OUTSIDE
    places = {NAMES[rank]: each["place"] for each in told["groups"] for rank in each["ranks"]}
    for name in WITH_LOCK:
        assert name in places[name], places
        scene.agent.wait_for_line(rf"returned from {name}: -1, errno")  # that is its price
    after = scene.states()
    for name in set(NAMES) - WITH_LOCK:
        assert after[name] == before[name], name
    os.kill(scene.pids["stop"], signal.SIGCONT)
    scene.agent.wait_for_line("returned from stop: None")
