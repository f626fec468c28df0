"""What a coordinator makes of what it should never be told: one clear error, and on it goes."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from drumbeat.coordinator.core.events import SessionOpened
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.errors import InvalidRequest, StaleSession
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.driver import Outbox
from drumbeat.v1 import common_pb2, failure_pb2, query_pb2, session_pb2
from tests.support.waiting import MS
from tests.support.wire import DEADLINE_S, OPEN, REPORT, Client, Refused, coordinator, spec

INVALID = grpc.StatusCode.INVALID_ARGUMENT
GARBAGE = b"\xff\xff\xff garbage \x00"
# Field 15, a string, of a message that has no such field: what a newer agent might say.
UNKNOWN_FIELD = b"\x7a\x04soon"

OF_A_SESSION = {SessionOpened, Outbox, StaleSession, InvalidRequest}

SERVICES = tuple(f"drumbeat.v1.{name}Service" for name in ("Agent", "Query", "Control"))


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a coordinator that serves as well after the test as before it."""
    limits = Limits(hello_timeout_s=0.5)
    async with coordinator(tmp_path, limits=limits) as client:
        yield client
        assert await client.is_serving()
        bystander = await client.agent(run_id="bystander").join()
        await bystander.run()
        assert len((await client.run("bystander")).agents) == 1


def assert_invalid(refused: Refused, *words: str) -> None:
    assert (refused.code, refused.reason) == (INVALID, "INVALID"), refused
    for word in words:
        assert word in refused.details, refused


# Hello.


def changed(**changes: Any) -> Callable[[session_pb2.AgentReport], None]:
    """Return a change of fields named like ``hello__run__spec__agents_min``."""

    def change(message: session_pb2.AgentReport) -> None:
        for path, value in changes.items():
            *parents, name = path.split("__")
            place: Any = message
            for parent in parents:
                place = getattr(place, parent)
            setattr(place, name, value)

    return change


def replaced(name: str, value: Any) -> Callable[[session_pb2.AgentReport], None]:
    """Return a change of what the message is."""

    def change(message: session_pb2.AgentReport) -> None:
        message.ClearField("kind")
        if value is not None:
            getattr(message, name).CopyFrom(value)

    return change


BAD_HELLOS: dict[str, tuple[Callable[[session_pb2.AgentReport], None], str]] = {
    "nothing": (replaced("hello", None), "hello as the first message"),
    "a beat": (
        replaced("beat", session_pb2.Beat(state=session_pb2.GROUP_STATE_IDLE)),
        "hello as the first message",
    ),
    "a goodbye": (replaced("goodbye", session_pb2.Goodbye()), "hello as the first message"),
    "an empty hello": (replaced("hello", session_pb2.Hello()), "hello.purpose"),
    "a launcher that is not named": (
        replaced("hello", session_pb2.Hello(rendezvous=session_pb2.RunPurpose(run_id="r"))),
        "hello.rendezvous.spec.launcher",
    ),
    "a launcher of a run of agents": (
        changed(hello__run__spec__launcher="torchrun"),
        "hello.run.spec.launcher",
    ),
    "a launcher with a long name": (
        changed(hello__rendezvous__run_id="r", hello__rendezvous__spec__launcher="x" * 257),
        "hello.rendezvous.spec",
    ),
    "no run": (changed(hello__run__run_id=""), "run_id"),
    "a path for a run": (changed(hello__run__run_id="../../etc"), "run_id"),
    "a newline in the run": (changed(hello__run__run_id="a\n"), "run_id"),
    "a long run": (changed(hello__run__run_id="x" * 129), "run_id"),
    "a run of dots": (changed(hello__run__run_id=".."), "run_id"),
    "no incarnation": (changed(fence__incarnation=""), "incarnation"),
    "a long incarnation": (changed(fence__incarnation="x" * 257), "incarnation"),
    "no host": (changed(hello__host=""), "hello.host"),
    "a long host": (changed(hello__host="x" * 257), "hello.host"),
    "a long name": (changed(hello__name="x" * 257), "hello.name"),
    "no address": (changed(hello__address=""), "hello.address"),
    "no role": (changed(hello__role=""), "hello.role"),
    "no workers": (changed(hello__local_world_size=0), "hello.local_world_size"),
    "too many workers": (changed(hello__local_world_size=2**32 - 1), "hello.local_world_size"),
    "no agents": (changed(hello__run__spec__agents_min=0), "spec.agents_min"),
    "4:2 agents": (
        changed(hello__run__spec__agents_min=4, hello__run__spec__agents_max=2),
        "spec.agents_max",
    ),
    "a master port that is none": (
        changed(hello__run__spec__master_port=70000),
        "spec.master_port",
    ),
    "a negative wait": (changed(hello__run__spec__join_timeout__seconds=-1), "spec.join_timeout"),
    "an endless wait": (changed(hello__run__spec__last_call__seconds=2**62), "spec.last_call"),
    "a long master address": (changed(hello__run__spec__master_addr="x" * 257), "spec.master_addr"),
}


