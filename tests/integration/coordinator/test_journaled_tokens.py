"""Tokens on the way through turns and journal: what is durable is told, and what is told is."""

import asyncio
import dataclasses
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from drumbeat.access.token import Role, Token
from drumbeat.coordinator import errors
from drumbeat.coordinator.core.effects import KeepToken
from drumbeat.coordinator.core.events import TokenCreated, TokenRevoked
from drumbeat.coordinator.core.run.records import CallKind
from drumbeat.coordinator.core.tokens.token_table import KeptToken, secret_sha256
from drumbeat.coordinator.journal.layout import seal
from drumbeat.coordinator.journal.sqlite import SqliteFile, SqliteJournal
from tests.support.drivers import DEADLINE_S, StubJournal, running
from tests.support.waiting import MS, wait_until

KEPT = KeptToken(
    token_id="token001", role=Role.JOIN, secret_sha256=secret_sha256("s"), created_at=1.5
)
GIVEN = Token(Role.JOIN, "token001", "s")


def create(number: int = 1, ttl_s: float | None = None, run_id: str = "") -> TokenCreated:
    return TokenCreated(
        request_id=-number,
        token_id=f"token{number:03}",
        role=Role.JOIN,
        secret_sha256=secret_sha256("s"),
        run_id=run_id,
        ttl_s=ttl_s,
    )


def revoke(number: int = 1) -> TokenRevoked:
    return TokenRevoked(request_id=-100 - number, token_id=f"token{number:03}")


FULL = errors.JournalFull("/x/journal", "No space left on device")


def test_tokens_are_read_as_they_were_written_in_the_order_of_their_creation(
    tmp_path: Path,
) -> None:
    other = replace(KEPT, token_id="a0000000", created_at=2.5, expires_at=9.25, run_id="r")
    ended = replace(KEPT, revoked_at=7.0, has_expired=True)
    gone = KeepToken(token_id="gone0000", token=replace(KEPT, token_id="gone0000"))
    journal = SqliteFile(tmp_path)
    first = [KeepToken(token_id=each.token_id, token=each) for each in (KEPT, other)]
    journal.write([*first, gone], now=1.0)
    changed = KeepToken(token_id=ended.token_id, token=ended)
    journal.write([changed, KeepToken(token_id="gone0000", token=None)], now=2.0)
    journal.close()
    journal = SqliteFile(tmp_path)
    assert list(journal.load().contents.tokens.tokens.values()) == [ended, other]
    assert journal.load().runs.states == {}
    journal.close()


BODY = msgspec.json.encode(KEPT)


@pytest.mark.parametrize(
    "edit",
    [
        lambda _: b"{",
        lambda value: value.replace(b"join", b"king"),
        lambda value: value.replace(b"token001", b"token002"),
        lambda value: value.replace(b"1.5", b"1.6"),
        lambda _: seal("tokens/token001", b'{"token_id":"token001"}', release="0")[0],
        lambda _: seal("tokens/token002", BODY, release="0")[0],
    ],
)
def test_a_token_that_was_not_written_by_us_is_not_accepted_and_is_named(
    tmp_path: Path, edit: Callable[[bytes], bytes]
) -> None:
    journal = SqliteFile(tmp_path)
    other = replace(KEPT, token_id="other000")
    for each in (KEPT, other):
        journal.write([KeepToken(token_id=each.token_id, token=each)], now=1.0)
    journal.close()
    where = "journal/tokens/token001"
    with closing(sqlite3.connect(tmp_path / "journal.sqlite3")) as database, database:
        query = "SELECT value FROM journal WHERE key = ?"
        (value,) = database.execute(query, (where,)).fetchone()
        query = "UPDATE journal SET value = ? WHERE key = ?"
        database.execute(query, (edit(value), where))
    journal = SqliteFile(tmp_path)
    contents = journal.load().contents
    journal.close()
    assert list(contents.tokens.tokens) == ["other000"]
    assert [problem.key for problem in contents.problems] == [where]


async def test_tokens_outlive_the_coordinator_and_expire_meanwhile(tmp_path: Path) -> None:
    async with running(SqliteJournal(tmp_path)) as driver:
        await driver.change_token(create(1))
        await driver.change_token(create(2))
        await driver.change_token(create(3, ttl_s=0.001))
        await driver.change_token(revoke(2))
    async with running(SqliteJournal(tmp_path)) as driver:
        assert list(driver.tokens.tokens) == ["token001", "token002", "token003"]
        assert driver.tokens.verify(GIVEN, now=driver.now()).name == "token001"
        with pytest.raises(errors.Unauthenticated):
            driver.tokens.verify(dataclasses.replace(GIVEN, token_id="token002"), now=driver.now())
        late = dataclasses.replace(GIVEN, token_id="token003")
        assert driver.tokens.verify(late, now=driver.now()).is_expired
        assert (await driver.change_token(create(4))).token_id == "token004"


async def test_the_end_of_a_token_is_journaled_when_it_comes() -> None:
    async with running() as driver:
        await driver.change_token(create(ttl_s=20 * MS))
        await wait_until(lambda: driver.tokens.tokens["token001"].has_expired, DEADLINE_S)


async def test_a_revocation_is_told_once_it_is_durable() -> None:
    journal, revocations = StubJournal(), list[tuple[str, bool]]()
    async with running(journal) as driver:
        driver.on_revoked = lambda token_id: revocations.append(
            (token_id, driver.tokens.tokens[token_id].revoked_at is not None)
        )
        await driver.change_token(create())
        assert revocations == []
        journal.error = FULL
        revoked = asyncio.create_task(driver.change_token(revoke()))
        await wait_until(lambda: journal.tries > 1, DEADLINE_S)
        assert driver.tokens.verify(GIVEN, now=driver.now()).name == "token001"
        assert revocations == []
        journal.error = None
        assert (await revoked).revoked_at is not None
        assert revocations == [("token001", True)]
        await driver.change_token(revoke())
        assert revocations == [("token001", True)]


async def test_no_token_is_created_or_revoked_while_the_journal_cannot_be_written() -> None:
    journal = StubJournal()
    async with running(journal) as driver:
        await driver.change_token(create())
        journal.error = FULL
        waits = asyncio.create_task(driver.change_token(create(2)))
        await wait_until(lambda: journal.tries > 1, DEADLINE_S)
        for event in (create(3), revoke()):
            with pytest.raises(errors.Unavailable, match="No space left on device"):
                await driver.change_token(event)
        journal.error = None
        assert (await waits).token_id == "token002"
        assert list(driver.tokens.tokens) == ["token001", "token002"]


async def test_refusals_of_unknown_runs_wait_nowhere() -> None:
    async with running() as driver:
        for number in range(100):
            driver.note(f"run{number}", CallKind.ACCESS_REFUSED, "t1", "no")
        assert driver._turns.is_idle
