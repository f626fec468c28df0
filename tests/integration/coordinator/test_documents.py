"""What each command writes for programs, and what it writes when it fails."""

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drumbeat.coordinator.api.operations import VERBS
from drumbeat.coordinator.command.answers import fingerprint, perform
from drumbeat.coordinator.command.request import request
from drumbeat.v1 import control_pb2, query_pb2, session_pb2
from tests.support.operator_commands import KEYS, Operator, answering
from tests.support.wire import FakeAgent, coordinator

PAGE = (Path(__file__).parents[3] / "docs/operating.md").read_text()
# Streams: a document a line. The others write one.
STREAMS = {"events", "watch", "logs"}
# An archive is no document; its files have those of other verbs. Rehearsals have a page of their
# own, see test_rehearsal.py.
OTHERS = {"evidence", "rehearse"}
# What this coordinator does not have: an authority, a page, and another coordinator.
AUTHORITIES = [{"authority": fingerprint(key), "key": key} for key in KEYS]
ELSEWHERE: dict[str, tuple[Any, Any]] = {
    "authority show": (control_pb2.GetAuthorityResponse(keys=KEYS), {"authorities": AUTHORITIES}),
    "authority rotate": (
        control_pb2.RotateAuthorityResponse(keys=KEYS),
        {"authorities": AUTHORITIES},
    ),
    "authority retire": (
        control_pb2.RetireAuthorityResponse(keys=KEYS[:1]),
        {"authorities": AUTHORITIES[:1]},
    ),
    "step-down": (control_pb2.StepDownResponse(leader="h2:29400"), {"leader": "h2:29400"}),
    "page": (
        query_pb2.GetPageLinkResponse(url="https://head:29480/#code=x"),
        {"url": "https://head:29480/#code=x", "time_left_s": None},
    ),
}


async def end(agent: FakeAgent) -> None:
    await agent.desired("stop")
    await agent.say(session_pb2.GROUP_STATE_IDLE, workers_alive=0)
    await agent.desired("exit")
    agent.call.cancel()


def keys_of(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield key
            yield from keys_of(value)
    for each in document if isinstance(document, list) else ():
        yield from keys_of(each)


async def of_all_runs(document: Callable[..., Awaitable[Any]]) -> None:
    assert (await document("note", "run why"))["is_new"]
    totals = await document("goodput", "--all --by week")
    assert (totals["total"]["runs_count"], totals["by"]) == (1, "week")
    assert [key for key in keys_of(totals) if f"`{key}" not in PAGE] == []
    assert "AddNote" in [entry["method"] for entry in (await document("audit"))["entries"]]
    assert await document("notifications") == {
        "notifications": [],
        "firing": [],
        "drains": [],
        "hosts": [],
    }


async def test_every_command_writes_documents_whose_names_are_in_the_docs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found: dict[str, Any] = {}

    async with coordinator(tmp_path) as client:
        operator = Operator(client.port, capsys)
        agent = await client.agent().join()
        await agent.run()

        async def document(verb: str, arguments: str = "", warning: str = "") -> Any:
            done = await operator(f"{verb} {arguments} -o json")
            assert (done.code, len(done.err)) == (0, bool(warning)), verb
            assert warning in "".join(done.err)
            assert done.documents, verb
            assert verb in STREAMS or len(done.documents) == 1, verb
            found[verb] = done.documents[-1]
            return found[verb]

        for verb in ("status", "events", "why", "stacks", "logs", "checkpoint", "restart"):
            await document(verb, "run")
        assert found["status"]["launcher"] is None
        await of_all_runs(document)
        assert (await document("goodput", "run --segments"))["segments"]
        assert (await document("reset-limits", "--run-id run"))["forgotten"] == 0
        token = await document("token create", "--role view --ttl 1h")
        assert (token["role"], token["run_id"], token["state"]) == ("view", None, "valid")
        assert 3500 < token["time_left_s"] <= 3600
        (listed,) = (await document("token list"))["tokens"]
        assert listed == {key: listed[key] for key in token if key != "token"}
        assert (await document("token revoke", token["token_id"]))["state"] == "revoked"
        unknown = "no agent or host is called gpu7 now"
        drained = await document("drain", "gpu7 --run-id other --reason memory", unknown)
        assert (drained["name"], drained["run_id"], drained["is_new"]) == ("gpu7", "other", True)
        (drain,) = (await document("drains"))["drains"]
        assert (await document("host", "gpu7"))["drains"][0]["reason"] == "memory"
        assert (drain["name"], drain["reason"], drain["caller"]) == ("gpu7", "memory", None)
        assert (await document("undrain", "gpu7 --run-id other"))["is_new"]
        assert (await document("stop", "run"))["is_new"]
        agent.beat.notice.notice_id = 1  # of the checkpoint; training does not ask when to save
        await agent.say(session_pb2.GROUP_STATE_RUNNING)
        await end(agent)
        assert (await document("stop", "run"))["is_new"] is False
        assert (await document("watch", "run"))["phase"] == "ended"
        ended = await document("verdict", "run")
        assert (ended["run_id"], ended["cause"], ended["is_success"]) == ("run", "stopped", False)
        assert (await document("forget", "run"))["run_id"] == "run"
        assert (await document("members"))["term"] == 1
    for verb, (response, expected) in ELSEWHERE.items():
        with answering(None, response) as address:
            asked = request(verb, coordinator=address, insecure=True, output="json")
            found[verb] = json.loads(perform(asked))
        assert found[verb] == expected
    assert sorted(found) == sorted(VERBS.keys() - OTHERS)
    page = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    named = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", page))))
    for verb, document in found.items():
        assert [key for key in keys_of(document) if key not in named] == [], verb


async def test_an_error_is_a_sentence_and_an_exit_code_and_no_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        operator = Operator(client.port, capsys)
        for verb in (
            "stop",
            "restart",
            "forget",
            "status",
            "why",
            "watch",
            "reset-limits --run-id",
        ):
            done = await operator(f"{verb} mt6 -o json")
            assert (done.code, done.out) == (2, []), verb
            assert done.err == [
                "coordinator: error: there is no run 'mt6'",
                "coordinator: hint: it has no run at present",
            ]
        for run_id in ("exp1", "mt5", *(f"r{number}" for number in range(5))):
            await client.agent(run_id=run_id).join()
        done = await operator("stop mt6 -o json")
        assert done.err[1] == ("coordinator: hint: there are mt5, exp1, r0, r1, r2 and 2 more")
    done = await operator("drains")
    assert done.code == 3
    assert "cannot be reached" in done.err[0]
