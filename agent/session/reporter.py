"""Shell. Delivers failure records: each until it is acknowledged, over any number of sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import structlog

from agent.session.convert import Identity
from agent.session.spool import Spool, Spooled
from agent.session.transport import Connection, TransportError
from drumbeat.mapping import duration
from drumbeat.v1 import session_pb2

log = structlog.get_logger()

# Before another stream is tried within a session whose last one failed.
RETRY_S = 1.0


class Reporter:
    """Holds what is not delivered. ``deliver`` is called anew with each session."""

    def __init__(self, spool: Spool, identity: Identity) -> None:
        self._spool = spool
        self._identity = identity
        self._pending = {spooled.key: spooled for spooled in spool.adopt()}
        self._changed = asyncio.Event()

    def write(self, spooled: Spooled) -> None:
        """Keep a record and deliver it as soon as there is a session."""
        self._spool.write(spooled)
        self._pending[spooled.key] = spooled
        self._changed.set()

    async def deliver(self, connection: Connection) -> None:
        """Send all that is pending, then whatever comes, until cancelled."""
        while True:
            while not self._pending:
                self._changed.clear()
                await self._changed.wait()
            try:
                await connection.report(self._requests(), self._take)
            except TransportError as error:
                if error.refusal == "INVALID":
                    # It would be refused for ever; the ones behind it shall arrive.
                    key = next(iter(self._pending))
                    log.warning("failure record refused", reason=error.reason, sequence=key[1])
                    self._forget(key)
                    continue
                log.debug("failure stream ended", reason=error.reason)
            await asyncio.sleep(RETRY_S)

    def close(self) -> None:
        """Leave what is not delivered to a later agent."""
        self._spool.close()

    def _take(self, response: session_pb2.ReportFailuresResponse) -> None:
        self._forget((response.incarnation, response.sequence))

    def _forget(self, key: tuple[str, int]) -> None:
        if self._pending.pop(key, None) is not None:
            self._spool.remove(key)

    async def _requests(self) -> AsyncGenerator[session_pb2.ReportFailuresRequest, None]:
        sent: set[tuple[str, int]] = set()
        while True:
            self._changed.clear()
            for key, spooled in list(self._pending.items()):
                if key not in sent:
                    sent.add(key)
                    now = time.monotonic()
                    request = session_pb2.ReportFailuresRequest(record=spooled.record)
                    age_s = max(0.0, now - spooled.happened_at)
                    request.record.age.CopyFrom(duration(age_s))
                    if key[0] == self._identity.incarnation:
                        request.uptime.CopyFrom(duration(now - self._identity.began_at))
                    yield request
            await self._changed.wait()
