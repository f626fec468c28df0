"""Shell. What a coordinator answers while it does not lead: which coordinator does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any

import structlog

from drumbeat.access.token import Token
from drumbeat.coordinator.cluster.election import Election
from drumbeat.coordinator.core.tokens.caller import Caller
from drumbeat.coordinator.core.tokens.token_table import KeptToken, TokenTable
from drumbeat.coordinator.errors import CoordinatorError, NotLeader
from drumbeat.coordinator.journal import layout
from drumbeat.coordinator.journal.etcd.following import following
from drumbeat.coordinator.journal.etcd.model import Etcd, KeyValue
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.shell.transport.methods import Calls, Context
from drumbeat.wire.mapping import LOST_TERM_KEY

log = structlog.get_logger()

# Beyond the time within which a leader that died is replaced.
HOLD_BEYOND_S = 1.0


class Follower:
    """Holds calls while no leader is known, then refuses them with the leader's address.

    ``is_serving``: whether this coordinator serves calls itself by now. A held call counts towards
    the limits of its caller like any other.
    """

    def __init__(
        self, etcd: Etcd, keys: Keys, election: Election, is_serving: Callable[[], bool]
    ) -> None:
        self._etcd, self._keys, self._election = etcd, keys, election
        self.is_serving = is_serving
        self._settled = asyncio.Event()  # not set while a term of this coordinator begins
        self._settled.set()
        self._held = Calls()
        self._tokens: TokenTable | None = None  # None: not read yet

    def begins(self) -> None:
        """Hold calls for the term that this coordinator is about to serve."""
        self._settled.clear()

    def settled(self) -> None:
        """Release those calls: the term has begun, or will not."""
        self._settled.set()

    def end(self, error: CoordinatorError) -> None:
        """End all held calls, and those that come, with an error."""
        self._held.end(error)

    def verify(self, token: Token) -> Caller:
        """Return the caller that has a token. Raises ``Unauthenticated`` or ``NotLeader``."""
        if self._tokens is None:
            raise self._refusal("its tokens are not known yet")
        # Only the leader knows the coordinator's clock, so only it refuses expired tokens.
        return self._tokens.verify(token, now=float("-inf"))

    def kept_token(self, token_id: str) -> KeptToken | None:
        """Return a token. Raises ``NotLeader`` if the tokens are not known yet."""
        if self._tokens is None:
            raise self._refusal("its tokens are not known yet")
        return self._tokens.tokens.get(token_id)

    async def wait_for_term(self, context: Context) -> None:
        """Return once this coordinator serves calls. Raises ``NotLeader``.

        Raises at once if another leader is known that the caller has not lost, and after the time
        in which a dead leader is replaced at the latest.
        """
        lost = _lost_term(context)
        within_s = self._election.core.ttl_s + HOLD_BEYOND_S
        with self._held.held(), suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self.is_serving():
                    leader = await self._election.wait_for_leader(lost, within_s)
                    if leader is None:
                        break
                    if leader.member != self._election.member:
                        raise self._refusal()
                    await self._settled.wait()
                else:
                    return
        raise self._refusal()

    async def follow_tokens(self, revoked: Callable[[str], object]) -> None:
        """Follow the tokens of the journal; call ``revoked`` with the id of each revoked one."""
        async with aclosing(following(self._etcd, *self._keys.tokens, is_quiet=True)) as readings:
            async for pairs, _ in readings:
                before, table = self._tokens, TokenTable()
                for pair in pairs.values():
                    if (token := _token(self._keys, pair)) is not None:
                        table.put(token.token_id, token)
                self._tokens = table
                for token_id in table.tokens:
                    is_new = before is None or not before.is_revoked(token_id)
                    if is_new and table.is_revoked(token_id):
                        revoked(token_id)

    def _refusal(self, reason: str = "") -> NotLeader:
        leader = self._election.leader
        is_other = leader is not None and leader.member != self._election.member
        address = leader.address if leader is not None and is_other else ""
        return NotLeader(address, reason or self._election.core.reason or "one is about to lead")


def _token(keys: Keys, pair: KeyValue) -> KeptToken | None:
    """Return a token; ``None`` if it cannot be read, so that it lets no caller in."""
    try:
        sealed = layout.unseal(pair.value).check(keys.name(pair.key))
        token: KeptToken | None = layout.opened(sealed, KeptToken)
    except layout.Unreadable as error:
        log.warning("a token in etcd cannot be read", key=pair.key, reason=str(error))
        token = None
    return token


def _lost_term(context: Any) -> int:
    """Return the term whose coordinator a caller has lost; 0: none, or none that can be read."""
    value = dict(context.invocation_metadata() or ()).get(LOST_TERM_KEY, "")
    is_number = isinstance(value, str) and value.isascii() and value.isdecimal()
    return int(value[:20]) if is_number else 0
