"""The token that a coordinator prints: one for the cluster, whichever coordinator leads."""

import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from drumbeat.access.token import Token
from drumbeat.coordinator.cluster.join_token import FILE, join_token
from drumbeat.coordinator.core.events import TokenRevoked
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.journal.etcd.journal import EtcdJournal
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.shell.driver import Driver
from tests.support.drivers import running
from tests.support.etcd_model import EtcdClientModel, EtcdModel
from tests.support.stories import lead

KEYS = Keys("prod")


async def in_a_term(
    etcd: EtcdClientModel, ask: Callable[[Driver], Awaitable[Token | None]], policy: Policy
) -> Token | None:
    """Lead for one term, and ask something in it."""
    journal = EtcdJournal(etcd, KEYS, term=await lead(etcd, KEYS))
    async with running(journal, policy) as driver:
        return await ask(driver)


def joining(directory: Path) -> Callable[[Driver], Awaitable[Token | None]]:
    return lambda driver: join_token(directory, driver, "ca", is_shared=True)


@pytest.fixture
def etcd() -> EtcdClientModel:
    return EtcdModel().client()


async def test_all_terms_of_all_coordinators_have_the_same_token(
    etcd: EtcdClientModel, tmp_path: Path
) -> None:
    tokens = []
    for term in range(6):  # each on a host of its own, with room for one token alone
        directory = tmp_path / f"host{term}"
        directory.mkdir()
        policy = Policy(tokens_max=1)
        tokens.append(await in_a_term(etcd, joining(directory), policy))
        assert stat.S_IMODE((directory / FILE).stat().st_mode) == 0o600
        assert (directory / FILE).read_text().strip() == tokens[0].text()  # type: ignore[union-attr]
    assert tokens[0] is not None
    assert set(tokens) == {tokens[0]}


async def test_once_it_was_revoked_no_other_one_is_made(
    etcd: EtcdClientModel, tmp_path: Path
) -> None:
    policy = Policy(tokens_ended_max=1)
    token = await in_a_term(etcd, joining(tmp_path), policy)
    assert token is not None

    async def revoke(driver: Driver) -> None:
        asked = TokenRevoked(request_id=-1, token_id=token.token_id, caller="op")
        kept = await driver.change_token(asked)
        assert repr(kept) == f"join token {token.token_id}"
        for number in range(5):  # of others more are revoked than are remembered
            other = replace(kept, token_id=f"other{number}", secret="", revoked_at=1.0)
            driver.registry.tokens._keep(other)
        driver.registry.tokens._forget_oldest(driver.now())
        driver.registry.check_invariants()

    await in_a_term(etcd, revoke, policy)
    for _ in range(2):
        again = await in_a_term(etcd, joining(tmp_path), policy)
        assert again is None
