"""Pure. The tokens of a coordinator: which exist, when they expire, which are forgotten."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from drumbeat.coordinator import errors
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core import events as ev
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import CALLER_CHARACTERS_MAX
from drumbeat.coordinator.core.tokens.token_table import KeptToken, TokenTable


class Tokens:
    """The core of the tokens. Its ``table`` is ahead of the journal's while that is written."""

    def __init__(self, policy: Policy) -> None:
        self.table = TokenTable()
        self.deadline: float | None = None  # when the next one expires
        self._policy = policy

    def restore(self, tokens: Iterable[KeptToken]) -> None:
        """Take over what a journal held."""
        for token in tokens:
            self.table.put(token.token_id, token)
        self._set_deadline()

    def handle(
        self, event: ev.TokenCreated | ev.TokenRevoked | ev.DeadlineReached, *, now: float
    ) -> list[fx.Effect]:
        """Take one event in at ``now`` (seconds, the coordinator's clock)."""
        match event:
            case ev.TokenCreated():
                effects = self._create(event, now)
            case ev.TokenRevoked():
                effects = self._revoke(event, now)
            case ev.DeadlineReached():
                due = self.deadline is not None and now >= self.deadline
                effects = self._expire(now) if due else []
        if effects:
            self._set_deadline()
        return effects

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in tokens; for tests."""
        policy, tokens = self._policy, self.table.tokens
        assert len(tokens) <= policy.tokens_max + policy.tokens_ended_max + 1, "too many tokens"
        assert all(key == token.token_id for key, token in tokens.items()), "a token misplaced"
        created = [token.created_at for token in tokens.values()]
        assert created == sorted(created), "not in the order of creation"

    def _create(self, event: ev.TokenCreated, now: float) -> list[fx.Effect]:
        tokens, most = self.table.tokens, self._policy.tokens_max
        if sum(token.is_valid(now=now) for token in tokens.values()) >= most:
            return [_answer(event, errors.LimitReached("tokens_max", most))]
        if event.token_id in tokens:
            return [_answer(event, errors.Unavailable("the id of the token is taken"))]
        token = KeptToken(
            token_id=event.token_id,
            role=event.role,
            secret_sha256=event.secret_sha256,
            created_at=now,
            expires_at=None if event.ttl_s is None else now + event.ttl_s,
            run_id=event.run_id,
            created_by=event.caller[:CALLER_CHARACTERS_MAX],
            secret=event.kept_secret,
        )
        return [self._keep(token), *self._forget_oldest(now), _answer(event, token)]

    def _revoke(self, event: ev.TokenRevoked, now: float) -> list[fx.Effect]:
        token = self.table.tokens.get(event.token_id)
        if token is None:
            return [_answer(event, errors.UnknownToken(event.token_id))]
        if token.revoked_at is not None:
            return [_answer(event, token)]
        token = replace(token, revoked_at=now)
        return [self._keep(token), *self._forget_oldest(now), _answer(event, token)]

    def _expire(self, now: float) -> list[fx.Effect]:
        over = [token for token in self._awaited() if token.is_expired(now=now)]
        kept = [self._keep(replace(token, has_expired=True)) for token in over]
        return [*kept, *self._forget_oldest(now)]

    def _forget_oldest(self, now: float) -> list[fx.Effect]:
        """Forget those that ended first, beyond what may be remembered."""
        # The one that coordinators made is known as revoked for ever: they make no other.
        of_others = (token for token in self.table.tokens.values() if not token.secret)
        ended = [token for token in of_others if not token.is_valid(now=now)]
        surplus = max(0, len(ended) - self._policy.tokens_ended_max)
        oldest = sorted(ended, key=lambda token: token.ended_at)[:surplus]
        for token in oldest:
            self.table.put(token.token_id, None)
        return [fx.KeepToken(token_id=token.token_id, token=None) for token in oldest]

    def _keep(self, token: KeptToken) -> fx.Effect:
        self.table.put(token.token_id, token)
        return fx.KeepToken(token_id=token.token_id, token=token)

    def _awaited(self) -> list[KeptToken]:
        """Return the valid tokens that will expire, or have without it being journaled yet."""
        tokens = (token for token in self.table.tokens.values() if token.revoked_at is None)
        return [token for token in tokens if token.expires_at is not None and not token.has_expired]

    def _set_deadline(self) -> None:
        due = (token.expires_at for token in self._awaited() if token.expires_at is not None)
        self.deadline = min(due, default=None)


def _answer(
    event: ev.TokenCreated | ev.TokenRevoked, result: KeptToken | errors.CoordinatorError
) -> fx.Effect:
    return fx.Answer(request_id=event.request_id, result=result)
