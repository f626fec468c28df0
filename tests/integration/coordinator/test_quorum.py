"""Quorums of replica groups over the wire, with a journal on disk."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from drumbeat.torchft import lighthouse_pb2
from drumbeat.v1 import common_pb2, session_pb2
from drumbeat.wire.messages import MEMBER_BYTES_MAX
from tests.support.wire import Client, FakeAgent, Raw, Refused, coordinator, spec


class Replica(Raw):
    """The call of one agent, whose replica has the name of its host."""

    def __init__(self, client: Client, agent: FakeAgent, **first: Any) -> None:
        super().__init__(client.sessions.JoinQuorum())
        self.name, self.number, self.agent = agent.hello.host, 0, agent
        self.first = {"fence": agent.fence, "incarnation_key": agent.key, **first}

    async def tell(self, **fields: Any) -> None:
        first, self.first = self.first, {}
        given = {"replica_id": self.name, **first, **fields}
        await self.send(session_pb2.JoinQuorumRequest(**given))

    async def ask(self, **fields: Any) -> None:
        self.number += 1
        member = lighthouse_pb2.QuorumMember(replica_id=self.name, step=self.number, **fields)
        await self.tell(number=self.number, member=member)

    async def quorum(self) -> tuple[int, list[str], session_pb2.JoinQuorumResponse]:
        """Return the id, the members and the answer."""
        answer = await self.read()
        assert answer.number == self.number
        quorum = lighthouse_pb2.LighthouseQuorumResponse.FromString(answer.response).quorum
        return quorum.quorum_id, [each.replica_id for each in quorum.participants], answer


def group_spec(index: int, groups_min: int) -> common_pb2.RunSpec:
    group = common_pb2.ReplicaGroup(job="ft", index=index, count=2, groups_min=groups_min)
    return spec(1, 1, replica_group=group, restarts_max=9)


async def joined(client: Client, index: int, groups_min: int = 2) -> FakeAgent:
    given = group_spec(index, groups_min)
    agent = await client.agent(host=f"host{index}", run_id=f"ft.{index}", spec=given).join()
    await agent.run()
    return agent


async def two(client: Client, groups_min: int = 2) -> list[Replica]:
    """Return two replicas that have had a quorum."""
    replicas = [Replica(client, await joined(client, index, groups_min)) for index in range(2)]
    for replica in replicas:
        await replica.ask()
    for replica in replicas:
        assert (await replica.quorum())[:2] == (1, ["host0", "host1"])
    return replicas


async def test_two_groups_get_one_quorum_again_and_again(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        replicas = await two(client)
        for _ in range(3):
            for replica in replicas:
                await replica.ask()
            answers = [await replica.quorum() for replica in replicas]
            assert [answer[:2] for answer in answers] == 2 * [(1, ["host0", "host1"])]
            assert answers[0][2].response == answers[1][2].response
            assert list(answers[0][2].numbers) == [replica.number for replica in replicas]


async def test_a_group_whose_worker_failed_is_out_before_any_timeout(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        replicas = await two(client, groups_min=1)
        await replicas[0].ask()
        await replicas[1].agent.say(session_pb2.GROUP_STATE_FAILED, workers_alive=0)
        assert (await replicas[0].quorum())[:2] == (2, ["host0"])
        refused = await replicas[1].refused()
        assert refused.reason == "STALE_SESSION"
        assert "failed" in refused.details


async def test_a_coordinator_that_starts_again_goes_on_with_the_quorum(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        before = await two(client)
    async with coordinator(tmp_path) as client:
        replicas = []
        for old in before:
            agent = old.agent
            again = client.agent(
                host=old.name,
                run_id=agent.fence.run_id,
                spec=agent.hello.run.spec,
                incarnation_key=agent.key,
            )
            again.fence.round_id = agent.fence.round_id
            again.hello.beat.state = session_pb2.GROUP_STATE_RUNNING
            await again.join()
            replicas.append(Replica(client, again))
            replicas[-1].number = old.number
        for replica in replicas:
            await replica.ask()
        for replica in replicas:
            assert (await replica.quorum())[:2] == (1, ["host0", "host1"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"replica_id": ""}, "replica_id: '' is given, allowed is 1 to 256"),
        ({"replica_id": "x" * 257}, "1 to 256 bytes"),
        (
            {"number": 1, "member": lighthouse_pb2.QuorumMember(replica_id="other")},
            "member.replica_id: 'other' is given, allowed is 'host0'",
        ),
        (
            {
                "number": 1,
                "member": lighthouse_pb2.QuorumMember(
                    replica_id="host0", data="x" * MEMBER_BYTES_MAX
                ),
            },
            "allowed is at most 4096 bytes",
        ),
    ],
)
async def test_what_an_agent_may_not_say_ends_its_call(
    tmp_path: Path, change: dict[str, Any], text: str
) -> None:
    async with coordinator(tmp_path) as client:
        replica = Replica(client, await joined(client, 0))
        await replica.tell(**change)
        refused = await replica.refused()
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        assert text in refused.details


async def test_only_an_agent_of_the_round_joins(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        agent = await joined(client, 0)
        for fence in (
            common_pb2.Fence(run_id="ft.1", round_id=0, incarnation=agent.incarnation),
            common_pb2.Fence(run_id="ft.0", round_id=1, incarnation=agent.incarnation),
            common_pb2.Fence(run_id="ft.0", round_id=0, incarnation="another"),
        ):
            replica = Replica(client, agent, fence=fence)
            await replica.tell()
            assert (await replica.refused()).reason == "STALE_SESSION"


async def test_a_later_call_of_an_agent_replaces_the_earlier_one(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        replicas = await two(client)
        again = Replica(client, replicas[0].agent)
        again.number = replicas[0].number
        await again.ask()
        assert (await replicas[0].refused()).reason == "SESSION_REPLACED"
        await replicas[1].ask()
        assert (await again.quorum())[:2] == (1, ["host0", "host1"])


async def test_a_message_that_cannot_be_read_ends_the_call(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        raw = client.raw("/drumbeat.v1.AgentService/JoinQuorum")
        await raw.send(b"\xff")
        refused = await raw.refused()
        assert refused == Refused(grpc.StatusCode.INVALID_ARGUMENT, refused.details, "INVALID")
