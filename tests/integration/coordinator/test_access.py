"""Every call is asked who makes it: over real TLS, with right tokens and wrong ones."""

import dataclasses
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from msgspec.structs import replace

from drumbeat.access.certificates import SERVER_NAME, trust_anchors
from drumbeat.access.token import Role, Token, parse_token
from drumbeat.coordinator.access.authority import Authority
from drumbeat.coordinator.api.operations import BY_FULL_NAME
from drumbeat.coordinator.api.permissions import OPEN, roles_of
from drumbeat.coordinator.cluster.server import serving
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.core.events import TokenCreated, TokenRevoked
from drumbeat.coordinator.core.tokens.token_table import secret_sha256
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.v1 import common_pb2, control_pb2, control_pb2_grpc, query_pb2, session_pb2
from tests.support.channels import with_token
from tests.support.wire import DEADLINE_S, Client, Refused, spec

PROTOS = (session_pb2, query_pb2, control_pb2, health_pb2, reflection_pb2)
METHODS = [
    f"/{service.full_name}/{method.name}"
    for file in PROTOS
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
ASKED = [method for method in METHODS if not method.startswith("/grpc.health.v1.Health/")]
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED
ACCESS_REFUSED = query_pb2.RUN_EVENT_KIND_ACCESS_REFUSED


@dataclass(frozen=True)
class Secured:
    """A coordinator that speaks TLS."""

    driver: Driver
    port: int
    ca: str
    published: list[str]

    @property
    def local(self) -> Token:
        """What lets the coordinator's user in, as it was published last."""
        return parse_token(self.published[-1])

    def channel(self, token: Token | str | None = None) -> grpc.aio.Channel:
        secret = grpc.ssl_channel_credentials(trust_anchors([self.ca]))
        if token is not None:
            secret = with_token(secret, token.text() if isinstance(token, Token) else token)
        options = [
            ("grpc.ssl_target_name_override", SERVER_NAME),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        return grpc.aio.secure_channel(f"127.0.0.1:{self.port}", secret, options)

    @asynccontextmanager
    async def client(self, token: Token | None) -> AsyncIterator[Client]:
        async with Client(self.port, self.channel(token)) as client:
            yield client

    async def token(self, role: Role, run_id: str = "", ttl_s: float | None = None) -> Token:
        token = Token(role, secrets.token_hex(4), secrets.token_urlsafe(16), self.ca)
        await self.driver.change_token(
            TokenCreated(
                request_id=-secrets.randbits(40),
                token_id=token.token_id,
                role=role,
                secret_sha256=secret_sha256(token.secret),
                run_id=run_id,
                ttl_s=ttl_s,
            )
        )
        return token

    async def revoke(self, token: Token) -> None:
        event = TokenRevoked(request_id=-secrets.randbits(40), token_id=token.token_id)
        await self.driver.change_token(event)


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    config, journal = CoordinatorConfig(port=0), SqliteJournal(tmp_path)
    identity = Authority(tmp_path)
    published: list[str] = []

    @contextmanager
    def publish(_: int, text: str) -> Iterator[Callable[[str], None]]:
        published.append(text)
        yield published.append

    async with serving(config, journal, identity=identity, published=publish) as (port, driver):
        yield Secured(driver, port, identity.keys[0], published)


async def outcome(channel: grpc.aio.Channel, method: str) -> Refused:
    """Call a method with one message, which says nothing; return how it ends."""
    ask: Any = channel.unary_stream(method)
    call = ask(b"", timeout=DEADLINE_S)
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return Refused.of(error)
    return Refused(await call.code(), "", "")


def test_every_method_is_in_the_table_of_roles() -> None:
    assert [method for method in ASKED if roles_of(method) is None] == []
    assert set(BY_FULL_NAME) <= set(METHODS)
    assert roles_of("/drumbeat.v1.ControlService/Unknown") is None
    assert {"/grpc.health.v1.Health/"} == OPEN


@pytest.mark.parametrize("method", ASKED)
async def test_a_method_is_refused_without_a_token(secured: Secured, method: str) -> None:
    async with secured.channel() as channel:
        refused = await outcome(channel, method)
    assert (refused.code, refused.reason) == (UNAUTHENTICATED, "UNAUTHENTICATED")
    assert "no token" in refused.details


async def test_what_is_served_is_what_the_table_knows(secured: Secured) -> None:
    async with secured.channel(secured.local) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(cast("Any", channel))
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        call.cancel()
    served = {f"/{service.name}/" for service in answer.list_services_response.service}
    assert served == {method[: method.rfind("/") + 1] for method in METHODS}


async def test_health_is_open(secured: Secured) -> None:
    async with secured.channel() as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Role.JOIN, {"/drumbeat.v1.AgentService/", "/drumbeat.v1.QueryService/GetReport"}),
        (Role.VIEW, {"/drumbeat.v1.QueryService/", "/grpc.reflection.v1alpha.ServerReflection/"}),
        (Role.ADMIN, {""}),
    ],
)
async def test_a_role_may_call_what_is_its_own(
    secured: Secured, role: Role, allowed: set[str]
) -> None:
    token = await secured.token(role)
    async with secured.channel(token) as channel:
        for method in ASKED:
            refused = await outcome(channel, method)
            is_allowed = method.startswith(tuple(allowed))
            is_allowed &= role is Role.ADMIN or not method.endswith("/ListAudit")
            assert (refused.code is PERMISSION_DENIED) is not is_allowed, (method, refused)
            assert refused.code not in (UNAUTHENTICATED, grpc.StatusCode.UNKNOWN), method
            if not is_allowed:
                assert token.token_id in refused.details
                assert "needs the role" in refused.details


