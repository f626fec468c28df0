"""Shell. Reads of etcd that go on until they succeed: once, or for as long as a range changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import structlog

from drumbeat.coordinator.errors import CommandFailed, JournalOutage
from drumbeat.coordinator.journal.etcd.model import Changed, Etcd, KeyValue
from drumbeat.coordinator.journal.outage import RETRY_MAX_S, Outage

log = structlog.get_logger()

Pairs = dict[str, KeyValue]
Result = TypeVar("Result")


async def until_answered(
    ask: Callable[[], Awaitable[Result]], on_outage: Callable[[JournalOutage], None]
) -> Result:
    """Return what ``ask`` returns, repeating it while it raises ``JournalOutage``.

    ``on_outage`` is called for the first outage, for each with another reason, and now and then.
    """
    outage: Outage | None = None
    while True:
        try:
            return await ask()
        except JournalOutage as error:
            outage = outage or Outage(now=time.monotonic())
            if outage.failed(str(error), now=time.monotonic()):
                on_outage(error)
        await asyncio.sleep(outage.next_retry_s())


async def following(
    etcd: Etcd, key: str, end: str, *, is_quiet: bool = False
) -> AsyncGenerator[tuple[Pairs, int], None]:
    """Yield all pairs of a range, by key, and their revision; and again whenever one changes.

    Never ends: whenever the watch breaks, the range is read again. ``is_quiet``: log no outages.
    """
    outage, is_logged = Outage(now=time.monotonic()), False
    while True:
        began_at = time.monotonic()
        try:
            reading = await etcd.read(key, end)
            if is_logged:
                log.info("etcd answers again")
                is_logged = False
            pairs = {pair.key: pair for pair in reading.pairs}
            yield pairs, reading.revision
            async with aclosing(etcd.watch(key, end, after=reading.revision)) as changes:
                async for changed in changes:
                    _apply(changed, pairs)
                    yield pairs, changed.revision
            reason = "the watch ended"
        except CommandFailed as error:
            reason = reason_of(error)
        now = time.monotonic()
        if now - began_at > RETRY_MAX_S:  # etcd had answered
            outage = Outage(now=now)
        if outage.failed(reason, now=now) and not is_quiet:
            log.warning("etcd does not answer", keys=key, reason=reason)
            is_logged = True
        await asyncio.sleep(outage.next_retry_s())


def reason_of(error: CommandFailed) -> str:
    """Return the reason of an error, without the name of the journal."""
    return str(error.args[1]) if isinstance(error, JournalOutage) else str(error)


def _apply(changed: Changed, pairs: Pairs) -> None:
    for key in changed.deleted:
        pairs.pop(key, None)
    pairs |= {pair.key: pair for pair in changed.put}
