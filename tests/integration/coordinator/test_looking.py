"""The commands that show what a coordinator knows of its runs."""

import asyncio
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from drumbeat.coordinator.command.looking import screens
from drumbeat.v1 import control_pb2, failure_pb2, query_pb2, session_pb2
from drumbeat.v1.failure_pb2 import HostMemory, WorkerMemory
from tests.support.operator_commands import Operator
from tests.support.wire import Client, FakeAgent, coordinator, spec

DOCS = Path(__file__).parents[3] / "docs"
RUNNING = session_pb2.GROUP_STATE_RUNNING


async def two_hosts(client: Client) -> list[FakeAgent]:
    """Let two hosts with two workers each run, of which rank 2 is behind."""
    agents = [
        await client.agent(
            incarnation=name,
            host=name,
            local_world_size=2,
            spec=spec(2, 2, restarts_max=3),
        ).join()
        for name in ("alice", "bob\x1b[2J")
    ]
    await asyncio.gather(*(agent.run() for agent in agents))
    for agent, steps in zip(agents, ((7, 7), (3, 7)), strict=True):
        for local_rank, step in enumerate(steps):
            agent.beat.workers.add(
                local_rank=local_rank,
                step=step,
                step_time=Duration(nanos=250_000_000),
                heartbeat_age=Duration(seconds=10),
                progress_age=Duration(seconds=10),
            )
        agent.beat.pids.extend([100, 0])
        agent.beat.memory.CopyFrom(
            HostMemory(
                workers=[
                    WorkerMemory(local_rank=1, resident_bytes=7, growth_bytes=5),
                    WorkerMemory(local_rank=1, resident_bytes=7, growth_bytes=5),
                ],
                used_bytes=14,
                limit_bytes=16,
                is_cgroup=True,
            )
        )
        await agent.say(RUNNING)
        del agent.beat.pids[:]
        await agent.say(RUNNING)
        assert await client.report(agent.failure(1)) == [True]  # the beats were read
    return agents


async def test_a_run_is_shown_with_its_workers_and_who_is_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        await two_hosts(client)
        code, lines, err = await Operator(client.port, capsys)("status run")
        assert (code, err) == (0, [])
        out = "\n".join(lines)
        assert lines[0].startswith("run run is healthy: training, round 0 for ")
        assert lines[1].startswith("round 0; restarts 0 of 3 used; 2 agents; world size 4")
        assert lines[2] == "behind: rank 2 on bob\\x1b[2J at step 3"
        assert lines[4].split()[:4] == ["RANK", "AGENT", "HOST", "STATE"]
        rows = [line.split() for line in lines[5:9]]
        assert [(row[0], row[3], row[5], row[6]) for row in rows] == [
            ("0", "running", "7", "250ms"),
            ("1", "running", "7", "250ms"),
            ("2", "running", "3", "250ms"),
            ("3", "running", "7", "250ms"),
        ]
        assert "round_started" in out
        assert out.replace("\n", "").isprintable(), "nothing of it acts on a terminal"
        assert not any(line.endswith(" ") for line in lines)


async def test_the_documents_are_those_of_the_docs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        await two_hosts(client)
        status = (await Operator(client.port, capsys)("status run -o json")).documents[0]
        runs = (await Operator(client.port, capsys)("status --output json")).documents[0]
    assert [run["run_id"] for run in runs["runs"]] == ["run"]
    assert set(runs["runs"][0]) < set(status)
    assert {key: status[key] for key in ("run_id", "phase", "round_id", "restarts_used")} == {
        "run_id": "run",
        "phase": "running",
        "round_id": 0,
        "restarts_used": 0,
    }
    alice, bob = sorted(status["agents"], key=lambda agent: str(agent["name"]))
    assert (alice["name"], alice["host"], alice["state"]) == ("alice", "alice", "running")
    assert {alice["group_rank"], bob["group_rank"]} == {0, 1}
    assert 0 <= alice["silence_s"] < 60
    (worker, other) = alice["workers"]
    assert (worker["local_rank"], worker["step"], worker["step_time_s"]) == (0, 7, 0.25)
    assert (worker["pid"], other["pid"]) == (100, None)
    assert (worker["memory_bytes"], other["memory_bytes"]) == (None, 7)
    assert (worker["memory_growth_bytes"], other["memory_growth_bytes"]) == (0, 5)
    assert alice["memory"] == {"used_bytes": 14, "limit_bytes": 16, "is_cgroup": True}
    ranks = [agent["workers"][1]["rank"] for agent in (alice, bob)]
    assert [each["rank"] for each in status["memory_growth"]] == sorted(ranks)
    assert [event["kind"] for event in status["events"]][-1] == "round_started"
    page = (DOCS / "operating.md").read_text()
    for document in (status, alice, worker, status["events"][0], status["memory_growth"][0]):
        assert [key for key in document if f"`{key}`" not in page] == []


