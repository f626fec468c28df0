"""How an agent gets into its coordinator, and what it does when it is not let in."""

import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from drumbeat.access import client, local
from drumbeat.access.token import Token
from drumbeat.agent.core.events import SessionLost, SessionWelcomed
from drumbeat.agent.errors import AccessRefused
from drumbeat.agent.session import access as access_module
from drumbeat.agent.session.spool import Spooled
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2
from tests.support.certificates import CertificateAuthority
from tests.support.fake_coordinator import (
    FORBIDDEN,
    UNAUTHENTICATED,
    FakeCoordinator,
    Refused,
    fake_coordinator,
)
from tests.support.sessions import KEY, a_lone_agent
from tests.support.waiting import MS

ABORTED = Refused(grpc.StatusCode.ABORTED, common_pb2.REFUSAL_UNSPECIFIED, "another one")


@pytest.fixture(scope="module")
def ca() -> CertificateAuthority:
    return CertificateAuthority()


@pytest.fixture(scope="module")
def other_ca() -> CertificateAuthority:
    return CertificateAuthority()


@pytest.fixture
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place where coordinators of this user let this user in; nothing is there yet."""
    monkeypatch.setattr(local, "_places", lambda: [(tmp_path, "access")])


def write(folder: Path, token: Token) -> str:
    """Put a token into its file, in place of the one that was there."""
    draft, path = folder / "token.new", folder / "token"
    draft.touch(mode=0o600)
    draft.write_text(token.text() + "\n")
    draft.rename(path)
    return str(path)


def remove(path: str) -> None:
    Path(path).unlink()


def open_to_all(path: str) -> None:
    Path(path).chmod(0o644)


def at(head: FakeCoordinator) -> str:
    return f"127.0.0.1:{head.port}"


async def test_a_token_opens_sessions_and_reports_over_tls(ca: CertificateAuthority) -> None:
    token = ca.token()
    async with fake_coordinator(ca.issue()) as head:
        head.tokens = {token}
        with a_lone_agent(coordinator=at(head), token=token) as lone:
            async with lone:
                await lone.connected(SessionWelcomed)
                session = await head.session()
                assert session.hello.incarnation_key == KEY
                fence = common_pb2.Fence(run_id="r", incarnation="i")
                record = failure_pb2.FailureRecord(fence=fence, sequence=1)
                lone.spool.write(Spooled(0.0, record, KEY))
                assert (await head.record()).sequence == 1


async def test_a_token_that_is_refused_is_final(ca: CertificateAuthority, tmp_path: Path) -> None:
    """Whether it was let in before or not."""
    path = write(tmp_path, ca.token())
    async with fake_coordinator(ca.issue()) as head:
        with a_lone_agent(coordinator=at(head), token_file=path) as lone:
            async with lone:
                await lone.connected(SessionWelcomed)
                (await head.session()).refuse(UNAUTHENTICATED)
                lost = await lone.event(SessionLost)
                head.tokens = {ca.token(token_id="yyyyyyyy")}
                again = await lone.connected(SessionLost)
    for each in (lost, again):
        assert isinstance(each.refusal, AccessRefused)
        assert str(each.refusal) == UNAUTHENTICATED.text
        assert "coordinator token create" in each.refusal.hint
    assert head.refused == 1


async def test_a_token_that_was_replaced_in_its_file_opens_the_next_session(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    path, new = write(tmp_path, ca.token()), ca.token(token_id="yyyyyyyy")
    async with fake_coordinator(ca.issue()) as head:
        with a_lone_agent(coordinator=at(head), token_file=path) as lone:
            async with lone:
                await lone.connected(SessionWelcomed)
                write(tmp_path, new)
                head.tokens = {new}
                (await head.session()).refuse(UNAUTHENTICATED)
                lost = await lone.event(SessionLost)
                assert lost.refusal is None
                assert lost.reason.endswith("; there is another token by now")
                await lone.connected(SessionWelcomed)
    assert head.refused == 0


async def test_a_token_file_that_goes_is_final_only_for_an_agent_that_was_never_let_in(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    path = write(tmp_path, ca.token())
    async with fake_coordinator(ca.issue()) as head:
        with a_lone_agent(coordinator=at(head), token_file=path) as lone:
            async with lone:
                await lone.connected(SessionWelcomed)
                remove(path)
                (await head.session()).refuse(UNAUTHENTICATED)
                lost = await lone.event(SessionLost)
                assert lost.refusal is None
                assert (
                    lost.reason == f"{UNAUTHENTICATED.text}; the token file {path} does not exist"
                )
                assert (await lone.connected(SessionLost)).refusal is None
                write(tmp_path, ca.token())
                await lone.connected(SessionWelcomed)
        open_to_all(path)
        with a_lone_agent(coordinator=at(head), token_file=path) as lone:
            async with lone:
                refusal = (await lone.connected(SessionLost)).refusal
    assert isinstance(refusal, AccessRefused)
    assert (refusal.exit_code, refusal.hint.startswith("chmod ")) == (2, True)
    assert "open to other users" in str(refusal)


async def test_what_a_token_may_not_do_is_final(ca: CertificateAuthority) -> None:
    async with fake_coordinator(ca.issue()) as head:
        with a_lone_agent(coordinator=at(head), token=ca.token()) as lone:
            async with lone:
                await lone.connected(SessionWelcomed)
                (await head.session()).refuse(FORBIDDEN)
                refusal = (await lone.event(SessionLost)).refusal
    assert isinstance(refusal, AccessRefused)
    assert (str(refusal), refusal.exit_code) == (FORBIDDEN.text, 2)


@pytest.mark.usefixtures("_home")
async def test_the_same_user_s_token_is_asked_for_anew_and_never_final(
    ca: CertificateAuthority,
) -> None:
    """Its coordinator has a new one after each start."""
    old, new = ca.token(), ca.token(token_id="yyyyyyyy")
    async with fake_coordinator(ca.issue()) as head:
        head.tokens = {new}
        local.publish(head.port, old.text())
        with a_lone_agent(coordinator=at(head)) as lone:
            async with lone:
                assert (await lone.connected(SessionLost)).refusal is None
                local.publish(head.port, new.text())
                await lone.connected(SessionWelcomed)


@pytest.mark.usefixtures("_home")
async def test_a_coordinator_of_the_same_user_that_is_not_there_yet_is_waited_for(
    ca: CertificateAuthority,
) -> None:
    async with fake_coordinator(ca.issue()) as head:
        with a_lone_agent(coordinator=at(head)) as lone:
            async with lone:
                lost = await lone.connected(SessionLost)
                assert lost.refusal is None
                assert "no coordinator of this user is running" in lost.reason
                local.publish(head.port, ca.token().text())
                await lone.connected(SessionWelcomed)


@pytest.mark.parametrize("is_told", [True, False])
async def test_an_authority_that_is_told_is_trusted_by_the_next_connection(
    ca: CertificateAuthority, other_ca: CertificateAuthority, *, is_told: bool
) -> None:
    """Beside the token's, whatever else stands beside it."""
    async with fake_coordinator(ca.issue()) as head:
        with a_lone_agent(coordinator=at(head), token=ca.token()) as lone:
            async with lone:
                await lone.connected(SessionWelcomed)
                session = await head.session()
                if is_told:
                    keys = ["of a later version", "A" * 44, other_ca.key_text, ca.key_text]
                    session.say(authorities=session_pb2.Authorities(keys=keys))
                session.say(welcome=session_pb2.Welcome(session_id="s"))
                await lone.event(SessionWelcomed)
                session.refuse(ABORTED)
                await lone.event(SessionLost)
                async with fake_coordinator(other_ca.issue()) as successor:
                    lone.address = at(successor)
                    await lone.connected(SessionWelcomed if is_told else SessionLost)


