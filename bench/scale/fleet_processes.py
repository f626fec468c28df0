"""A fleet in processes of its own: several, where there are cores, as one feeds no front ends.

Agents are on other hosts in earnest, so where a core is wanted by both, the coordinator has it.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import Any, Self

import psutil

from bench import cpu
from bench.scale import fake_agents
from bench.scale.fake_agents import ASSIGNED_WITHIN_S, Fleet, Part, Told
from drumbeat.access.client import Credentials

# The others are for the coordinator, its front ends and what else runs.
CORES_PER_PROCESS = 3
NICE = 19  # the lowest priority
END = "end"


def process_count() -> int:
    """Return how many processes a fleet has on this machine."""
    return max(1, len(os.sched_getaffinity(0)) // CORES_PER_PROCESS)


def fleet_of(addresses: str | list[str], count: int, *, credentials: Credentials) -> FleetProcesses:
    """Return a fleet in as many processes as this machine has cores for."""
    return FleetProcesses(addresses, count, credentials=credentials, processes=process_count())


def cpu_s() -> float:
    """Return what the agents of this process and its fleets have taken of the processor."""
    children = [psutil.Process(child.pid) for child in multiprocessing.active_children()]
    return time.process_time() + cpu.cpu_s(*children)


class FleetProcesses:
    """All agents of one run, as ``Fleet``, in ``processes``."""

    def __init__(
        self,
        addresses: str | list[str],
        count: int,
        *,
        credentials: Credentials,
        processes: int,
    ) -> None:
        self._count = count
        self._shares = _shares(count, processes)
        self._common = {"address": addresses, "credentials": credentials}
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._began = 0.0

    @property
    def pids(self) -> list[int]:
        """Of the processes, in the order of their agents."""
        return [process.pid for process in self._processes]

    async def __aenter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        for first, count in self._shares:
            ours, theirs = context.Pipe()
            own = {**self._common, "count": count, "part": Part(first, self._count)}
            process = context.Process(target=_live, args=(theirs, own))
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        await self._heard()  # all are there before the first agent connects
        self._began = time.monotonic()
        await self._ask("__aenter__")
        return self

    async def __aexit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.send(END)
        for process in self._processes:
            await asyncio.to_thread(process.join, ASSIGNED_WITHIN_S)
            process.kill()

    async def told(self) -> Told:
        """As ``Fleet``'s."""
        beats, intervals, leases, rounds = zip(*await self._ask("told"), strict=True)
        return Told(sum(beats), max(intervals), max(leases), set().union(*rounds))

    async def time_to_assign(self) -> float:
        """As ``Fleet``'s."""
        return await self._latest("assigned_at") - self._began

    async def time_to_restart(self) -> float:
        """As ``Fleet``'s."""
        await self._ask("expect_rounds")
        began: float = await self._ask_last("fail_one")
        return await self._latest("rounds_at") - began

    async def time_to_lose(self) -> tuple[float, float]:
        """As ``Fleet``'s."""
        await self._ask("expect_rounds")
        began = await self._ask_last("silence_one")
        waiting_s = await self._latest("waits_at") - began
        await self._ask_last("speak")
        return waiting_s, await self._latest("rounds_at") - began

    async def all_back_at(self) -> float:
        """As ``Fleet``'s."""
        return await self._latest("all_back_at")

    async def _latest(self, what: str) -> float:
        instants: list[float] = await self._ask(what)
        return max(instants)

    async def _ask(self, what: str) -> list[Any]:
        for pipe in self._pipes:
            pipe.send(what)
        return await self._heard()

    async def _ask_last(self, what: str) -> Any:
        self._pipes[-1].send(what)
        return _value(await asyncio.to_thread(self._pipes[-1].recv))

    async def _heard(self) -> list[Any]:
        answers = (asyncio.to_thread(pipe.recv) for pipe in self._pipes)
        return [_value(answer) for answer in await asyncio.gather(*answers)]


def _shares(count: int, processes: int) -> list[tuple[int, int]]:
    """Return the first agent and the number of agents of each process."""
    firsts = [count * number // processes for number in range(processes + 1)]
    return [(first, after - first) for first, after in itertools.pairwise(firsts)]


def _value(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def _live(pipe: Connection, arguments: dict[str, Any]) -> None:
    os.nice(NICE)
    fake_agents.run(_serve(pipe, arguments))


async def _serve(pipe: Connection, arguments: dict[str, Any]) -> None:
    fleet = Fleet(**arguments)
    pipe.send(None)
    while (what := await asyncio.to_thread(pipe.recv)) != END:
        answer: Any = None
        try:
            match what:
                case "__aenter__":
                    await fleet.__aenter__()
                case _:
                    answer = await getattr(fleet, what)()
        except (TimeoutError, OSError) as error:
            answer = error
        pipe.send(answer)
    await fleet.__aexit__()
