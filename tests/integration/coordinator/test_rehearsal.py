"""A rehearsal over gRPC: what an operator may ask for, and what an agent is told."""

import re
from pathlib import Path

import pytest

from drumbeat.v1 import common_pb2, query_pb2, session_pb2
from tests.support.operator_commands import Operator
from tests.support.wire import DEADLINE_S, FakeAgent, coordinator

PAGE = (Path(__file__).parents[3] / "docs/rehearsals.md").read_text()
SENTENCES = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
WORKER = "run --faults worker --now --at-most 1 --seed 2"


async def order_of(agent: FakeAgent) -> session_pb2.InjectFault:
    """Return the next fault that an agent is told."""
    while True:
        answer = await agent.read()
        if answer.WhichOneof("kind") == "fault":
            order: session_pb2.InjectFault = answer.fault
            return order


async def test_an_agent_is_told_of_a_fault_and_its_refusal_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path, allow_rehearsals=True) as client:
        operator = Operator(client.port, capsys)
        agent = await client.agent(features=["rehearsals"]).join()
        await agent.run()
        begun = await operator(f"rehearse {WORKER} --detach")
        assert (begun.code, begun.err) == (0, [])
        assert begun.out == [
            "coordinator: run run: 1 fault, one about every 10 min, the first now; seed 2"
        ]
        order = await order_of(agent)
        assert (order.number, order.round_id) == (1, 0)
        assert (order.kind, order.local_rank) == (common_pb2.FAULT_KIND_WORKER, 0)
        assert (await operator(f"rehearse {WORKER} --detach")).code == 2, "one at a time"
        agent.beat.fault.number, agent.beat.fault.refusal = 1, "worker 0 of this host has ended"
        await agent.say(session_pb2.GROUP_STATE_RUNNING)
        request = query_pb2.GetRehearsalRequest(run_id="run")
        while (await client.runs.GetRehearsal(request, timeout=DEADLINE_S)).is_running:
            await agent.say(session_pb2.GROUP_STATE_RUNNING)
        shown = await operator("rehearse run --report")
        assert shown.code == 0
        assert shown.text.endswith("no fault was injected, 1 could not be")
        ended = await operator("rehearse run --stop -o json")
        assert ended.documents[0]["is_new"] is False
        report = await operator("rehearse run --report -o json")
        named = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", SENTENCES))))
        (document,) = report.documents
        assert document["faults"][0]["outcome"] == "not_injected"
        keys = {*document, *document["faults"][0], *ended.documents[0]} - {"is_new", "outcome"}
        assert sorted(keys - named) == []
        agent.call.cancel()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--faults worker,host", "--faults"),
        ("--at-most 51", "--at-most"),
        ("--pause 2h", "--pause"),
        ("--every 0", "--every"),
    ],
)
async def test_what_can_not_be_rehearsed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, problem: str
) -> None:
    async with coordinator(tmp_path, allow_rehearsals=True) as client:
        done = await Operator(client.port, capsys)(f"rehearse run {options}")
        assert done.code == 2
        assert problem in "".join(done.err)


async def test_a_run_that_was_never_rehearsed_has_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        operator = Operator(client.port, capsys)
        agent = await client.agent().join()
        done = await operator("rehearse run --report")
        assert (done.code, done.err[0]) == (
            2,
            "coordinator: error: there is no run 'run' that was rehearsed",
        )
        refused = await operator("rehearse run")
        assert refused.code == 2
        assert "`coordinator serve --allow-rehearsals` allows that" in refused.err[0]
        agent.call.cancel()
