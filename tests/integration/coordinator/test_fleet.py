"""A thousand agents that come in one instant."""

from pathlib import Path

import pytest

from bench.scale.fake_agents import Fleet
from drumbeat.v1 import query_pb2, session_pb2
from tests.support.wire import coordinator

COUNT = 1_000


@pytest.mark.slow
async def test_a_thousand_agents_in_one_instant_are_all_seated(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        async with Fleet(f"127.0.0.1:{client.port}", COUNT, run_id="run") as fleet:
            await fleet.time_to_assign()
            run = await client.run()
            assert run.phase == query_pb2.RUN_PHASE_RUNNING
            assert (run.round_id, run.restart_count) == (0, 0)
            assert len(run.agents) == COUNT
            assert [agent.seat.group_rank for agent in run.agents] == list(range(COUNT))
            assert [agent.seat.rank_first for agent in run.agents] == list(range(COUNT))
            assert len({agent.host for agent in run.agents}) == COUNT
            assert all(agent.HasField("seat") for agent in run.agents)
        assert await client.is_serving()
        # A run of its own goes on beside the wreck of the large one.
        agent = await client.agent(run_id="small").join()
        await agent.run()
        await agent.say(session_pb2.GROUP_STATE_SUCCEEDED, workers_alive=0)
        assert (await agent.desired("exit")).verdict.is_success
