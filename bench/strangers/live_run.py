"""A run that goes on: ``python -m bench.strangers.live_run PORT SIZE``, until SIGTERM.

Its agents and who watches them live in a process of their own, so that an attack takes none of
their time. Says "running" once they do, and upon SIGUSR1 in JSON what the run has gone through
since it was last asked.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from dataclasses import asdict, dataclass

import grpc.aio

from bench.scale.fake_agents import Fleet
from bench.ways import Access
from drumbeat.access.client import Metadata, credentials
from drumbeat.v1 import query_pb2, query_pb2_grpc

RUN_ID = "live"
WATCHED_EVERY_S = 0.1


@dataclass
class Witnessed:
    """What happened to a run while it was watched. Durations are seconds."""

    silence_s: float = 0.0
    """The longest time for which the coordinator had not heard of an agent."""
    answer_s: float = 0.0
    """The longest that a reader waited for an answer."""
    answers: int = 0
    failed: int = 0
    """Questions that had none."""
    events: int = 0
    """Decisions on the run."""
    agents: int = 0
    """Connected at the latest look."""


class Watch:
    """Asks where the agents are, over and over, on one connection."""

    def __init__(self, stub: query_pb2_grpc.QueryServiceAsyncStub, metadata: Metadata) -> None:
        self._stub, self._metadata = stub, metadata
        self._seen = Witnessed()
        self._events = 0

    async def events(self) -> int:
        """Return how many decisions there were since this was last asked."""
        known = self._events
        request = query_pb2.ListEventsRequest(run_id=RUN_ID)
        self._events = len((await self._stub.ListEvents(request, metadata=self._metadata)).events)
        return self._events - known

    async def look(self, was_asked: asyncio.Event, *, is_over: asyncio.Event) -> None:
        """Look until it is over, and print what was seen whenever that was asked."""
        await self.events()
        while not is_over.is_set():
            await self._look_once()
            if was_asked.is_set():
                was_asked.clear()
                self._seen.events = await self.events()
                print(json.dumps(asdict(self._seen)), flush=True)
                self._seen = Witnessed()
            await asyncio.sleep(WATCHED_EVERY_S)

    async def _look_once(self) -> None:
        seen, began = self._seen, time.monotonic()
        try:
            request = query_pb2.ListAgentsRequest(run_id=RUN_ID)
            listed = await self._stub.ListAgents(request, metadata=self._metadata)
        except grpc.aio.AioRpcError:
            seen.failed += 1
        else:
            silences = [agent.silence.ToNanoseconds() / 1e9 for agent in listed.agents]
            seen.silence_s = max(seen.silence_s, *silences)
            seen.agents = sum(agent.is_connected for agent in listed.agents)
            seen.answers += 1
        seen.answer_s = max(seen.answer_s, time.monotonic() - began)


async def main(port: int, size: int) -> None:
    """Run until SIGTERM."""
    address, was_asked, is_over = f"127.0.0.1:{port}", asyncio.Event(), asyncio.Event()
    used = credentials(Access(), address)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, was_asked.set)
    loop.add_signal_handler(signal.SIGTERM, is_over.set)
    async with Fleet(address, size, RUN_ID, credentials=used) as fleet, fleet.connect() as channel:
        await fleet.time_to_assign()
        print("running", flush=True)
        stub: query_pb2_grpc.QueryServiceAsyncStub = query_pb2_grpc.QueryServiceStub(channel)
        await Watch(stub, used.metadata).look(was_asked, is_over=is_over)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