@pytest.mark.parametrize("name", BAD_HELLOS)
async def test_a_bad_hello_is_refused_by_its_field(client: Client, name: str) -> None:
    change, word = BAD_HELLOS[name]
    agent = client.agent()
    message = session_pb2.AgentReport(fence=agent.fence, hello=agent.hello)
    change(message)
    await agent.send(message)
    refused = await agent.refused()
    assert_invalid(refused, word)
    assert refused.detail.violation.field in refused.details
    assert not (await client.runs.ListRuns(query_pb2.ListRunsRequest())).runs


@pytest.mark.parametrize("method", [OPEN, REPORT])
@pytest.mark.parametrize("first", [b"", UNKNOWN_FIELD, GARBAGE])
async def test_bytes_that_are_no_message_at_the_beginning_are_refused(
    client: Client, method: str, first: bytes
) -> None:
    call = client.raw(method)
    await call.send(first)
    assert_invalid(await call.refused())


async def test_a_hello_that_never_comes_is_waited_for_only_so_long(client: Client) -> None:
    silent = client.agent()
    await silent.call.wait_for_connection()
    assert_invalid(await silent.refused(), "hello within 0.5 s")


async def test_a_call_that_ends_before_its_hello_is_told_so(client: Client) -> None:
    agent = client.agent()
    await agent.call.done_writing()
    assert_invalid(await agent.refused(), "hello")


async def test_a_message_over_the_limit_is_refused(client: Client) -> None:
    agent = client.agent(host="x" * Limits().message_bytes_max)
    await agent.say_hello()
    assert (await agent.refused()).code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_another_spec_is_refused_with_both_values(client: Client) -> None:
    await client.agent(spec=spec(2, 3)).join()
    other = client.agent(spec=spec(2, 4, restarts_max=7, join_timeout=Duration(seconds=9)))
    await other.say_hello()
    refused = await other.refused()
    assert (refused.code, refused.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "SPEC_MISMATCH",
    )
    said = refused.details.replace("'", "").replace("_s:", ":")
    assert "--nnodes (maximum): the run has 3, not 4" in said
    assert "--max-restarts: the run has 0, not 7" in said
    assert "--join-timeout: the run has 600, not 9" in said
    assert "minimum" not in said
    found = {each.field: (each.run, each.agent) for each in refused.detail.differences}
    assert found == {
        "agents_max": ("'3'", "'4'"),
        "restarts_max": ("'0'", "'7'"),
        "join_timeout": ("'600'", "'9'"),
    }
    assert not refused.detail.is_retryable


async def test_an_ended_run_takes_nobody_new(client: Client) -> None:
    agent = await client.agent().join()
    await agent.run()
    await agent.say(session_pb2.GROUP_STATE_SUCCEEDED, workers_alive=0)
    assert (await agent.desired("exit")).verdict.is_success
    late = client.agent()
    await late.say_hello()
    refused = await late.refused()
    assert refused.reason == "RUN_CLOSED"
    assert "has ended: it succeeded" in refused.details
    old = client.agent()
    await old.say_hello(uptime_s=3600.0)
    assert (await old.refused()).reason == "RUN_CLOSED"
    await client.agent().say_hello(uptime_s=0.0)  # it began since