async def test_a_report_is_for_agents_of_its_run_and_for_tokens_that_are_bound_to_it(
    secured: Secured,
) -> None:
    asked = query_pb2.GetReportRequest(run_id="run")
    unbound, bound = await secured.token(Role.JOIN), await secured.token(Role.JOIN, "run")
    async with secured.client(unbound) as client, secured.client(bound) as of_run:
        agent = await client.agent().join(uptime_s=0.0)
        await agent.run()
        await agent.say(session_pb2.GROUP_STATE_FAILED, workers_alive=0)
        await agent.desired("exit")
        stranger = await client.agent(run_id="other").join()
        for key in (b"", stranger.key):
            asked.incarnation_key = key
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.runs.GetReport(asked, timeout=DEADLINE_S)
            assert refused.value.code() is PERMISSION_DENIED
        asked.incarnation_key = b""
        verdict = (await of_run.runs.GetReport(asked, timeout=DEADLINE_S)).verdict
        asked.incarnation_key = agent.key
        assert (await client.runs.GetReport(asked, timeout=DEADLINE_S)).verdict == verdict


async def test_only_an_admin_has_signals_sent_to_workers(secured: Secured) -> None:
    request = query_pb2.GetStacksRequest(run_id="run", may_signal=True)
    for role, expected in (
        (Role.VIEW, PERMISSION_DENIED),
        (Role.ADMIN, grpc.StatusCode.NOT_FOUND),  # of the run
    ):
        async with secured.client(await secured.token(role)) as client:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.runs.GetStacks(request, timeout=DEADLINE_S).read()
            assert refused.value.code() is expected


async def test_wrong_tokens_are_refused_alike(secured: Secured) -> None:
    token = await secured.token(Role.VIEW)
    wrong = {
        "secret": dataclasses.replace(token, secret=secrets.token_urlsafe(16)),
        "id": dataclasses.replace(token, token_id="00000000"),
        "role": dataclasses.replace(token, role=Role.ADMIN),
        "local": dataclasses.replace(secured.local, secret=secrets.token_urlsafe(16)),
    }
    for name, each in wrong.items():
        async with secured.channel(each) as channel:
            refused = await outcome(channel, "/drumbeat.v1.QueryService/ListRuns")
        assert refused.code is UNAUTHENTICATED, name
        assert each.secret not in refused.details
    for text in ("", "x", token.text()[:-3], token.text().replace("view", "admin"), "ä" * 9):
        async with secured.channel() as channel:
            call: Any = channel.unary_unary("/drumbeat.v1.QueryService/ListRuns")
            value = f"Bearer {text}".encode("ascii", "replace").decode()
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(b"", metadata=(("authorization", value),), timeout=DEADLINE_S)
        assert raised.value.code() is UNAUTHENTICATED


