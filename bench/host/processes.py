"""How soon is a worker's end known, how fast do eight start, and what does waiting cost?"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial

from bench.cpu import shares
from bench.harness import Question, Scene
from drumbeat.agent.model.messages import (
    Preload,
    StartWorkers,
    StopWorkers,
    SupervisorEvent,
    TemplateReported,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStart,
)
from drumbeat.agent.workers.supervisor.client import SupervisorClient
from drumbeat.agent.workers.supervisor.process_tree import become_subreaper

WORKERS = 8
EXITS = 200
IDLE_S = 20.0
PAGES_GATHERED_S = 3.0  # by then a template is as quick as it gets
TELL = 'import os; os.write(os.open(os.environ["ARRIVALS"], os.O_WRONLY), b"x")'
COMMAND = (sys.executable, "-u", "-c", TELL)


class Host:
    """A supervisor with its client, and what it has said, each with its instant."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, SupervisorEvent]] = []
        self._change = asyncio.Event()
        self.client = SupervisorClient(
            on_event=self._on_event, on_death=lambda _: None, on_mistake=lambda _: None
        )

    def _on_event(self, event: SupervisorEvent) -> None:
        self.heard.append((time.monotonic(), event))
        self._change.set()

    async def until(self, kind: type[SupervisorEvent], count: int) -> list[float]:
        """Return the instants of so many events of a kind."""
        while True:
            instants = [at for at, event in self.heard if isinstance(event, kind)]
            if len(instants) >= count:
                return instants
            self._change.clear()
            await self._change.wait()

    def start(self, count: int, *argv: str, **env: str) -> None:
        """Start workers that all run the same command."""
        workers = tuple(WorkerStart(local_rank=rank, env=env) for rank in range(count))
        self.client.send(StartWorkers(round_id=0, argv=argv, env=dict(os.environ), workers=workers))

    async def preload(self, *argv: str) -> None:
        """Have workers of this command forked from what has imported torch; return when it can."""
        preload = Preload(argv=argv, env=dict(os.environ), modules=("torch",))
        self.client.send(preload)
        await self.until(TemplateReported, 1)
        await asyncio.sleep(PAGES_GATHERED_S)


def with_host(measure: Callable[[Host], Awaitable[float]]) -> float:
    """Run a measurement on a supervisor of its own."""

    async def run() -> float:
        become_subreaper()
        host = Host()
        await host.client.start()
        try:
            return await measure(host)
        finally:
            host.client.send(StopWorkers(round_id=0, signum=signal.SIGKILL, timeout_s=0))
            await host.until(WorkersStopped, 1)
            await host.client.close()

    return asyncio.run(run())


async def exit_latency(host: Host) -> float:
    """Return the 99th percentile of kill → event, in milliseconds, over one exit at a time."""
    host.start(EXITS, "sleep", "1000")
    await host.until(WorkersStarted, 1)
    started = next(event for _, event in host.heard if isinstance(event, WorkersStarted))
    delays: list[float] = []
    for count, pid in enumerate(started.pids.values(), 1):
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        delays.append((await host.until(WorkerExited, count))[-1] - killed_at)
    return sorted(delays)[int(len(delays) * 0.99)] * 1000


async def first_instructions(start: Callable[[str], object], count: int) -> float:
    """Return how long after ``start`` the last of ``count`` Pythons runs its first instruction.

    It is told the path of a pipe, to which each of them, with `TELL` as its program, tells it.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/arrivals"
        os.mkfifo(path)
        end = os.open(path, os.O_RDWR)
        try:
            began, seen = time.monotonic(), 0
            start(path)
            while seen < count:
                seen += len(await asyncio.to_thread(os.read, end, count))
            return time.monotonic() - began
        finally:
            os.close(end)


async def spawn(host: Host, *, is_warm: bool = False) -> float:
    """Return how many bare Python starts it takes until the last of eight workers runs.

    If it ``is_warm``, they have torch imported by then.
    """
    children: list[subprocess.Popen[bytes]] = []

    def bare(path: str) -> None:
        children.append(subprocess.Popen(COMMAND, env={**os.environ, "ARRIVALS": path}))

    def all_bare(path: str) -> None:
        for _ in range(WORKERS):
            bare(path)

    singles = [await first_instructions(bare, 1) for _ in range(5)]
    alone = sorted(singles)[2]
    together = await first_instructions(all_bare, WORKERS)
    for child in children:
        child.wait()
    if is_warm:
        await host.preload(*COMMAND)
    took = await first_instructions(
        lambda path: host.start(WORKERS, *COMMAND, ARRIVALS=path), WORKERS
    )
    print(
        f"spawn: one bare start {alone * 1000:.1f} ms, {WORKERS} at once without a supervisor "
        f"{together / alone:.1f} times that",
        file=sys.stderr,
    )
    return took / alone


def idle() -> float:
    """Return the share of a core that an agent takes beside eight silent workers, in percent."""
    with Scene() as scene:
        _, port = scene.start_coordinator()
        agent = scene.start_ours("idle", port, workers=WORKERS)
        workers = {arrival.process for arrival in scene.require_ranks(WORKERS)}
        ours = [agent, *(set(agent.children(recursive=True)) - workers)]
        return sum(asyncio.run(shares(IDLE_S, *ours)))


QUESTIONS = (
    Question(
        name="exit_latency",
        text=f"a worker ends: the agent has the result after, p99 of {EXITS}",
        unit="ms",
        repeats=3,
        ours=lambda: with_host(exit_latency),
    ),
    Question(
        name="spawn",
        text=f"{WORKERS} workers start: first instruction of the last, in bare Python starts",
        unit="",
        repeats=5,
        ours=lambda: with_host(spawn),
    ),
    Question(
        name="spawn_warm",
        text=f"{WORKERS} workers with torch imported start: the same, in bare Python starts",
        unit="",
        repeats=5,
        ours=lambda: with_host(partial(spawn, is_warm=True)),
    ),
    Question(
        name="idle",
        text=f"an agent beside {WORKERS} silent workers: share of a core",
        unit="%",
        ours=idle,
    ),
)
