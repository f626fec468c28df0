"""The control service: tokens and authorities on request, each call with its line in the audit."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from drumbeat.access.token import NO_CA, Role, Token, parse_token
from drumbeat.coordinator import errors
from drumbeat.coordinator.access.audit import Audit
from drumbeat.coordinator.access.server_identity import ServerIdentity, Shown
from drumbeat.coordinator.api.control_service import ControlService
from drumbeat.coordinator.api.query_service import QueryService
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import SessionOpened
from drumbeat.coordinator.core.model import Beat
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.core.tokens.caller import Caller
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.driver import Driver, Outbox
from drumbeat.coordinator.wire.session import directive_message
from drumbeat.model import GroupState
from drumbeat.v1 import control_pb2 as pb
from drumbeat.v1 import query_pb2
from drumbeat.wire.mapping import duration, seconds_of
from tests.support.waiting import MS
from tests.support.world import a_spec, an_agent

DEADLINE_S = 20_000 * MS
OPERATOR = Caller("op", Role.ADMIN)


class Identity(ServerIdentity):
    """Stands for the authority: has keys to give, and a gate that a change waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.served = ["K1"]
        self.gate = threading.Event()
        self.gate.set()

    @property
    def keys(self) -> list[str]:
        return self.served

    def configuration(self) -> Shown:
        raise AssertionError("no server shows it")

    def rotate(self) -> list[str]:
        assert self.gate.wait(DEADLINE_S)
        self.served = [f"K{len(self.served) + 1}", *self.served]
        return self.served

    def retire(self) -> list[str]:
        self.served = self.served[:1]
        return self.served


class Foreign(Identity):
    """The operator's own certificate."""

    @property
    def keys(self) -> list[str]:
        return []

    def rotate(self) -> list[str]:
        raise errors.NoOwnAuthority

    retire = rotate


class Scene:
    def __init__(self, identity: ServerIdentity | None = None) -> None:
        self.driver = Driver(Registry(Policy()), Journal(), Limits())
        self.control = ControlService(self.driver, identity, Audit(), lambda _context: OPERATOR)

    async def create(
        self, role: Role = Role.JOIN, run_id: str = "", ttl_s: float | None = None
    ) -> tuple[Token, pb.Token]:
        request = pb.CreateTokenRequest(role=pb.Role.Value(f"ROLE_{role.name}"), run_id=run_id)
        if ttl_s is not None:
            request.ttl.CopyFrom(duration(ttl_s))
        response = await self.control.CreateToken(request)
        return parse_token(response.text), response.token

    async def listed(self) -> list[pb.Token]:
        return list((await self.control.ListTokens(pb.ListTokensRequest())).tokens)

    def open(self, name: str = "a") -> Outbox:
        return self.driver.open(
            SessionOpened(
                run_id="r",
                spec=a_spec(1, 9),
                session_id=name,
                agent=an_agent(name),
                beat=Beat(state=GroupState.IDLE, master_port=4000),
            )
        )


@asynccontextmanager
async def running(identity: ServerIdentity | None = None) -> AsyncIterator[Scene]:
    scene = Scene(identity)
    owner = asyncio.create_task(scene.driver.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield scene
    finally:
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner


async def test_a_created_token_lets_its_bearer_in_and_is_listed_without_its_secret() -> None:
    async with running() as scene:
        token, shown = await scene.create(run_id="exp1", ttl_s=60.0)
        assert re.fullmatch("[a-z2-9]{8}", token.token_id)
        assert (token.role, token.ca, len(token.secret)) == (Role.JOIN, NO_CA, 22)
        caller = scene.driver.tokens.verify(token, now=scene.driver.now())
        assert caller == Caller(token.token_id, Role.JOIN, "exp1")
        (listed,) = await scene.listed()
        assert (listed.token_id, listed.role, listed.run_id, listed.created_by) == (
            token.token_id,
            pb.ROLE_JOIN,
            "exp1",
            "op",
        )
        assert 50 < seconds_of(listed.time_left) <= seconds_of(shown.time_left) <= 60
        assert 0 <= seconds_of(listed.age) < 10
        assert not listed.is_revoked
        assert token.secret not in str(listed)


async def test_tokens_are_listed_in_the_order_of_their_creation_with_how_they_ended() -> None:
    async with running() as scene:
        ids = [(await scene.create(role))[0].token_id for role in Role]
        await scene.create(ttl_s=1e-9)
        revoked = await scene.control.RevokeToken(pb.RevokeTokenRequest(token_id=ids[1]))
        listed = await scene.listed()
        assert [each.token_id for each in listed[:3]] == ids
        assert [each.is_revoked for each in listed] == [False, True, False, False]
        assert revoked.token.is_revoked
        assert [each.HasField("time_left") for each in listed] == [False, False, False, True]
        assert seconds_of(listed[3].time_left) == 0


async def test_a_token_pins_the_newest_authority() -> None:
    identity = Identity()
    identity.served = ["x" * 44]
    async with running(identity) as scene:
        assert (await scene.create())[0].ca == "x" * 44


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (pb.CreateTokenRequest(), "role: 0 is given, allowed is ROLE_JOIN"),
        (pb.CreateTokenRequest(role=9), "role: 9 is given"),  # type: ignore[arg-type]
        (pb.CreateTokenRequest(role=pb.ROLE_VIEW, run_id="r"), "run_id: 'r' is given"),
        (pb.CreateTokenRequest(role=pb.ROLE_JOIN, run_id="a b"), "run_id: 'a b' is given"),
        (pb.CreateTokenRequest(role=pb.ROLE_JOIN, ttl=duration(0)), "ttl: '0 s' is given"),
        (pb.CreateTokenRequest(role=pb.ROLE_JOIN, ttl=duration(-1)), "ttl: '-1 s' is given"),
        (pb.CreateTokenRequest(role=pb.ROLE_JOIN, ttl=duration(1e9)), "at most 10 years"),
    ],
)
async def test_a_token_that_cannot_be_is_refused(
    request_: pb.CreateTokenRequest, named: str
) -> None:
    async with running() as scene:
        with pytest.raises(errors.InvalidRequest, match=named):
            await scene.control.CreateToken(request_)
        assert await scene.listed() == []