async def test_a_revoked_token_is_refused_with_the_reason(secured: Secured) -> None:
    token = await secured.token(Role.VIEW)
    async with secured.channel(token) as channel:
        answer = await outcome(channel, "/drumbeat.v1.QueryService/ListRuns")
        assert answer.code is grpc.StatusCode.OK
        await secured.revoke(token)
        refused = await outcome(channel, "/drumbeat.v1.QueryService/ListRuns")
    assert refused.code is UNAUTHENTICATED
    assert "revoked" in refused.details


async def test_a_refused_token_is_an_event_of_its_run_if_its_secret_is_right(
    secured: Secured,
) -> None:
    token = await secured.token(Role.JOIN, run_id="run")
    guessed = dataclasses.replace(token, secret="0" * 22)
    async with secured.client(token) as client, secured.client(secured.local) as admin:
        await client.agent().join()
        await secured.revoke(token)
        for given in (guessed, token):
            async with secured.channel(given) as channel:
                refused = await outcome(channel, "/drumbeat.v1.AgentService/OpenSession")
                assert refused.code is UNAUTHENTICATED
        await secured.token(Role.VIEW)  # journaled after what came before
        told = [event for event in (await admin.run()).history if event.kind == ACCESS_REFUSED]
    assert [event.caller for event in told] == [token.token_id]
    assert "revoked" in told[0].reason


async def test_revoking_ends_the_sessions_it_opened_and_no_others(secured: Secured) -> None:
    one, other = await secured.token(Role.JOIN), await secured.token(Role.JOIN)
    async with secured.client(one) as first, secured.client(other) as second:
        leaving = await first.agent(spec=spec(2, 2)).join()
        staying = await second.agent(spec=spec(2, 2), host="b").join()
        await secured.revoke(one)
        refused = await leaving.refused()
        assert (refused.code, refused.reason) == (UNAUTHENTICATED, "UNAUTHENTICATED")
        assert "revoked" in refused.details
        await staying.say(session_pb2.GROUP_STATE_IDLE, master_port=4001)
        await secured.driver.change_token(TokenRevoked(request_id=-1, token_id=one.token_id))
        assert not staying.call.done()


async def test_a_token_of_one_run_reaches_no_other(secured: Secured) -> None:
    token = await secured.token(Role.JOIN, run_id="a")
    async with secured.client(token) as client:
        inside = await client.agent(run_id="a").join()
        stranger = client.agent(run_id="b")
        await stranger.say_hello()
        refused = await stranger.refused()
        assert (refused.code, refused.reason) == (PERMISSION_DENIED, "FORBIDDEN")
        assert "the run a only" in refused.details
        foreign = inside.failure(1)
        foreign.fence.run_id = "b"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.report(foreign, key=inside.key)
        assert raised.value.code() is PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.runs.GetReport(query_pb2.GetReportRequest(run_id="b"), timeout=DEADLINE_S)
        assert raised.value.code() is PERMISSION_DENIED


