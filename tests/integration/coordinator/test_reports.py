"""What a failing run tells of its failures, over a real connection."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drumbeat.coordinator.limits import Limits
from drumbeat.v1 import query_pb2, session_pb2
from tests.support.wire import Client, coordinator


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with coordinator(tmp_path) as client:
        yield client


async def test_an_explanation_is_told_and_an_over_long_one_is_cut(client: Client) -> None:
    agent = await client.agent().join()
    await agent.run()
    long = "why " * 20_000
    assert await client.report(agent.failure(1, explanation=long)) == [True]
    await agent.say(session_pb2.GROUP_STATE_FAILED, workers_alive=0, failures_written=1)
    end = await agent.desired("exit")
    assert (end.is_report_cut, end.shows_report, end.generation) == (True, True, 1)
    whole = await client.runs.GetReport(query_pb2.GetReportRequest(run_id="run"))
    (cause,) = whole.verdict.report.root_causes
    assert cause.explanation == long[: len(cause.explanation)]
    assert 0 < len(cause.explanation) <= Limits().failure_message_bytes_max
