"""Operators steer runs of a coordinator, by command, while an agent listens."""

import asyncio
from pathlib import Path

import grpc
import pytest

from drumbeat.v1 import control_pb2, failure_pb2, session_pb2
from tests.support.operator_commands import Operator
from tests.support.waiting import MS
from tests.support.wire import DEADLINE_S, Client, coordinator


async def test_a_run_is_restarted_stopped_and_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        operator = Operator(client.port, capsys)
        agent = await client.agent().join()
        assert (await agent.run()).round_id == 0

        done = await operator("restart run --reason update --grace 0")
        assert (done.code, done.err) == (0, [])
        assert done.out == ["coordinator: run run: its next round starts; no restart is charged"]
        again = await agent.run()
        assert (again.round_id, again.restarts_used) == (1, 0)
        assert again.reason == "restarted by the operator: update"

        refused = await operator("forget run")
        assert (refused.code, refused.out) == (2, [])
        assert "run 'run' lives, in the phase RUNNING; `coordinator stop run`" in refused.err[0]

        done = await operator("stop run --reason over --grace 0")
        assert done.out == ["coordinator: run run: it ends; its workers are being stopped"]
        assert (await agent.desired("stop")).reason == "stopped by the operator: over"
        await agent.say(session_pb2.GROUP_STATE_IDLE, workers_alive=0)
        verdict = (await agent.desired("exit")).verdict
        assert verdict.cause == failure_pb2.VERDICT_CAUSE_STOPPED
        assert (await operator("stop run")).out == [
            "coordinator: run run: it has ended already: stopped by the operator: over"
        ]
        assert (await operator("restart run")).code == 2
        await agent.call.done_writing()
        agent.call.cancel()


async def test_a_drained_host_is_listed_and_kept_out_until_it_is_let_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        operator = Operator(client.port, capsys)
        first = await client.agent(host="gpu7").join()
        await first.run()
        done = await operator("drain gpu7 --reason memory --grace 0")
        assert done.out == [
            "coordinator: gpu7: 1 agent left; those that come wait until `coordinator undrain`"
        ]
        released = await first.desired("release")
        assert released.is_drained
        assert released.reason == "drained by the operator: memory"
        first.call.cancel()

    async with coordinator(tmp_path) as client:  # on the same journal
        operator = Operator(client.port, capsys)
        heads, row = (await operator("drains")).out
        assert heads.split() == ["NAME", "RUN", "AGE", "LEFT", "BY", "REASON"]
        assert [row.split()[0], row.split()[-1]] == ["gpu7", "memory"]
        again = client.agent(host="gpu7")
        again.hello.beat.master_port = again.beat.master_port = 4100  # the other one is used
        await again.join()
        assert "`coordinator undrain gpu7`" in (await again.desired("standby")).reason
        assert (await operator("undrain gpu7")).code == 0
        await again.run()
        assert len((await operator("drains")).out) == 1
        again.call.cancel()


@pytest.mark.parametrize(
    ("name", "there"),
    [("gpu8", "; there is gpu7"), ("elsewhere", "; there are gpu7 and lone")],
)
async def test_a_drain_of_an_unknown_name_warns_and_names_those_that_are_close_or_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, there: str
) -> None:
    async with coordinator(tmp_path) as client:
        operator = Operator(client.port, capsys)
        warning = f"coordinator: warning: no agent or host is called {name} now"
        undo = f"`coordinator undrain {name}` takes the drain back"
        assert (await operator(f"drain {name}")).err == [f"{warning}; {undo}"]
        await operator(f"undrain {name}")
        agents = [client.agent(incarnation=each, host=each) for each in ("gpu7", "lone")]
        for agent in agents:
            await agent.join()
        done = await operator(f"drain {name}")
        assert (done.code, done.err) == (0, [f"{warning}{there}; {undo}"])
        assert (await operator("undrain gpu")).err == [f"coordinator: drained is {name}"]
        assert (await operator("drain lone")).err == []
        for agent in agents:
            agent.call.cancel()


async def test_a_repeated_request_to_forget_is_recognized_after_a_restart(tmp_path: Path) -> None:
    request = control_pb2.ForgetRunRequest(run_id="run", request_id="once")
    async with coordinator(tmp_path) as client:
        agent = await client.agent().join()
        await agent.run()
        await agent.say(session_pb2.GROUP_STATE_SUCCEEDED, workers_alive=0, workers_done=1)
        await agent.desired("exit")
        await agent.call.done_writing()
        agent.call.cancel()
        async with asyncio.timeout(DEADLINE_S):
            while not await _is_forgotten(client, request):  # noqa: ASYNC110 - over the network
                await asyncio.sleep(20 * MS)
    async with coordinator(tmp_path) as client:  # on the same journal
        assert not (await client.control.ForgetRun(request)).is_new
        request.request_id = "another"
        with pytest.raises(grpc.aio.AioRpcError, match="there is no run 'run'"):
            await client.control.ForgetRun(request)


async def _is_forgotten(client: Client, request: control_pb2.ForgetRunRequest) -> bool:
    """Ask, unless its agent is still to be told."""
    try:
        return bool((await client.control.ForgetRun(request)).is_new)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            return False
        raise