async def test_a_run_has_the_labels_of_its_first_agent_and_links_made_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    links = ("logs=https://logs.example/{run_id}/{label.owner}", "rack=https://h/?r={label.rack}")
    async with coordinator(tmp_path, link=links) as client:
        labels = {"owner": "anna b"}
        first = await client.agent(labels=labels).join()
        await first.run()
        await client.agent(labels={"rack": "b7"}, host="bob").join()
    async with coordinator(tmp_path, link=links) as client:
        operator = Operator(client.port, capsys)
        status = (await operator("status run -o json")).documents[0]
        assert status["labels"] == labels
        url = "https://logs.example/run/anna%20b"
        assert status["links"] == [{"name": "logs", "url": url}]
        assert f"logs: {url}" in (await operator("status run")).out
        assert (await operator("status -o json")).documents[0]["runs"][0]["labels"] == labels


async def test_agents_without_a_place_are_shown_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        hosts = {name: client.agent(host=name) for name in ("alice", "bob", "carol")}
        await hosts["alice"].join()
        await hosts["alice"].run()
        await hosts["bob"].join()
        await Operator(client.port, capsys)("drain carol --reason memory")
        await hosts["carol"].join()
        document = (await Operator(client.port, capsys)("status run -o json")).documents[0]
        seated, standby, drained = document["agents"]
        assert (seated["name"], seated["waiting_reason"]) == ("alice", None)
        assert (standby["name"], standby["group_rank"], standby["is_drained"]) == (
            "bob",
            None,
            False,
        )
        assert standby["waiting_reason"]
        assert (drained["name"], drained["is_connected"], drained["is_drained"]) == (
            "carol",
            True,
            True,
        )
        assert drained["waiting_reason"] == (
            "drained by the operator: memory; `coordinator undrain carol` lets it in"
        )
        assert document["agents_count"] == 2
        out = (await Operator(client.port, capsys)("status run")).text
        rows = [line.split() for line in out.splitlines()]
        assert [row[3] for row in rows if row[:1] == ["-"]] == ["standby", "drained"]
        assert "waiting: carol: drained by the operator: memory" in out


