"""Tokens and the authority of a cluster are the same at each of its coordinators."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from drumbeat.access.token import Role, Token, parse_token
from drumbeat.v1 import control_pb2, query_pb2
from tests.support.coordinators import Coordinator, coordinator_of
from tests.support.etcd_model import EtcdModel
from tests.support.waiting import wait_until
from tests.support.wire import DEADLINE_S, Client, Refused

Pair = tuple["Coordinator", "Coordinator"]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """Two coordinators with one authority, of which the first leads."""
    model = EtcdModel(ttl_min_s=1)
    async with coordinator_of(model, authority_in=tmp_path / "1") as first:
        await first.leads()
        async with coordinator_of(model, authority_in=tmp_path / "2") as second:
            await second.follows(first)
            yield first, second


async def refused(client: Client, **metadata: Any) -> Refused:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await client.runs.ListRuns(query_pb2.ListRunsRequest(), timeout=DEADLINE_S, **metadata)
    return Refused.of(error.value)


async def made(at: Coordinator) -> str:
    """Make a token at the one that leads."""
    async with at.let_in() as client:
        asked = control_pb2.CreateTokenRequest(role=control_pb2.ROLE_VIEW)
        return (await client.control.CreateToken(asked, timeout=DEADLINE_S)).text


async def test_a_follower_lets_in_whom_the_leader_does_and_no_one_else(pair: Pair) -> None:
    first, second = pair
    text = await made(first)
    known = second.membership.follower
    await wait_until(lambda: known._tokens is not None and known._tokens.tokens, DEADLINE_S)
    async with second.let_in(text) as client:
        found = await refused(client)
        assert (found.reason, found.detail.leader) == ("NOT_LEADER", first.address)
        assert (await client.runs.ListCoordinators(query_pb2.ListCoordinatorsRequest())).term
    other = Token(Role.VIEW, "unknown1", "s" * 22, parse_token(text).ca)
    async with second.let_in(other.text()) as client:
        assert (await refused(client)).code is grpc.StatusCode.UNAUTHENTICATED
    # The user that a coordinator runs as is let in by that one alone.
    async with second.let_in() as client:
        assert (await refused(client)).reason == "NOT_LEADER"
    async with second.let_in(first.published[-1]) as client:
        assert (await refused(client)).code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_token_that_is_revoked_opens_nothing_at_a_follower(pair: Pair) -> None:
    first, second = pair
    token = parse_token(await made(first))
    async with first.let_in() as client:
        asked = control_pb2.RevokeTokenRequest(token_id=token.token_id)
        await client.control.RevokeToken(asked, timeout=DEADLINE_S)
    known = second.membership.follower
    await wait_until(lambda: known._tokens and known._tokens.is_revoked(token.token_id), DEADLINE_S)
    async with second.let_in(token.text()) as client:
        assert "was revoked" in (await refused(client)).details


async def test_who_comes_before_the_tokens_are_known_is_told_to_come_again(pair: Pair) -> None:
    first, second = pair
    text = await made(first)
    second.membership.follower._tokens = None  # as it begins
    async with second.let_in(text) as client:
        found = await refused(client)
    assert (found.reason, found.detail.leader) == ("NOT_LEADER", first.address)


async def test_an_authority_that_is_replaced_is_served_and_published_by_each(pair: Pair) -> None:
    first, second = pair
    before = parse_token(second.published[-1]).ca
    async with first.let_in() as client:
        answer = await client.control.RotateAuthority(control_pb2.RotateAuthorityRequest())
    assert answer.keys[1] == before
    await wait_until(lambda: parse_token(second.published[-1]).ca == answer.keys[0], DEADLINE_S)
    async with second.let_in() as client:
        assert (await refused(client)).reason == "NOT_LEADER"
