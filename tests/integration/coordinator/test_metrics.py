"""A coordinator's metrics: who may scrape, in which form, what it costs, what a follower tells."""

import asyncio
import gzip
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from bench.looking.metrics import events, exposition, filled, server_of
from drumbeat.access.token import Role
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.tokens.caller import Caller
from drumbeat.coordinator.errors import JournalOutage
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.observe.metrics import declared
from drumbeat.coordinator.web.exposition import Exposition, LoopLag
from tests.support.pages import bearer, site
from tests.support.scraped import names, values
from tests.support.waiting import MS, wait_until

DEADLINE_S = 10_000 * MS


async def test_a_view_token_scrapes_and_others_do_not(tmp_path: Path) -> None:
    async with site(tmp_path) as served:
        browser = served.browser()
        assert (await browser.get("/metrics")).status == 401
        for role, run_id in ((Role.JOIN, ""), (Role.VIEW, "mt5")):
            headers = bearer(await served.token(role, run_id))
            assert (await browser.get("/metrics", headers=headers)).status == 403
        told = await browser.get("/metrics", headers=bearer(await served.token(Role.VIEW)))
        assert told.status == 200
        assert told.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert told.headers["Cache-Control"] == "no-store"
        found = values(told.content)
        assert found["drumbeat_coordinator_leading",] == found["drumbeat_coordinator_term",] == 1.0
        assert found["drumbeat_coordinator_certificate_expiry_timestamp_seconds",] > 1.7e9
        # The tokens above were written.
        assert found["drumbeat_coordinator_journal_write_duration_seconds_count",] >= 3.0
        assert found["process_resident_memory_bytes",] > 0
        told = await browser.ask("HEAD", "/metrics", headers=bearer(await served.token(Role.VIEW)))
        assert (told.status, told.content) == (200, b"")


async def test_openmetrics_and_compression_are_answered_as_they_are_asked_for(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as served:
        headers = bearer(await served.token(Role.VIEW))
        accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
        told = await served.browser().get("/metrics", headers=headers | accept)
        assert told.headers["Content-Type"].startswith(
            "application/openmetrics-text; version=1.0.0"
        )
        assert "drumbeat_runs" in names(told.content)
        packed = await served.browser().get(
            "/metrics", headers=headers | {"Accept-Encoding": "gzip"}, auto_decompress=False
        )
        assert packed.headers["Content-Encoding"] == "gzip"
        assert b"drumbeat_runs" in gzip.decompress(packed.content)


async def test_a_coordinator_that_does_not_lead_tells_what_it_knows(tmp_path: Path) -> None:
    async with site(tmp_path) as served:
        headers, server = bearer(await served.token(Role.VIEW)), served.page._site.coordinator

        class Follows:
            def verify(self, _: object) -> Caller:
                return Caller("t", Role.VIEW)

        term, server.term = server.term, None
        server._follower = Follows()  # type: ignore[assignment]
        try:
            told = await served.browser().get("/metrics", headers=headers)
        finally:
            server.term = term
        found = values(told.content)
        assert (told.status, found["drumbeat_coordinator_leading",]) == (200, 0.0)
        assert found["drumbeat_coordinator_members",] == 1.0
        assert not any(name.startswith("drumbeat_run") for name, *_ in found)


async def test_100_runs_take_little_at_once_and_less_than_a_megabyte() -> None:
    driver = await filled(100, 3)
    found = exposition(driver)
    turns = itertools.count()

    async def take_turns() -> None:
        while True:
            next(turns)
            await asyncio.sleep(0)

    waiting = asyncio.create_task(take_turns())
    rendered = await found.render()
    waiting.cancel()
    assert len(rendered) < 1_000_000
    assert next(turns) > 30, "the others have their turns meanwhile"
    told = values(rendered)
    assert told["drumbeat_runs", "running"] == 100.0
    assert sum(name == "drumbeat_run_workers" for name, *_ in told) == 100
    more = {f"one-more-{i}" for i in range(5)}
    for run_id in more:
        for event in events(run_id, 1, None):
            await driver.journal.write(driver.registry.handle(event, now=1.0), now=1.0)
    told = values(await found.render())
    names = {labels[0] for name, *labels in told if name == "drumbeat_run_workers"}
    assert (len(names), names & more) == (101, set())
    assert told["drumbeat_run_workers", "(others)"] == 40.0


async def test_scrapes_that_come_together_share_an_answer_and_then_wait() -> None:
    driver, now = await filled(1, 1), 0.0
    found = Exposition(Limits(), None, clock=lambda: now)
    found.coordinator = server_of(driver)
    first, second = await asyncio.gather(found.render(), found.render())
    assert first is second
    assert await found.render(is_open=True) is not first
    now = 60.0
    assert await found.render() is not first


async def test_notifications_are_counted_by_outcome_where_there_are_endpoints() -> None:
    driver = await filled(1, 1)
    name = "drumbeat_notifications_total"
    assert not any(key[0] == name for key in values(await exposition(driver).render()))
    found = Exposition(Limits(), None)
    found.coordinator = server_of(None, SimpleNamespace(counts=Counter(sent=7, dropped=1)))
    told = values(await found.render())
    outcomes = {key[1]: value for key, value in told.items() if key[0] == name}
    assert outcomes == {"sent": 7.0, "failed": 0.0, "dropped": 1.0}


class FailingJournal(Journal):
    """Fails once."""

    has_failed = False

    async def write(self, effects: Sequence[fx.Effect], *, now: float) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise JournalOutage("journal", "the disk is full")
        await super().write(effects, now=now)


async def test_an_outage_of_the_journal_is_told_while_and_after_it_lasts() -> None:
    driver = await filled(0, 0)
    driver.journal = FailingJournal()
    found = exposition(driver)
    found.follow(driver)
    running = asyncio.create_task(driver.run())
    (event,) = events("mt5", 1, None)
    driver.submit(event)
    await wait_until(lambda: driver.outage or running.done(), DEADLINE_S)
    assert not running.done(), running.exception()
    assert values(await found.render())["drumbeat_coordinator_journal_writable",] == 0.0
    await wait_until(lambda: not driver.outage, DEADLINE_S)
    told = values(await found.render())
    assert told["drumbeat_coordinator_journal_writable",] == 1.0
    assert told["drumbeat_coordinator_journal_outage_seconds_total",] > 0
    assert told["drumbeat_coordinator_journal_write_duration_seconds_count",] >= 1.0
    running.cancel()
    await asyncio.wait({running})


async def test_the_lag_of_the_event_loop_is_seen() -> None:
    import time

    lags: list[float] = []
    looking = LoopLag(lags.append, interval_s=5 * MS)
    looking.start()
    await wait_until(lambda: lags, DEADLINE_S)
    lags.clear()
    time.sleep(50 * MS)  # noqa: ASYNC251 - the loop stands still
    await wait_until(lambda: lags, DEADLINE_S)
    looking.stop()
    assert lags[0] >= 40 * MS
    assert declared.LOOP_LAG.buckets[0] < 0.001
