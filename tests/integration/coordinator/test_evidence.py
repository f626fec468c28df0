"""Archives of evidence: what an operator gets of runs in any state, and how it is refused."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drumbeat.v1 import session_pb2
from tests.support.archives import unpacked
from tests.support.operator_commands import Operator
from tests.support.wire import DEADLINE_S, Client, FakeAgent, coordinator, spec

STACKS = 'Thread 0x1 (most recent call first):\n  File "/home/u/train.py", line 8 in step\n'


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def answer_stacks(client: Client, agent: FakeAgent) -> None:
    """Answer questions for stacks, as an agent does, until cancelled."""
    while True:
        directive = await agent.read()
        asked = directive.collect.stacks if directive.WhichOneof("kind") == "collect" else ()
        for each in asked:
            told = session_pb2.ReportStacksRequest(
                fence=agent.fence, incarnation_key=agent.key, request_id=each.request_id
            )
            for local_rank in each.local_ranks:
                told.workers.add(local_rank=local_rank, pid=100 + local_rank, stacks=STACKS)
            await client.sessions.ReportStacks(told, timeout=DEADLINE_S)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with coordinator(tmp_path / "state") as client:
        yield client


async def test_a_live_run_has_all_parts_and_names_an_agent_that_does_not_answer(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = [
        await client.agent(host="told", spec=spec(2, 2), features=["stacks"]).join(),
        await client.agent(host="old", spec=spec(2, 2), version="0.0.9").join(),
    ]
    await asyncio.gather(*(agent.run() for agent in agents))
    ranks = {each.host: each.seat.rank_first for each in (await client.run()).agents}
    answering = asyncio.create_task(answer_stacks(client, agents[0]))
    target = tmp_path / "found.tar.gz"
    done = await Operator(client.port, capsys)(f"evidence run -o {target}")
    answering.cancel()
    assert (done.code, done.out) == (0, [])
    assert done.err[0] == "coordinator: reading stacks"
    assert done.err[-1] == f"coordinator: {target}: {target.stat().st_size:,} bytes"
    assert target.stat().st_mode & 0o777 == 0o600
    found = unpacked(target)
    (group,) = json.loads(found["stacks.json"])["groups"]
    assert (group["ranks"], group["stacks"]) == ([ranks["told"]], STACKS)
    assert "its agent is of version 0.0.9, which gives no stacks" in found["stacks.txt"]
    assert json.loads(found["status.json"])["phase"] == "running"
    assert [json.loads(line)["kind"] for line in found["events.jsonl"].splitlines()] == [
        "agent_admitted",
        "agent_admitted",
        "round_started",
    ]
    assert json.loads(found["settings.json"])["run"]["agents_min"] == 2
    assert json.loads(found["settings.json"])["coordinator"]["--heartbeat-interval"] == "1s"
    assert json.loads(found["versions.json"])["coordinator_python"].startswith("3.")
    readme = found["README.txt"]
    assert f"stacks: ranks {ranks['old']} gave no stacks; stacks.txt says why" in readme
    assert "report: the run has not ended" in readme
    assert f"logs: ranks {ranks['old']}: its agent is of version 0.0.9" in readme
    assert names_in(tmp_path) == ["found.tar.gz", "state"]


async def test_an_agent_that_is_gone_is_named(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = [
        await client.agent(host=host, spec=spec(2, 2), features=features).join()
        for host, features in (("gone", ["stacks", "logs"]), ("old", []))
    ]
    await asyncio.gather(*(agent.run() for agent in agents))
    gone = next(each.seat.rank_first for each in (await client.run()).agents if each.host == "gone")
    agents[0].call.cancel()

    async with asyncio.timeout(DEADLINE_S):
        while all(agent.is_connected for agent in (await client.run()).agents):
            pass
    target = tmp_path / "x.tgz"
    assert (await Operator(client.port, capsys)(f"evidence run -o {target}")).code == 0
    found = unpacked(target)
    assert (
        f"1 rank ({gone} on gone) gave no stacks: its agent is not connected"
        in (found["stacks.txt"])
    )
    # The run may have given the agent up by then: it is named in any case.
    said = rf"^logs: ranks {gone}: (no lines came|its agent is not connected)$"
    assert re.search(said, found["README.txt"], re.MULTILINE)


async def test_a_run_that_has_ended_has_what_is_kept(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = await client.agent().join()
    await agent.run()
    operator = Operator(client.port, capsys)
    assert (await operator("stop run --reason enough --grace 0")).code == 0
    await agent.desired("stop")
    await agent.say(session_pb2.GROUP_STATE_IDLE, workers_alive=0)
    await agent.desired("exit")
    target = tmp_path / "ended.tgz"
    assert (await operator(f"evidence run -o {target}")).code == 0
    found = unpacked(target)
    assert json.loads(found["report.json"])["reason"].endswith("enough")
    assert "logs: run 'run' has no output that the coordinator has kept" in found["README.txt"]
    assert "stacks: run 'run' has ended: its workers are gone" in found["README.txt"]
    assert "stacks.txt" not in found


async def test_an_unknown_run_leaves_no_file(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = Operator(client.port, capsys)
    for run_id in ("mt6", "../x"):
        done = await operator(f"evidence {run_id} -o {tmp_path}/x.tgz")
        assert (done.code, done.out) == (2, [])
        assert done.err[0] == f"coordinator: error: there is no run '{run_id}'"
    assert names_in(tmp_path) == ["state"]


async def test_a_file_is_replaced_only_with_force(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await (await client.agent().join()).run()
    operator, target = Operator(client.port, capsys), tmp_path / "x.tgz"
    target.write_text("mine")
    done = await operator(f"evidence run -o {target}")
    assert (done.code, done.err) == (
        2,
        [
            f"coordinator: error: {target} is there already",
            "coordinator: hint: name another file with -o, or replace this one with --force",
        ],
    )
    assert target.read_text() == "mine"
    assert (await operator(f"evidence run -o {target} --force")).code == 0
    assert "README.txt" in unpacked(target)


async def test_a_directory_that_is_not_there_is_a_sentence(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await (await client.agent().join()).run()
    target = tmp_path / "none" / "x.tgz"
    done = await Operator(client.port, capsys)(f"evidence run -o {target}")
    problem = f"coordinator: error: {target} cannot be written: No such file or directory"
    assert (done.code, done.err) == (1, [problem])


async def test_a_full_disk_is_a_sentence_and_leaves_nothing(client: Client, tmp_path: Path) -> None:
    await (await client.agent().join()).run()
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ("unshare", "--mount", "sh", "-c")
    small = f"mount -t tmpfs -o size=4k t {disk} && "
    if subprocess.run(  # noqa: ASYNC221 - it is over at once
        [*mounting, f"{small} true"], check=False, capture_output=True
    ).returncode:
        pytest.skip("this process may mount nothing")
    fill = f"head -c 3000 /dev/zero > {disk}/fill; "
    argv = f"{sys.executable} -m drumbeat coordinator evidence run -o {disk}/x.tgz --insecure"
    asked = f"{argv} --coordinator 127.0.0.1:{client.port}; echo $?; ls -A {disk}"
    process = await asyncio.create_subprocess_exec(
        *mounting,
        f"{small}{fill}{asked}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "DRUMBEAT_TOKEN": ""},
    )
    async with asyncio.timeout(DEADLINE_S):
        out, err = await process.communicate()
    assert out.decode().split() == ["1", "fill"], err.decode()
    problem = f"coordinator: error: {disk}/x.tgz cannot be written: No space left on device"
    assert err.decode().splitlines()[-1] == problem
    assert "Traceback" not in err.decode()


async def test_a_thousand_ranks_are_bounded(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = [
        await client.agent(
            host=f"h{i}", local_world_size=250, spec=spec(4, 4), features=["stacks"]
        ).join()
        for i in range(4)
    ]
    await asyncio.gather(*(agent.run() for agent in agents))
    answering = [asyncio.create_task(answer_stacks(client, agent)) for agent in agents]
    target = tmp_path / "big.tgz"
    assert (await Operator(client.port, capsys)(f"evidence run -o {target}")).code == 0
    for task in answering:
        task.cancel()
    found = unpacked(target)
    (group,) = json.loads(found["stacks.json"])["groups"]
    assert group["ranks"] == list(range(1000))
    (left_out,) = [line for line in found["README.txt"].splitlines() if "left out" in line]
    assert left_out.startswith("logs: 936 ranks left out, at most 64 are read: ")
    assert target.stat().st_size < 200_000
