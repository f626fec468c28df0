"""Operators steer runs of a coordinator, by command, while an agent listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drumbeat.v1 import failure_pb2, session_pb2
from tests.integration.coordinator.test_operators import Operator
from tests.support.wire import coordinator

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_a_run_is_restarted_stopped_and_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        operator = Operator(client.port, capsys)
        agent = await client.agent().join()
        assert (await agent.run()).round_id == 0

        done = await operator("restart run --reason update")
        assert (done.code, done.err) == (0, [])
        assert done.out == [
            "coordinator: run run: its next round starts now; no restart is charged"
        ]
        again = await agent.run()
        assert (again.round_id, again.restarts_used) == (1, 0)
        assert again.reason == "restarted by the operator: update"

        refused = await operator("forget run")
        assert (refused.code, refused.out) == (2, [])
        assert "run 'run' lives, in the phase RUNNING; `coordinator stop run`" in refused.err[0]

        done = await operator("stop run --reason over")
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


async def test_what_cannot_be_is_refused_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        operator = Operator(client.port, capsys)
        for verb in ("stop", "restart", "forget"):
            done = await operator(f"{verb} nope")
            assert (done.code, done.out) == (2, [])
            assert "there is no run 'nope'" in done.err[0]
        done = await operator(f"stop nope --reason {'x' * 300}")
        assert done.code == 2
        assert "--reason" in done.err[0]
