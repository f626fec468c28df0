"""Shell. The certificate authority that all coordinators of a cluster have, in etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import structlog

from drumbeat.access.files import PEM_BYTES_MAX
from drumbeat.coordinator import errors
from drumbeat.coordinator.access.authority import Issuer, OwnAuthority, read_issuer
from drumbeat.coordinator.access.server_identity import time_of_day
from drumbeat.coordinator.journal.etcd import model
from drumbeat.coordinator.journal.etcd.following import following
from drumbeat.coordinator.journal.keys import Keys

log = structlog.get_logger()

# How long a replacement waits for etcd.
REPLACE_TIMEOUT_S = 10.0


class SharedAuthority(OwnAuthority):
    """The authority in etcd. ``open`` makes one, ``follow`` takes over replacements of others.

    ``rotate`` and ``retire`` wait for the loop that opened it, so they must not be called on it.
    """

    def __init__(self, etcd: model.Etcd, keys: Keys, kept: tuple[Issuer, int]) -> None:
        super().__init__(kept[0], time_of_day)
        self._etcd, self._where, self._kept = etcd, keys, kept
        self._loop = asyncio.get_running_loop()
        # Returns the term in which this coordinator leads, else 0: only the leader may replace it.
        self.term: Callable[[], int] = lambda: 0
        # Called on the loop with the keys that are served from now on; repeatedly, too.
        self.on_replaced: Callable[[list[str]], object] = lambda _keys: None

    @classmethod
    async def open(cls, etcd: model.Etcd, keys: Keys, directory: Path) -> SharedAuthority:
        """Read the authority. Raises ``CommandFailed``.

        The first coordinator brings the one of its state directory, from when it kept its journal
        there, or makes one.
        """
        reading = await etcd.read(keys.authority, "")
        pair = next(iter(reading.pairs), None)
        if pair is None:
            issuer = read_issuer(directory) or Issuer.new(now=time_of_day())
            put, get = model.Put(keys.authority, issuer.content()), model.Get(keys.authority)
            absent = model.IsCreated(keys.authority, 0)
            outcome = await etcd.commit(model.Transaction((absent,), (put,), (get,)))
            if outcome.is_done:
                log.info("certificate authority made", key=keys.authority)
                return cls(etcd, keys, (issuer, outcome.revision))
            pair = outcome.reads[0][0]
        try:
            return cls(etcd, keys, (_parsed(pair), pair.mod_revision))
        except ValueError as error:
            text = f"the certificate authority in etcd, {keys.authority}: {error}"
            raise errors.AuthorityUnusable(text, hint=_HINT) from error

    async def follow(self) -> None:
        """Serve the authority in etcd until cancelled; one that cannot be used changes nothing."""
        async with aclosing(
            following(self._etcd, self._where.authority, "", is_quiet=True)
        ) as seen:
            async for pairs, _ in seen:
                try:
                    self._take(pairs.get(self._where.authority))
                except ValueError as error:
                    text = f"the certificate authority in etcd, {self._where.authority}: {error}"
                    self._complain(errors.AuthorityUnusable(text, hint=_HINT))

    def _take(self, pair: model.KeyValue | None) -> None:
        if pair is None:
            raise ValueError("it is gone")
        issuer, revision = self._kept
        if pair.mod_revision <= revision:
            return
        if pair.value != issuer.content():
            issuer = _parsed(pair)
            self._serve(issuer)
        self._kept = issuer, pair.mod_revision
        self.on_replaced(issuer.keys())

    def _keep(self, before: Issuer, issuer: Issuer) -> None:
        put = asyncio.run_coroutine_threadsafe(self._put(before, issuer.content()), self._loop)
        put.result()

    async def _put(self, before: Issuer, content: bytes) -> None:
        (kept, revision), key, term = self._kept, self._where.authority, self.term()
        if not term:
            raise errors.NotLeader("", "who does replaces the authority")
        if kept.content() != before.content():
            raise errors.Unavailable(_REPLACED)
        conditions = (model.IsCreated(self._where.leader, term), model.IsModified(key, revision))
        transaction = model.Transaction(conditions, (model.Put(key, content), model.Get(key)))
        try:
            async with asyncio.timeout(REPLACE_TIMEOUT_S):
                outcome = await self._etcd.commit(transaction)
        except (errors.JournalOutage, TimeoutError) as error:
            raise errors.Unavailable(_UNKNOWN) from error
        if not outcome.is_done:
            raise errors.Unavailable(_REPLACED)
        self._take(outcome.reads[0][0])


_REPLACED = "it does not lead any more, or the authority was just replaced; see what is served"
_UNKNOWN = "etcd did not answer; what is served tells whether the authority was replaced"
_HINT = (
    "bring it back as it was; if it is lost, delete the key while no coordinator runs: then there "
    "is another authority, and machines join with new tokens"
)


def _parsed(pair: model.KeyValue) -> Issuer:
    if len(pair.value) > PEM_BYTES_MAX:
        raise ValueError(f"it has more than {PEM_BYTES_MAX} bytes")
    return Issuer.parse(pair.value)
