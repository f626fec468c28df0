"""Shell. Keeps a range of etcd's keys in sight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog

from drumbeat.coordinator.errors import CommandFailed, JournalOutage
from drumbeat.coordinator.journal.etcd.model import Changed, Etcd, KeyValue, Reading
from drumbeat.coordinator.journal.outage import RETRY_MAX_S, Outage

log = structlog.get_logger()

Pairs = dict[str, KeyValue]


async def following(
    etcd: Etcd, key: str, end: str, *, reading: Reading | None = None, is_quiet: bool = False
) -> AsyncGenerator[tuple[Pairs, int], None]:
    """Yield all keys of a range, by name, and the revision at which they were so; then each change.

    Goes on for ever: whenever the watch breaks, all is read anew, soon at first. Begins with
    ``reading`` if that was read already. ``is_quiet``: another one tells of outages.
    """
    outage, is_told = Outage(now=time.monotonic()), False
    while True:
        began_at = time.monotonic()
        try:
            reading = reading or await etcd.read(key, end)
            if is_told:
                log.info("etcd answers again")
                is_told = False
            pairs = {pair.key: pair for pair in reading.found}
            yield pairs, reading.revision
            async with aclosing(etcd.watch(key, end, after=reading.revision)) as changes:
                async for changed in changes:
                    _apply(changed, pairs)
                    yield pairs, changed.revision
            reason = "the watch ended"
        except CommandFailed as error:
            reason = reason_of(error)
        reading = None
        now = time.monotonic()
        if now - began_at > RETRY_MAX_S:  # it had been seen
            outage = Outage(now=now)
        if outage.failed(reason, now=now) and not is_quiet:
            log.warning("etcd does not answer", keys=key, reason=reason)
            is_told = True
        await asyncio.sleep(outage.next_retry_s())


def reason_of(error: CommandFailed) -> str:
    """Return what etcd answered, without the words for a journal."""
    return str(error.args[1]) if isinstance(error, JournalOutage) else str(error)


def _apply(changed: Changed, pairs: Pairs) -> None:
    for key in changed.deleted:
        pairs.pop(key, None)
    pairs |= {pair.key: pair for pair in changed.put}
