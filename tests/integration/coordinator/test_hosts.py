"""A host over all runs: its agents, what its GPUs do, its drains and what it was to blame for."""

from pathlib import Path

import pytest

from drumbeat.v1 import session_pb2
from tests.integration.coordinator.test_looking import RUNNING
from tests.support.operator_commands import Operator
from tests.support.wire import coordinator


async def test_a_host_is_shown_with_its_runs_failures_gpus_and_drains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        operator = Operator(client.port, capsys)
        one, other = client.agent(host="alice"), client.agent(host="bob", run_id="other")
        for agent in (one, other):
            await agent.join()
            await agent.run()
        one.beat.gpus.CopyFrom(
            session_pb2.GpuUse(
                utilization=[0.5, 2.0],
                memory_used_bytes=[2**30, 0],
                memory_bytes=[2**31, 2**31],
                power_watts=[300.0],
            )
        )
        await one.say(RUNNING)
        assert await client.report(one.failure(1)) == [True]
        await operator("drain alice --reason memory --run-id elsewhere")
        host = (await operator("host alice -o json")).documents[0]
        (run,) = host["runs"]
        assert (run["run_id"], run["health"]) == ("run", "healthy")
        (agent,) = run["agents"]
        assert agent["name"] == "alice"
        assert [worker["rank"] for worker in agent["workers"]] == [0]
        # Of two GPUs one tells less than the other: what is not complete is left out.
        assert agent["gpus"] == {
            "utilization": [0.5],
            "memory_used_bytes": [2**30],
            "memory_bytes": [2**31],
            "power_watts": [300.0],
        }
        assert [drain["run_id"] for drain in host["drains"]] == ["elsewhere"]
        text = (await operator("host alice")).text
        assert "drained from elsewhere by" in text
        assert "50.0%" in text
        assert "other" not in text
        unknown = await operator("host carol")
        assert (unknown.code, unknown.out) == (2, [])
        assert "no run knows of a host 'carol'" in unknown.err[0]
