"""Agents and coordinators of other versions: one of the baseline, and one to come."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from drumbeat import VERSION
from tests.support.channels import aio_channel_to
from tests.support.cluster import Agent, Cluster
from tests.support.processes import DEADLINE_S
from tests.support.versions import LATER_STATE, Version, version

# Its poller is one for all loops of this process; made here, it is no leak of a test.
grpc.aio.init_grpc_aio()

IDLE, RUNNING, SUCCEEDED = 1, 3, 5
WORKER = "import time; time.sleep(0.2)"
QUERY = "/drumbeat.v1.QueryService/GetRun"
OPEN = "/drumbeat.v1.AgentService/OpenSession"


@pytest.fixture(params=["of the baseline", "to come"])
def other(request: pytest.FixtureRequest) -> Version:
    return version(is_later=request.param == "to come")


def worker(cluster: Cluster) -> str:
    path = cluster.directory / "worker.py"
    path.write_text(WORKER)
    return str(path)


class OtherAgent:
    """An agent of another version: what it says, and what it is told."""

    def __init__(self, channel: grpc.aio.Channel, other: Version) -> None:
        self._other = other
        self._call: Any = channel.stream_stream(
            OPEN,
            request_serializer=other.AgentReport.SerializeToString,
            response_deserializer=other.Directive.FromString,
        )()
        self._fence = other.Fence(run_id="run", incarnation="other")

    async def say(self, **kind: Any) -> None:
        await self._call.write(self._other.made("AgentReport", fence=self._fence, **kind))

    async def beat(self, state: int) -> None:
        """Say a state, and before it what is unknown today if this version has such a thing."""
        if self._other.is_later:
            await self.say(later_kind=self._other.Goodbye(reason="?"))
            strange = self._other.made("Beat", state=LATER_STATE, master_port=4000)
            await self.say(beat=strange)
        await self.say(beat=self._other.made("Beat", state=state, master_port=4000))

    async def join(self, spec: Any) -> None:
        hello = self._other.made(
            "Hello",
            run=self._other.RunPurpose(run_id="run", spec=spec),
            host="other",
            address="127.0.0.1",
            role="default",
            local_world_size=1,
            features=["telepathy"],
            beat=self._other.made("Beat", state=IDLE, master_port=4000),
        )
        await self.say(hello=hello)
        welcome = (await self._read("welcome")).welcome
        assert welcome.term == 1
        self._fence.session_id = welcome.session_id

    async def assigned(self) -> Any:
        while True:
            desired = (await self._read("desired")).desired
            if desired.HasField("run"):
                self._fence.round_id = desired.run.round_id
                return desired.run

    async def verdict(self) -> Any:
        while True:
            desired = (await self._read("desired")).desired
            if desired.HasField("exit"):
                return desired.exit.verdict

    async def _read(self, kind: str) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            while (directive := await self._call.read()) is not grpc.aio.EOF:
                if directive.WhichOneof("kind") == kind:
                    return directive
        raise AssertionError("the session ended")


async def test_readers_see_the_version_and_the_labels_of_an_agent(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    cluster.agent(
        "--nnodes=2", "--labels", "rack=b7,zone=a", worker(cluster), coordinator=coordinator
    )
    run = coordinator.wait_for_run("run", lambda run: len(run.agents) == 1)
    (agent,) = run.agents
    assert (agent.version, dict(agent.labels)) == (VERSION, {"rack": "b7", "zone": "a"})


@pytest.mark.slow
async def test_an_agent_of_another_version_trains_with_ours(
    cluster: Cluster, other: Version
) -> None:
    # Earlier agents speak plaintext, and prove nothing.
    coordinator = cluster.coordinator("--insecure")
    ours = cluster.agent("--nnodes", "2", worker(cluster), coordinator=coordinator)
    coordinator.wait_for_run("run", lambda run: run.agents_count == 1)
    async with aio_channel_to(coordinator.address) as channel:
        ask: Any = channel.unary_unary(
            QUERY,
            request_serializer=other.GetRunRequest.SerializeToString,
            response_deserializer=other.GetRunResponse.FromString,
        )
        run = (await ask(other.GetRunRequest(run_id="run", view=2), timeout=DEADLINE_S)).run
        agent = OtherAgent(channel, other)
        await agent.join(run.spec)
        assert (await agent.assigned()).world_size == 2
        for state in (RUNNING, SUCCEEDED):
            await agent.beat(state)
        assert (await agent.verdict()).is_success
    assert await asyncio.to_thread(ours.wait) == 0


class OtherCoordinator:
    """A coordinator of another version with one agent, which it lets run one round."""

    def __init__(self, other: Version) -> None:
        self._other = other
        self.states: list[int] = []

    async def serve(self, _: object, context: Any) -> None:
        self._context = context
        hello = (await context.read()).hello
        assert (hello.run.run_id, hello.local_world_size) == ("run", 1)
        seconds = {"heartbeat_interval": 1, "lease": 5, "reconnect_delay_max": 1}
        pace = self._other.Pace(**{name: {"seconds": s} for name, s in seconds.items()})
        welcome = self._other.made("Welcome", session_id="s", pace=pace, term=7)
        await self._say(welcome=welcome)
        assignment = self._other.made(
            "Assignment",
            group_world_size=1,
            world_size=1,
            role_world_size=1,
            master_addr="127.0.0.1",
            master_port=hello.beat.master_port,
        )
        await self._want(run=assignment)
        await self._heard(RUNNING)
        if self._other.is_later:
            await self._say(later_kind=self._other.Stop(reason="?"))
            await self._want(later_kind=self._other.Stop(reason="?"))
            await self._say(
                run_id="another", desired=self._other.DesiredState(stop={"reason": "?"})
            )
        await self._heard(SUCCEEDED)
        cause = LATER_STATE if self._other.is_later else 1
        verdict = self._other.made("Verdict", is_success=True, cause=cause, reason="all is well")
        await self._want(exit=self._other.made("Exit", verdict=verdict))
        while await context.read() is not grpc.aio.EOF:
            pass

    async def _say(self, **kind: Any) -> None:
        await self._context.write(self._other.made("Directive", **kind))

    async def _want(self, **kind: Any) -> None:
        desired = self._other.made("DesiredState", **kind)
        await self._say(run_id="run", desired=desired)

    async def _heard(self, state: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not self.states or self.states[-1] != state:
                report = await self._context.read()
                self.states.append(report.beat.state)


@asynccontextmanager
async def other_coordinator(other: Version) -> AsyncIterator[tuple[OtherCoordinator, int]]:
    coordinator = OtherCoordinator(other)
    handler = grpc.stream_stream_rpc_method_handler(
        coordinator.serve,
        request_deserializer=other.AgentReport.FromString,
        response_serializer=other.Directive.SerializeToString,
    )
    server = grpc.aio.server()
    service = grpc.method_handlers_generic_handler(
        "drumbeat.v1.AgentService", {"OpenSession": handler}
    )
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield coordinator, port
    finally:
        await server.stop(0)


async def test_our_agent_follows_a_coordinator_of_another_version(
    cluster: Cluster, other: Version
) -> None:
    async with other_coordinator(other) as (coordinator, port):
        address = f"127.0.0.1:{port}"
        options = ("--insecure", "--coordinator", address, "--run-id", "run")
        ours: Agent = cluster.agent(*options, worker(cluster))
        assert await asyncio.to_thread(ours.wait) == 0
    assert coordinator.states[-1] == SUCCEEDED
    assert 4 not in coordinator.states, "what is unknown stopped the workers"
