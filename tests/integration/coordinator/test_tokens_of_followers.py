"""The copy of the journal's tokens that a coordinator has while it does not lead."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from drumbeat.access.token import Role, Token
from drumbeat.coordinator.cluster.election import Election
from drumbeat.coordinator.cluster.follower import Follower
from drumbeat.coordinator.cluster.model import Member
from drumbeat.coordinator.core.tokens.token_table import KeptToken, secret_sha256
from drumbeat.coordinator.errors import NotLeader, RevokedToken, Unauthenticated
from drumbeat.coordinator.journal.etcd.model import Delete, Put, Transaction
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.journal.layout import seal
from tests.support.etcd_model import EtcdClientModel, EtcdModel
from tests.support.waiting import MS, wait_until

KEYS = Keys("test")
DEADLINE_S = 10_000 * MS


class Copy:
    """A follower that keeps up with tokens, and what it was told to end."""

    def __init__(self, etcd: EtcdClientModel) -> None:
        self.etcd = etcd
        election = Election(
            etcd, KEYS, Member("m", "a:1"), ttl_s=3.0, on_lead=id, on_stop=id
        )  # it does not run: none leads
        self.follower = Follower(etcd, KEYS, election, lambda: False)
        self.ended: list[str] = []
        self.task = asyncio.create_task(self.follower.follow_tokens(self.ended.append))

    async def keep(self, name: str, *, revoked_at: float | None = None) -> None:
        """Have a token in the journal."""
        token = KeptToken(
            token_id=name,
            role=Role.JOIN,
            secret_sha256=secret_sha256(name),
            created_at=1.0,
            expires_at=2.0,
            revoked_at=revoked_at,
        )
        await self.put(name, seal(f"tokens/{name}", msgspec.json.encode(token), release="0")[0])

    async def put(self, name: str, value: bytes) -> None:
        """Have something else where a token is."""
        put = Put(f"{KEYS.tokens[0]}{name}", value)
        await self.etcd.commit(Transaction((), (put,)))

    def lets_in(self, name: str) -> bool:
        """Whether it lets the owner of a token in."""
        try:
            caller = self.follower.verify(Token(Role.JOIN, name, name))
        except (NotLeader, Unauthenticated):
            return False
        return not caller.is_expired

    async def learns(self, name: str, *, lets_in: bool) -> None:
        """Wait until it does, or does no more."""
        await wait_until(lambda: self.lets_in(name) == lets_in, DEADLINE_S)


@pytest.fixture
async def copy() -> AsyncIterator[Copy]:
    found = Copy(EtcdModel().client())
    yield found
    found.task.cancel()
    await asyncio.wait({found.task})


async def test_none_is_let_in_before_the_tokens_are_known(copy: Copy) -> None:
    blind = Copy(copy.etcd.model.client())
    with pytest.raises(NotLeader, match="its tokens are not known yet"):
        blind.follower.verify(Token(Role.JOIN, "a", "a"))
    blind.task.cancel()


async def test_it_follows_what_is_made_revoked_and_forgotten(copy: Copy) -> None:
    await copy.keep("a")
    await copy.learns("a", lets_in=True)
    await copy.keep("a", revoked_at=5.0)
    await copy.learns("a", lets_in=False)
    assert copy.ended == ["a"], "what it opened here ends too"
    with pytest.raises(RevokedToken):
        copy.follower.verify(Token(Role.JOIN, "a", "a"))
    await copy.keep("b")
    await copy.etcd.commit(Transaction((), (Delete(f"{KEYS.tokens[0]}a"),)))
    await copy.learns("b", lets_in=True)
    assert copy.ended == ["a"]


async def test_what_is_revoked_while_it_sees_nothing_ends_once_it_sees_again(copy: Copy) -> None:
    await copy.keep("a")
    await copy.learns("a", lets_in=True)
    copy.etcd.cut_off()
    other = Copy(copy.etcd.model.client())
    await other.keep("a", revoked_at=5.0)
    other.task.cancel()
    assert copy.lets_in("a")
    copy.etcd.reconnect()
    await wait_until(lambda: copy.ended == ["a"], DEADLINE_S)


async def test_what_cannot_be_read_lets_none_in_and_harms_no_other(copy: Copy) -> None:
    await copy.keep("a")
    await copy.keep("b")
    await copy.learns("b", lets_in=True)
    await copy.put("a", b"\xff")
    await copy.learns("a", lets_in=False)
    assert copy.lets_in("b")
