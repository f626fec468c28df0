"""Calls that are begun and not gone on with, and calls that the coordinator cannot read."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined] # it has no types
from structlog.testing import capture_logs

from bench.strangers import http2
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.transport import grpc_server
from tests.support.waiting import MS
from tests.support.wire import DEADLINE_S, Refused, coordinator

CHECK = "/grpc.health.v1.Health/Check"
GET_RUN = "/drumbeat.v1.QueryService/GetRun"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@pytest.mark.parametrize("method", [CHECK, GET_RUN])
@pytest.mark.parametrize("is_closed", [False, True], ids=["silent", "closed"])
async def test_a_call_without_its_message_is_ended(
    method: str, is_closed: bool, tmp_path: Path
) -> None:
    async with coordinator(tmp_path, limits=Limits(hello_timeout_s=50 * MS)) as client:
        call = client.raw(method)
        if is_closed:
            await call.call.done_writing()
        refused = await call.refused()
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID")
        assert "message" in refused.details


async def test_who_holds_many_calls_keeps_no_probe_away(tmp_path: Path) -> None:
    async with coordinator(tmp_path, limits=Limits(anonymous_calls_max=3)) as client:
        watched = client.raw("/grpc.health.v1.Health/Watch")
        await watched.send(b"")
        assert await watched.read()  # it is under way, and the oldest
        held = [client.raw(CHECK) for _ in range(3)]
        refused = await watched.refused()
        assert refused == Refused(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "the coordinator's limit anonymous_calls_max is reached: 3",
            "LIMIT_REACHED",
        )
        assert await client.is_serving()
        assert (await held[0].refused()).code == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("method", [CHECK, GET_RUN, REFLECTION])
async def test_a_message_that_is_none_is_refused_as_such(method: str, tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        call = client.raw(method)
        await call.send(b"\xff")
        refused = await call.refused()
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID")


async def test_a_call_whose_method_is_no_text_ends_no_other(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        session = await client.agent().join()
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        path = http2.field(b":path", b"/drumbeat\xff/x")
        call = http2.call("/x/y", 1).replace(http2.field(b":path", b"/x/y"), path)
        writer.write(http2.HELLO + len(call[9:]).to_bytes(3, "big") + call[3:])
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.readuntil(b"grpc-status")
        assert answer
        writer.close()
        assert await client.is_serving()
        assert await session.run()


async def test_a_method_that_there_is_not_is_said_to_be_none(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        refused = await client.raw("/drumbeat.v1.QueryService/NoSuch").refused()
        assert refused.code == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("name", "value", "is_unprotected"),
    [("_USED", ("_renamed",), True), ("_ASKS", "_of_a_later_release", False)],
    ids=["a release that lacks a name", "the oldest release, which needs no protection"],
)
async def test_other_releases_of_grpc_serve_and_log_what_is_missing(
    name: str, value: Any, is_unprotected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_unprotected = is_unprotected and hasattr(cygrpc.AioServer, "_make_request_call_future")
    monkeypatch.setattr(grpc_server, name, value)
    with capture_logs() as logs:
        async with coordinator(tmp_path) as client:
            assert await (await client.agent().join()).run()
    reasons = [line["reason"] for line in logs if line["event"] == "server of gRPC unprotected"]
    assert len(reasons) == is_unprotected
    assert all("_renamed" in reason and "can end this server" in reason for reason in reasons)