async def test_a_token_of_a_job_is_for_its_replica_groups_and_for_no_other_run(
    secured: Secured,
) -> None:
    token, other = await secured.token(Role.JOIN, run_id="ft"), await secured.token(Role.JOIN)
    of_group = spec()
    of_group.replica_group.CopyFrom(common_pb2.ReplicaGroup(job="ft", count=9, groups_min=1))
    async with secured.client(token) as client, secured.client(other) as anyone:
        inside = await client.agent(run_id="ft.0", spec=of_group).join()
        await anyone.agent(run_id="ft.1").join()
        pretended = spec()
        pretended.replica_group.CopyFrom(of_group.replica_group)
        pretended.replica_group.index = 1
        plain = client.agent(run_id="ft.2")
        for stranger in (plain, client.agent(run_id="ft.1", spec=pretended)):
            await stranger.say_hello()
            assert (await stranger.refused()).code is PERMISSION_DENIED
        record = inside.failure(1)
        assert await client.report(record, key=inside.key) == [True]
        record.fence.run_id = "ft.1"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.report(record, key=inside.key)
        assert raised.value.code() is PERMISSION_DENIED


async def test_an_agent_speaks_for_itself_only(secured: Secured) -> None:
    token = await secured.token(Role.JOIN)
    async with secured.client(token) as client:
        honest = await client.agent().join()
        liar = client.agent(incarnation=honest.incarnation)
        await liar.say_hello()
        refused = await liar.refused()
        assert (refused.code, refused.reason) == (PERMISSION_DENIED, "FORBIDDEN")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.report(honest.failure(1), key=liar.key)
        assert raised.value.code() is PERMISSION_DENIED
        assert await client.report(honest.failure(1), key=honest.key) == [True]
        for key in (liar.key, b""):
            stacks = session_pb2.ReportStacksRequest(
                fence=honest.fence, incarnation_key=key, request_id="r"
            )
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await client.sessions.ReportStacks(stacks, timeout=DEADLINE_S)
            assert raised.value.code() is PERMISSION_DENIED
        stacks.incarnation_key = honest.key
        assert not (await client.sessions.ReportStacks(stacks, timeout=DEADLINE_S)).is_taken
        assert not honest.call.done()


async def test_an_expired_token_brings_back_who_came_before_and_no_other(
    secured: Secured,
) -> None:
    token = await secured.token(Role.JOIN, ttl_s=3600.0)
    async with secured.client(token) as client:
        first = await client.agent(spec=spec(2, 2)).join()
        secured.driver.tokens.put(
            token.token_id, replace(secured.driver.tokens.tokens[token.token_id], has_expired=True)
        )
        assert not first.call.done()
        back = await client.agent(spec=spec(2, 2), incarnation_key=first.key).join()
        assert len(await client.report(back.failure(1), key=back.key)) == 1
        late = client.agent(spec=spec(2, 2), host="late")
        await late.say_hello()
        refused = await late.refused()
        assert (refused.code, refused.reason) == (UNAUTHENTICATED, "UNAUTHENTICATED")
        assert "expired" in refused.details
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.runs.GetReport(query_pb2.GetReportRequest(run_id="run"), timeout=30)
        assert raised.value.code() is UNAUTHENTICATED


async def test_the_coordinators_user_goes_on_while_the_authority_is_replaced(
    secured: Secured,
) -> None:
    before = secured.local
    async with secured.channel(before) as channel:
        control = control_pb2_grpc.ControlServiceStub(channel)
        keys = (await control.RotateAuthority(control_pb2.RotateAuthorityRequest())).keys
        assert (before.ca, secured.local.ca) == (keys[1], keys[0])
        await control.RetireAuthority(control_pb2.RetireAuthorityRequest())
    after = dataclasses.replace(secured, ca=secured.local.ca)
    async with after.channel(secured.local) as channel:
        control = control_pb2_grpc.ControlServiceStub(channel)
        shown = await control.GetAuthority(control_pb2.GetAuthorityRequest())
        assert list(shown.keys) == [keys[0]]


async def test_a_call_that_was_let_in_just_before_its_token_was_revoked_ends_too(
    secured: Secured,
) -> None:
    token = await secured.token(Role.JOIN)
    async with secured.client(token) as client:
        agent = client.agent()
        await agent.say_hello()
        await secured.revoke(token)  # whichever of the two comes first
        assert (await agent.refused()).code is UNAUTHENTICATED
