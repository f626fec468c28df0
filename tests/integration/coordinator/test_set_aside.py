"""A run whose records cannot be read: it is named, its agents wait, and all others are served."""

import asyncio
import io
import sqlite3
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path

import grpc
import pytest

from drumbeat.coordinator.command import cli
from drumbeat.v1 import control_pb2, query_pb2
from tests.support.wire import DEADLINE_S, Client, Refused, coordinator


def damage(directory: Path, run_id: str) -> None:
    """Change one letter in the first record of a run."""
    with closing(sqlite3.connect(directory / "journal.sqlite3")) as database, database:
        rows = database.execute("SELECT key, value FROM journal ORDER BY key").fetchall()
        key, value = next(row for row in rows if f"-{run_id}/" in row[0])
        changed = value[:-10] + bytes([value[-10] ^ 1]) + value[-9:]
        database.execute("UPDATE journal SET value = ? WHERE key = ?", (changed, key))


async def shown(client: Client, run_id: str = "") -> tuple[int, str]:
    """Return the exit code and the words of ``coordinator status``."""
    told = io.StringIO()
    line = f"status {run_id} --insecure --coordinator 127.0.0.1:{client.port}"
    with redirect_stdout(told), redirect_stderr(told):
        code = await asyncio.to_thread(cli.main, line.split())
    return code, told.getvalue()


async def test_a_run_that_cannot_be_read_is_named_and_forgotten_on_request(
    tmp_path: Path,
) -> None:
    async with coordinator(tmp_path) as client:
        for run_id in ("broken", "sound"):
            await (await client.agent(run_id=run_id, incarnation=run_id).join()).run()
    damage(tmp_path, "broken")
    async with coordinator(tmp_path) as client:
        listed = await client.runs.ListRuns(query_pb2.ListRunsRequest(), timeout=DEADLINE_S)
        assert [run.run_id for run in listed.runs] == ["sound"]
        (set_aside,) = listed.set_aside
        assert (set_aside.run_id, set_aside.generation) == ("broken", 1)
        assert "it was changed" in set_aside.reason
        code, told = await shown(client)
        assert code == 0
        assert "broken is set aside" in told
        assert "coordinator forget broken" in told
        code, told = await shown(client, "broken")
        assert code == 3
        assert "run broken is set aside" in told
        # Its agents wait with their workers: the refusal says that they may try again.
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await (await client.agent(run_id="broken", incarnation="broken").join()).run()
        assert Refused.of(refused.value).reason == "UNAVAILABLE"
        await (await client.agent(run_id="sound", incarnation="sound").join()).run()
        forget = control_pb2.ForgetRunRequest(run_id="broken", request_id="c")
        await client.control.ForgetRun(forget, timeout=DEADLINE_S)
        agent = await client.agent(run_id="broken", incarnation="broken").join()
        await agent.run()
        listed = await client.runs.ListRuns(query_pb2.ListRunsRequest(), timeout=DEADLINE_S)
        assert [run.run_id for run in listed.runs] == ["broken", "sound"]
        assert list(listed.set_aside) == []
    async with coordinator(tmp_path) as client:
        listed = await client.runs.ListRuns(query_pb2.ListRunsRequest(), timeout=DEADLINE_S)
        assert [run.run_id for run in listed.runs] == ["broken", "sound"]
        assert listed.runs[0].generation > 1, "no identity is used again"
