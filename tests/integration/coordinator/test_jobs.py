"""What operators see of a job with replica groups, and what they ask of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from drumbeat.v1 import common_pb2, session_pb2
from tests.support.operator_commands import Operator
from tests.support.wire import FakeAgent, coordinator, spec


class Job(NamedTuple):
    """A job of three groups: two train, the third one is not there yet."""

    operator: Operator
    agents: list[FakeAgent]


@asynccontextmanager
async def a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Job]:
    async with coordinator(tmp_path) as client:
        agents = []
        for index in range(2):
            of_group = spec()
            group = common_pb2.ReplicaGroup(job="ft", index=index, count=3, groups_min=2)
            of_group.replica_group.CopyFrom(group)
            agent = client.agent(run_id=f"ft.{index}", spec=of_group, host=f"h{index}")
            await agent.join()
            await agent.run()
            agents.append(agent)
        yield Job(Operator(client.port, capsys), agents)


async def test_status_shows_a_job_once_and_its_groups_on_demand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_job(tmp_path, capsys) as job:
        alls = await job.operator("status")
        assert [line.split()[0] for line in alls.out] == ["RUN", "ft"]
        said = "3 groups: 2 running, 1 not there yet"
        assert said in alls.out[1]
        shown = await job.operator("status ft")
        assert shown.out[0] == f"job ft is running: {said}"
        assert "at least 2 groups needed" in shown.out[1]
        assert [line.split()[:2] for line in shown.out[4:]] == [
            ["ft.0", "healthy"],
            ["ft.1", "healthy"],
        ]
        (document,) = (await job.operator("status ft -o json")).documents
        assert (document["run_id"], document["phase"], document["cause"]) == ("ft", "running", None)
        assert [group["run_id"] for group in document["groups"]] == ["ft.0", "ft.1"]
        assert [group["job"] for group in document["groups"]] == ["ft", "ft"]
        (listed,) = (await job.operator("status -o json")).documents
        assert [run["run_id"] for run in listed["runs"]] == ["ft.0", "ft.1"]
        assert [each["run_id"] for each in listed["jobs"]] == ["ft"]
        one = await job.operator("status ft.1")
        assert one.out[0].startswith("run ft.1 is healthy: training")


@pytest.mark.parametrize("verb", ["why", "events", "logs"])
async def test_a_verb_shows_each_group(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_job(tmp_path, capsys) as job:
        done = await job.operator(f"{verb} ft")
        assert done.code == 0
        heads = [line for line in done.out if line in ("ft.0:", "ft.1:")]
        assert heads == ["ft.0:", "ft.1:"]
    if verb == "events":
        assert sum("round_started" in line for line in done.out) == 2


async def test_goodput_of_a_job_is_that_of_all_its_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_job(tmp_path, capsys) as job:
        (whole,) = (await job.operator("goodput ft -o json")).documents
        parts = [
            part
            for index in range(2)
            for part in (await job.operator(f"goodput ft.{index} -o json")).documents[0]["parts"]
        ]
    assert whole["run_id"] == "ft"
    host_s = sum(part["host_s"] for part in whole["parts"])
    assert 0 < host_s <= sum(part["host_s"] for part in parts)
    assert sum(part["time_s"] for part in whole["parts"]) == pytest.approx(whole["whole_s"])


async def test_what_is_meant_for_one_run_names_the_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_job(tmp_path, capsys) as job:
        for line in ("watch ft", "goodput ft --segments", "evidence ft", "verdict ft"):
            done = await job.operator(line)
            assert (done.code, done.out) == (2, []), line
            assert "ft is a job with replica groups: 3 groups: 2 running" in done.err[0]
            assert "name one of its groups: ft.0 and ft.1" in done.err[1]
        unknown = await job.operator("status fx")
        assert (unknown.code, unknown.err[0]) == (2, "coordinator: error: there is no run 'fx'")


async def test_a_job_is_stopped_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with a_job(tmp_path, capsys) as job:
        done = await job.operator("restart ft --grace 0s")
        assert done.out == [
            "coordinator: run ft: 2 replica groups: its next round starts; no restart is charged"
        ]
        for agent in job.agents:
            assert (await agent.run()).round_id == 1
        done = await job.operator("stop ft --grace 0s --reason enough")
        assert done.out == [
            "coordinator: run ft: 2 replica groups: it ends; its workers are being stopped"
        ]
        for agent in job.agents:
            await agent.desired("stop")
            await agent.say(session_pb2.GROUP_STATE_IDLE, workers_alive=0)
            verdict = (await agent.desired("exit")).verdict
            assert verdict.reason.endswith("enough")
        shown = await job.operator("status ft")
        assert shown.out[0].startswith("job ft is ended: 3 groups: 2 stopped, 1 not there yet")
        assert (await job.operator("verdict ft")).out == ["stopped"]