async def test_calls_are_audited_with_who_and_what_and_without_secrets() -> None:
    async with running() as scene:
        with capture_logs() as lines:
            token, _ = await scene.create(run_id="exp1")
            await scene.control.RevokeToken(pb.RevokeTokenRequest(token_id=token.token_id))
            with pytest.raises(errors.UnknownRun):
                await scene.control.ResetLimits(pb.ResetLimitsRequest(run_id="nope"))
            await scene.listed()
    calls = [line for line in lines if line["event"] == "control call"]
    assert [(line["method"], line["caller"], line["result"]) for line in calls] == [
        ("CreateToken", "op", "OK"),
        ("RevokeToken", "op", "OK"),
        ("ResetLimits", "op", "NOT_FOUND"),
        ("ListTokens", "op", "OK"),
    ]
    assert [line.get("token.id") for line in calls[:2]] == [token.token_id] * 2
    assert [line.get("run.id") for line in calls] == ["exp1", None, "nope", None]
    assert token.secret not in str(lines)


async def test_a_call_that_is_given_up_is_audited_and_a_token_still_made() -> None:
    async with running() as scene:
        with capture_logs() as lines:
            call = asyncio.create_task(scene.create())
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        (line,) = lines
        assert line["result"] == "CANCELLED"
        (listed,) = await scene.listed()
        assert listed.token_id == line["token.id"]


async def test_changes_of_a_run_are_its_events() -> None:
    async with running() as scene:
        await scene.open().next()
        token, _ = await scene.create(run_id="r")
        await scene.control.ResetLimits(pb.ResetLimitsRequest(run_id="r"))
        asked = query_pb2.ListEventsRequest(run_id="r")
        events = (await QueryService(scene.driver).ListEvents(asked)).events
        changed, reset = events[-2:]
        assert changed.kind == query_pb2.RUN_EVENT_KIND_TOKEN_CHANGED
        assert (changed.caller, reset.caller) == ("op", "op")
        assert token.token_id in changed.reason


@pytest.mark.parametrize(("identity", "option"), [(None, "--insecure"), (Foreign(), "--tls-cert")])
async def test_without_an_authority_of_its_own_there_is_nothing_to_replace(
    identity: ServerIdentity | None, option: str
) -> None:
    async with running(identity) as scene:
        for ask in (
            scene.control.GetAuthority(pb.GetAuthorityRequest()),
            scene.control.RotateAuthority(pb.RotateAuthorityRequest()),
            scene.control.RetireAuthority(pb.RetireAuthorityRequest()),
        ):
            with pytest.raises(errors.NoOwnAuthority, match=option):
                await ask


async def test_agents_hear_of_another_authority_at_once_and_later_ones_after_their_welcome() -> (
    None
):
    async with running(Identity()) as scene:
        early = scene.open("a")
        assert isinstance(await early.next(), fx.Welcome)
        response = await scene.control.RotateAuthority(pb.RotateAuthorityRequest())
        assert list(response.keys) == ["K2", "K1"]
        shown = await scene.control.GetAuthority(pb.GetAuthorityRequest())
        assert shown.keys == response.keys
        told = await early.next()
        assert told == fx.TellAuthorities(session_id="a", keys=("K2", "K1"))
        message = directive_message(told, run_id="r", term=1)
        assert (message.run_id, list(message.authorities.keys)) == ("r", ["K2", "K1"])
        late = scene.open("b")
        assert late.take() is None
        kinds = [type(await late.next()) for _ in range(2)]
        assert kinds == [fx.Welcome, fx.TellAuthorities]
        await scene.control.RetireAuthority(pb.RetireAuthorityRequest())
        keys = [each.keys for each in iter(late.take, None) if isinstance(each, fx.TellAuthorities)]
        assert keys == [("K2",)]


async def test_without_a_change_of_the_authority_nothing_is_said_of_it() -> None:
    async with running(Identity()) as scene:
        outbox = scene.open()
        kinds = [type(await outbox.next()), *(type(each) for each in iter(outbox.take, None))]
        assert fx.TellAuthorities not in kinds


async def test_agents_hear_of_a_rotation_whose_caller_has_gone() -> None:
    identity = Identity()
    async with running(identity) as scene:
        outbox = scene.open()
        assert isinstance(await outbox.next(), fx.Welcome)
        identity.gate.clear()
        call = asyncio.create_task(scene.control.RotateAuthority(pb.RotateAuthorityRequest()))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        identity.gate.set()
        while not isinstance(told := await outbox.next(), fx.TellAuthorities):
            pass
        assert told.keys == ("K2", "K1")