async def test_pages_hold_those_that_wait_outside(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        await (await client.agent(host="alice").join()).run()
        for name in ("bob", "carol"):
            await client.control.DrainAgent(control_pb2.DrainAgentRequest(name=name))
            await client.agent(host=name).join()
        request = query_pb2.ListAgentsRequest(run_id="run", page_size=1)
        found = []
        while True:
            page = await client.runs.ListAgents(request)
            found += [agent.name for agent in page.agents]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        assert (found[0], sorted(found[1:])) == ("alice", ["bob", "carol"])


async def test_all_runs_are_shown_a_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        empty = await Operator(client.port, capsys)("status")
        heads = ["RUN", "HEALTH", "ROUND", "STEP", "RESTARTS", "AGENTS", "AGE", "TRAINED", "WHY"]
        assert empty.text.split() == heads
        await client.agent(run_id="one").join()
        await client.agent(run_id="two").join()
        _, one, two = (await Operator(client.port, capsys)("status")).out
        assert (one.split()[0], two.split()[0]) == ("one", "two")
        unknown = await Operator(client.port, capsys)("status three")
        assert (unknown.code, unknown.out) == (2, [])
        assert "there is no run 'three'" in unknown.err[0]
        similar = await Operator(client.port, capsys)("status onee")
        assert "there is no run 'onee' (did you mean 'one'?)" in similar.err[0]
        chosen = await Operator(client.port, capsys)("status --phase running --sort age")
        assert [line.split()[0] for line in chosen.out] == ["RUN", "two", "one"]
        ended = await Operator(client.port, capsys)("status --phase ended -o json")
        assert ended.documents[0]["runs"] == []


async def test_of_many_workers_the_most_telling_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        agent = await client.agent(local_world_size=100).join()
        await agent.run()
        agent.beat.workers.extend(
            failure_pb2.WorkerProgress(local_rank=rank, step=100 - rank) for rank in range(100)
        )
        await agent.say(RUNNING)
        assert await client.report(agent.failure(1)) == [True]
        out = (await Operator(client.port, capsys)("status run")).text
        assert "36 more are not shown; -o json has all" in out
        ranks = [line.split()[0] for line in out.splitlines() if line[:1].isdigit()]
        assert ranks[:64] == [str(rank) for rank in range(36, 100)]


def test_other_commands_do_not_load_the_tables() -> None:
    names = "sys, drumbeat.coordinator.command.answers, drumbeat.coordinator.command.cli"
    code = f"import {names}; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_events_are_shown_with_when_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        await (await client.agent().join()).run()
        heads, first, second = (await Operator(client.port, capsys)("events run")).out
        assert heads.split() == ["EVENT", "WHEN", "ROUND", "WHAT", "BY", "REASON"]
        assert [line.split()[3] for line in (first, second)] == ["agent_admitted", "round_started"]
        assert first.index("agent_admitted") == second.index("round_started") == heads.index("WHAT")
        told = await Operator(client.port, capsys)("events run -o json --since 1h")
        assert [event["sequence"] for event in told.documents] == [1, 2]
        bad = await Operator(client.port, capsys)("events run --since tomorrow")
        assert (bad.code, "'tomorrow' is not a duration" in bad.err[0]) == (2, True)
        nothing = await Operator(client.port, capsys)("events")
        assert (nothing.code, "Missing argument 'RUN'" in nothing.err[0]) == (2, True)


async def test_why_says_it_in_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with coordinator(tmp_path) as client:
        agent = await client.agent().join()
        await agent.run()
        assert await client.report(agent.failure(1, message="Oops: \x1b[2J")) == [True]
        await agent.say(session_pb2.GROUP_STATE_FAILED, workers_alive=0, failures_written=1)
        await agent.desired("exit")
        code, lines, _ = await Operator(client.port, capsys)("why run")
        assert (code, lines[0][:14]) == (0, "Run run failed")
        heads = [line for line in lines if line.endswith(":") and line[0] != " "]
        assert heads == ["Root cause:", "Done:", "Cost:", "To try:"]
        said = ["  Rank 0 on alice exited with 1.", "  It said: Oops: \\x1b[2J"]
        assert lines[lines.index(said[0]) :][:2] == said
        document = (await Operator(client.port, capsys)("why run -o json")).documents[0]
        assert document["root_cause"][0] == "Rank 0 on alice exited with 1."


def test_a_narrow_terminal_cuts_names_and_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ip-10-0-131-77.eu-central-1.compute.internal"
    agent: dict[str, Any] = {"name": name, "host": name, "state": "running", "silence_s": 1.2}
    agent |= {"group_rank": 0, "is_connected": True, "is_drained": False}
    worker: dict[str, Any] = {"rank": 17, "pid": 412345, "step": 123456, "step_time_s": 0.25}
    worker |= {"heartbeat_age_s": 1.0, "scope": None}
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    heads, row = screens.text_of(screens._workers([(agent, worker)])).splitlines()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", heads)
    assert re.split(r" {2,}", plain)[:4] == ["RANK", "AGENT", "STATE", "SILENCE"]
    rank, shown, *figures = row.split()
    assert shown.endswith("…")
    assert name.startswith(shown[:-1])
    assert [rank, *figures] == ["17", "running", "1.2s", "123456", "250ms", "1s", "412345", "-"]
    assert "\x1b" not in row
    assert max(len(plain), len(row)) <= 80


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
