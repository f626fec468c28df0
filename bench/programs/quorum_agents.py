"""Agents of replica groups: ``quorum_agents.py COORDINATOR TOKEN_FILE GROUPS QUORUMS``.

Each has a session with a call for quorums, and a lighthouse. The replicas are threads of a child,
which prints what they measure. An empty TOKEN_FILE is for a coordinator without authentication.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc.aio

from bench.programs import quorum_clients
from bench.scale.fake_agents import FakeAgent, Fleet, run_spec
from bench.ways import Access
from drumbeat.access.client import Metadata, credentials
from drumbeat.agent.lighthouse.endpoint import LighthouseEndpoint
from drumbeat.agent.lighthouse.relay import QuorumRelay
from drumbeat.agent.session.grpc_transport import converse
from drumbeat.agent.session.transport import Replicas, TakeQuorum
from drumbeat.v1 import common_pb2, session_pb2_grpc


async def serve(fleet: Fleet, metadata: Metadata, index: int, count: int) -> str:
    """Begin one group; return the URL of its lighthouse."""
    spec, run_id = run_spec(1), f"bench.{index}"
    spec.replica_group.CopyFrom(
        common_pb2.ReplicaGroup(job="bench", index=index, count=count, groups_min=count)
    )
    agent, channel = FakeAgent(index, spec, run_id), fleet.connect()
    tasks.append(asyncio.ensure_future(agent.live(lambda _: channel, metadata, connecting)))
    await agent.assigned_at
    relay = QuorumRelay(run_id, agent.identity)

    async def join_quorum(requests: Replicas, take: TakeQuorum) -> None:
        stub: Any = session_pb2_grpc.AgentServiceStub(channel)
        await converse(stub.JoinQuorum(metadata=metadata), requests, take)

    connection: Any = SimpleNamespace(join_quorum=join_quorum)
    tasks.append(asyncio.ensure_future(relay.run(connection)))
    endpoint = LighthouseEndpoint(relay)
    url = await endpoint.start()
    endpoint.begin_round(0)
    return url


async def main(coordinator: str, token_file: str, count: int, quorums: str) -> None:
    access = Access(token_file=token_file) if token_file else Access(insecure=True)
    used = credentials(access, coordinator)
    fleet = Fleet(coordinator, count, credentials=used)
    begun = partial(serve, fleet, used.metadata, count=count)
    urls = await asyncio.gather(*(begun(index=index) for index in range(count)))
    clients = await asyncio.create_subprocess_exec(
        sys.executable, quorum_clients.__file__, quorums, *urls
    )
    sys.exit(await clients.wait())


tasks: list[asyncio.Future[None]] = []  # that live as long as this process
connecting = asyncio.Semaphore(64)

if __name__ == "__main__":
    grpc.aio.init_grpc_aio()
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