async def test_limits_are_named(tmp_path: Path) -> None:
    policy = Policy(runs_max=1, agents_max=1)
    async with coordinator(tmp_path, policy=policy) as client:
        await client.agent(spec=spec(1, 2)).join()
        for run_id, name in (("other", "runs_max"), ("run", "agents_per_run_max")):
            agent = client.agent(run_id=run_id, spec=spec(1, 2))
            await agent.say_hello()
            refused = await agent.refused()
            assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert refused.reason == "LIMIT_REACHED"
            assert name in refused.details
            assert (refused.detail.limit.name, refused.detail.limit.value) == (name, 1)
            assert refused.detail.is_retryable


# Later messages.


async def refused_later(client: Client, **changes: Any) -> Refused:
    """Change the second message of a session; return how the session ends."""
    agent = await client.agent().join()
    message = session_pb2.AgentReport(fence=agent.fence, beat=agent.beat)
    changed(**changes)(message)
    await agent.send(message)
    return await agent.refused()


@pytest.mark.parametrize("session_id", ["", "0" * 32, "x" * 100_000])
async def test_a_session_that_is_not_this_one_is_stale(client: Client, session_id: str) -> None:
    refused = await refused_later(client, fence__session_id=session_id)
    assert refused.code is grpc.StatusCode.FAILED_PRECONDITION
    assert refused.reason == "STALE_SESSION"


