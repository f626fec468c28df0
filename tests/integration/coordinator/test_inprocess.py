"""Restarts in process over a real connection, and over the death of the coordinator."""

from pathlib import Path
from typing import Any

from google.protobuf.duration_pb2 import Duration

from drumbeat.v1 import inprocess_pb2, session_pb2
from drumbeat.worker.v1 import iteration_pb2
from tests.support.status import kind
from tests.support.wire import Client, FakeAgent, coordinator, spec

RUNNING = session_pb2.GROUP_STATE_RUNNING
ENTERED = inprocess_pb2.INPROCESS_STEP_ENTERED
INTERRUPTED = inprocess_pb2.INPROCESS_STEP_INTERRUPTED
COMPLETED = inprocess_pb2.INPROCESS_STEP_COMPLETED
EXCEPTION = iteration_pb2.INTERRUPTION_KIND_EXCEPTION
SPEC = iteration_pb2.InprocessSpec(
    rules=[iteration_pb2.RankRule(shift=iteration_pb2.ShiftRanks())],
    barrier_timeout=Duration(seconds=60),
    completion_timeout=Duration(seconds=60),
)


async def a_round(client: Client, *hosts: str, **identity: Any) -> list[FakeAgent]:
    """Return the agents of a round that runs on these hosts."""
    size = len(hosts)
    agents = [
        await client.agent(
            host=host, address=f"10.0.0.{at}", spec=spec(size, size), **identity
        ).join()
        for at, host in enumerate(hosts)
    ]
    for agent in agents:
        await agent.run()
    return agents


async def report(
    agent: FakeAgent, iteration: int, step: inprocess_pb2.InprocessStep.ValueType, **fields: Any
) -> None:
    """Let an agent say what its workers do in an iteration."""
    if step == ENTERED:
        fields.setdefault("spec", SPEC)
    message = inprocess_pb2.InprocessReport(iteration=iteration, step=step, **fields)
    agent.beat.inprocess.CopyFrom(message)
    await agent.say(RUNNING)


async def directive(agent: FakeAgent, kind: str) -> inprocess_pb2.InprocessDirective:
    """Return the next directive of this kind, passing over other words."""
    while True:
        answer = await agent.read()
        if answer.WhichOneof("kind") != "inprocess":
            continue
        message: inprocess_pb2.InprocessDirective = answer.inprocess
        if message.WhichOneof("kind") == kind:
            return message


async def again(client: Client, agent: FakeAgent) -> FakeAgent:
    """Return the same agent with a session of a coordinator that came back."""
    back = client.agent(incarnation=agent.incarnation)
    back.hello.CopyFrom(agent.hello)
    back.hello.beat.CopyFrom(agent.beat)
    back.beat.CopyFrom(agent.beat)
    back.fence.round_id = agent.fence.round_id
    return await back.join()


async def test_an_iteration_from_its_first_word_to_its_last(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        a, b = await a_round(client, "alice", "bob", local_world_size=2)
        await report(a, 0, ENTERED)
        await report(b, 0, ENTERED)
        begun = await directive(b, "begin")
        assert (begun.round_id, begun.iteration) == (0, 0)
        assert [(seat.local_rank, seat.rank) for seat in begun.begin.seats] == [(0, 2), (1, 3)]
        place = (await directive(a, "begin")).begin
        assert (place.master_addr, place.master_port) == ("10.0.0.0", 4001)
        a.beat.master_port = 4002
        fault = iteration_pb2.Interruption(local_rank=1, kind=EXCEPTION, message="oh")
        await report(b, 0, INTERRUPTED, interruptions=[fault])
        told = await directive(a, "interrupt")
        assert told.interrupt.reason == (
            "iteration 0 was interrupted: rank 3 on bob: EXCEPTION: oh"
        )
        await report(a, 1, ENTERED)
        await report(b, 1, ENTERED)
        assert (await directive(b, "begin")).begin.master_port == 4002
        for agent in (a, b):
            await report(agent, 1, COMPLETED)
        assert (await directive(a, "complete")).iteration == 1
        run = await client.run()
        assert (run.HasField("iteration"), run.iteration, run.iterations_restarted) == (True, 1, 1)
        assert [kind(event) for event in run.history[-4:]] == [
            "iteration began",
            "iteration interrupted",
            "iteration began",
            "iteration completed",
        ]


async def test_a_begin_that_was_journaled_is_told_again_by_the_next_coordinator(
    tmp_path: Path,
) -> None:
    async with coordinator(tmp_path) as client:
        a, b = await a_round(client, "alice", "bob")
        await report(a, 0, ENTERED)
        await report(b, 0, ENTERED)
        begun = await directive(b, "begin")
    async with coordinator(tmp_path) as client:
        b = await again(client, b)
        assert await directive(b, "begin") == begun
        a = await again(client, a)
        await directive(a, "begin")
        await report(a, 0, COMPLETED)
        await report(b, 0, COMPLETED)
        await directive(b, "complete")


async def test_a_report_that_cannot_be_costs_nothing(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        (agent,) = await a_round(client, "alice")
        await report(agent, 0, 99)  # type: ignore[arg-type]
        await report(agent, 0, ENTERED, groups=["x", "y"], ahead=[7])
        await directive(agent, "begin")