async def test_no_more_authorities_are_kept_than_there_can_be(ca: CertificateAuthority) -> None:
    with a_lone_agent(coordinator="head:1", token=ca.token()) as lone:
        keys = [f"{number:044}" for number in range(access_module.AUTHORITIES_MAX + 1)]
        lone.access.trust([*keys, "x" * 45, "ä" * 44])
        assert lone.access._authorities == tuple(keys[:-1])
        lone.access.trust(["of a later version"])
        assert lone.access._authorities == tuple(keys[:-1])


async def test_another_one_in_the_place_of_the_coordinator_is_refused_with_a_sentence(
    ca: CertificateAuthority, other_ca: CertificateAuthority
) -> None:
    """For good on first contact; later it may be that the right one comes back."""
    async with fake_coordinator(ca.issue()) as head, fake_coordinator(other_ca.issue()) as stranger:
        with a_lone_agent(coordinator=at(stranger), token=ca.token()) as lone:
            async with lone:
                first = await lone.connected(SessionLost)
                lone.address = at(head)
                await lone.connected(SessionWelcomed)
                (await head.session()).cut()
                await lone.event(SessionLost)
                lone.address = at(stranger)
                later = await lone.connected(SessionLost)
    assert isinstance(first.refusal, AccessRefused)
    assert first.refusal.exit_code == 2
    assert "CERTIFICATE_VERIFY_FAILED" not in first.reason
    assert (later.refusal, later.reason) == (None, first.reason)


@pytest.mark.parametrize("is_insecure", [True, False])
async def test_one_side_with_tls_and_one_without_is_said(
    ca: CertificateAuthority, *, is_insecure: bool
) -> None:
    told: dict[str, Any] = {"insecure": True} if is_insecure else {"token": ca.token()}
    async with fake_coordinator(ca.issue() if is_insecure else None) as head:
        with a_lone_agent(coordinator=at(head), **told) as lone:
            async with lone:
                lost = await lone.connected(SessionLost)
    assert isinstance(lost.refusal, AccessRefused)
    assert "--insecure" in f"{lost.refusal} {lost.refusal.hint}"


async def test_a_file_system_that_stands_still_costs_an_attempt_and_not_the_agent(
    ca: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_back, real = threading.Event(), client.credentials

    def stall(*args: Any, **more: Any) -> Any:
        is_back.wait()
        return real(*args, **more)

    monkeypatch.setattr(client, "credentials", stall)
    monkeypatch.setattr(access_module, "TIMEOUT_S", 20 * MS)
    async with fake_coordinator(ca.issue()) as head:
        with a_lone_agent(coordinator=at(head), token=ca.token()) as lone:
            async with lone:
                lost = await lone.connected(SessionLost)
                assert lost.refusal is None
                assert "the file system did not answer" in lost.reason
                monkeypatch.setattr(access_module, "TIMEOUT_S", 20_000 * MS)
                is_back.set()
                await lone.connected(SessionWelcomed)