async def test_a_refused_call_is_gone_before_python_looks_for_garbage(client: Client) -> None:
    """A coordinator looks at none of what lives long, so that a cycle would stay for ever."""

    def held() -> int:
        return sum(type(each) in OF_A_SESSION for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = held()
        for _ in range(3):
            await refused_later(client, fence__session_id="0" * 32)
            stranger = client.agent(run_id="no run!")
            await stranger.say_hello()
            assert_invalid(await stranger.refused(), "run_id")
        assert held() <= before
    finally:
        gc.enable()


async def test_naming_the_session_of_another_harms_only_the_one_who_does(client: Client) -> None:
    victim = await client.agent(spec=spec(2, 2)).join()
    for run_id in ("run", "other"):
        forger = await client.agent(run_id=run_id, spec=spec(2, 2)).join()
        forger.fence.session_id = victim.fence.session_id
        await forger.say(session_pb2.GROUP_STATE_IDLE)
        assert (await forger.refused()).reason == "STALE_SESSION"
    await client.agent(spec=spec(2, 2)).join()
    await victim.run()  # its session lives: it is told of the round
    await wait_until_state(client, victim.incarnation, session_pb2.GROUP_STATE_RUNNING)


NOT_UNDERSTOOD: dict[str, Callable[[session_pb2.AgentReport], None]] = {
    "a second hello": replaced("hello", session_pb2.Hello()),
    "a kind of a later version": replaced("beat", None),
    "another run": changed(fence__run_id="other"),
    "another agent": changed(fence__incarnation="x"),
    "a state of a later version": changed(beat__state=99),
    "no state": changed(beat__state=0),
    "a port that is none": changed(beat__master_port=65536),
    "a round beyond all": changed(fence__round_id=2**63),
    "a report of iterations of a later version": changed(beat__inprocess__step=99),
    "too large a number of workers": changed(beat__workers_done=2**32 - 1),
}


@pytest.mark.parametrize("name", NOT_UNDERSTOOD)
async def test_what_is_not_understood_is_passed_over(client: Client, name: str) -> None:
    agent = await client.agent(spec=spec(2, 2)).join()
    message = session_pb2.AgentReport(fence=agent.fence, beat=agent.beat)
    NOT_UNDERSTOOD[name](message)
    await agent.send(message)
    await agent.say(session_pb2.GROUP_STATE_IDLE)
    await client.agent(spec=spec(2, 2)).join()
    await agent.run()
    await wait_until_state(client, agent.incarnation, session_pb2.GROUP_STATE_RUNNING)


async def test_bytes_that_are_no_message_are_passed_over(client: Client) -> None:
    agent = client.agent()
    call = client.raw(OPEN)
    hello = session_pb2.AgentReport(fence=agent.fence, hello=agent.hello)
    await call.send(hello.SerializeToString())
    welcome = session_pb2.Directive.FromString(await call.read())
    agent.fence.session_id = welcome.welcome.session_id
    await call.send(GARBAGE)
    agent.beat.state, agent.fence.round_id = session_pb2.GROUP_STATE_RUNNING, 0
    beat = session_pb2.AgentReport(fence=agent.fence, beat=agent.beat).SerializeToString()
    await call.send(beat + UNKNOWN_FIELD)
    await wait_until_state(client, agent.incarnation, session_pb2.GROUP_STATE_RUNNING)


async def test_a_new_session_of_an_agent_ends_its_old_one(client: Client) -> None:
    old = await client.agent().join()
    await old.run()
    new = client.agent(incarnation=old.incarnation)
    new.fence.MergeFrom(common_pb2.Fence(round_id=old.fence.round_id))
    new.hello.beat.CopyFrom(old.beat)
    await new.join()
    refused = await old.refused()
    assert (refused.code, refused.reason) == (grpc.StatusCode.ABORTED, "SESSION_REPLACED")
    assert (await new.desired("run")).round_id == old.fence.round_id
    (agent,) = (await client.run()).agents
    assert agent.is_connected


async def test_an_agent_that_has_seen_a_later_leader_leaves_this_one(client: Client) -> None:
    agent = client.agent(term=2)
    await agent.say_hello()
    refused = await agent.refused()
    assert (refused.code, refused.reason) == (grpc.StatusCode.ABORTED, "DEPOSED")
    assert refused.detail.is_retryable
    await client.agent(term=1).join()


async def test_an_agent_cannot_become_another(client: Client) -> None:
    first = await client.agent().join()
    changed_agent = client.agent(incarnation=first.incarnation, host="bob")
    await changed_agent.say_hello()
    assert_invalid(await changed_agent.refused(), "hello", "as before")
    await first.run()  # unharmed


async def test_a_burst_of_beats_is_read_to_its_end(client: Client) -> None:
    agent = await client.agent(spec=spec(2, 2)).join()
    for number in range(1, 5_001):
        await agent.say(session_pb2.GROUP_STATE_IDLE, failures_written=number % 7)
    await agent.send(
        session_pb2.AgentReport(fence=agent.fence, goodbye=session_pb2.Goodbye(reason="tired"))
    )

    async def is_gone() -> bool:
        return not (await client.run()).agents

    await until(is_gone)
    assert "0 of 2 agents" in (await client.run()).reason


async def test_agents_that_never_read_disturb_nobody(client: Client) -> None:
    deaf = [client.agent(spec=spec(20, 20)) for _ in range(19)]
    for agent in deaf:
        await agent.say_hello()
    hearing = await client.agent(spec=spec(20, 20)).join()
    assert (await hearing.run()).world_size == 20
    for agent in deaf:
        agent.call.cancel()


# Failure records.

BAD_RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "no sequence": ({"sequence": 0}, "record.sequence"),
    "no round": ({"fence": common_pb2.Fence(run_id="run", incarnation="i")}, "record.fence"),
    "no incarnation": ({"fence": common_pb2.Fence(run_id="run", round_id=0)}, "incarnation"),
    "no host": ({"host": ""}, "record.host"),
    "too large": ({"stderr_tail": "x" * Limits().failure_record_bytes_max}, "262144 bytes"),
    "an age below zero": ({"age": Duration(seconds=-5)}, "record.age"),
    "an age beyond all time": ({"age": Duration(seconds=2**62)}, "record.age"),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
async def test_a_bad_record_is_refused_and_counts_nothing(client: Client, name: str) -> None:
    fields, word = BAD_RECORDS[name]
    agent = await client.agent().join()
    await agent.run()
    record = agent.failure(1)
    record.MergeFrom(failure_pb2.FailureRecord(**{k: v for k, v in fields.items() if v}))
    for field, value in fields.items():
        if field == "fence":
            record.fence.CopyFrom(value)
        elif not value:
            record.ClearField(field)  # type: ignore[arg-type]
    call = client.sessions.ReportFailures()
    await call.write(session_pb2.ReportFailuresRequest(record=record))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert_invalid(Refused.of(caught.value), word)
    assert (await client.run()).failures_count == 0
    assert await client.report(agent.failure(1)) == [True]
    assert (await client.run()).failures_count == 1


async def test_a_record_beyond_the_message_limit_is_refused(client: Client) -> None:
    agent = await client.agent().join()
    call = client.sessions.ReportFailures()
    record = agent.failure(1, message="x" * Limits().message_bytes_max)
    await call.write(session_pb2.ReportFailuresRequest(record=record))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_record_of_an_unknown_run_is_acknowledged_and_dropped(client: Client) -> None:
    stranger = client.agent(run_id="unheard")
    assert await client.report(stranger.failure(1)) == [False]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.run("unheard")
    refused = Refused.of(caught.value)
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_RUN")


async def test_a_record_counts_once_however_often_it_comes(client: Client) -> None:
    agent = await client.agent().join()
    await agent.run()
    records = [agent.failure(number) for number in range(1, 301)]
    assert await client.report(*records) == [True] * 300
    assert await client.report(*records) == [False] * 300
    assert (await client.run()).failures_count == 300


async def test_over_long_texts_of_a_record_are_cut(client: Client) -> None:
    agent = await client.agent().join()
    await agent.run()
    assert await client.report(agent.failure(1, message="m" * 70_000)) == [True]
    await agent.say(session_pb2.GROUP_STATE_FAILED, workers_alive=0, failures_written=1)
    verdict = (await agent.desired("exit")).verdict
    (cause,) = verdict.report.root_causes
    assert 0 < len(cause.message) <= Limits().failure_message_bytes_max


# The port.


def say_and_listen(port: int, said: bytes) -> None:
    """Say something that is no gRPC, and wait for the coordinator's end of the connection."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection,
        contextlib.suppress(ConnectionResetError, BrokenPipeError),
    ):
        connection.sendall(said)
        with contextlib.suppress(OSError):  # it may have hung up by now
            connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
        b"\x00" * 70_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 5_000,
        b"",
    ],
    ids=["HTTP/1", "TLS", "zeros", "HTTP/2 and garbage", "nothing"],
)
async def test_bytes_that_are_no_http_are_no_trouble(client: Client, said: bytes) -> None:
    await asyncio.to_thread(say_and_listen, client.port, said)


async def test_a_connection_that_says_nothing_disturbs_nobody(client: Client) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", client.port)
    assert await client.is_serving()
    await (await client.agent().join()).run()
    writer.close()
    await writer.wait_closed()


async def test_an_unknown_method_is_told_so(client: Client) -> None:
    call = client.raw("/drumbeat.v1.AgentService/Close")
    assert (await call.refused()).code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_run_nobody_had_is_not_found(client: Client) -> None:
    for run_id in ("", "unheard", "x" * 100_000, "\x00"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.run(run_id)
        assert Refused.of(caught.value).reason == "UNKNOWN_RUN"
        assert len(caught.value.details() or "") < 1_000


async def test_health_and_reflection_answer(client: Client) -> None:
    for service in ("", *SERVICES):
        assert await client.is_serving(service)
    channel: Any = client.channel
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    names = {service.name for service in answer.list_services_response.service}
    assert names >= {*SERVICES, "grpc.health.v1.Health"}
    await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICES[0]))
    answer = await call.read()
    assert answer.file_descriptor_response.file_descriptor_proto
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def until(predicate: Callable[[], Any]) -> None:
    """Wait for something that has to be asked for over the network."""
    async with asyncio.timeout(DEADLINE_S):
        while not await predicate():  # noqa: ASYNC110 - it is in another process's hands
            await asyncio.sleep(10 * MS)


async def wait_until_state(
    client: Client, incarnation: str, state: session_pb2.GroupState.ValueType
) -> None:
    async def is_there() -> bool:
        agents = {agent.incarnation: agent for agent in (await client.run()).agents}
        return agents[incarnation].state == state

    await until(is_there)
