"""Any order of creating, revoking, expiring and restarting keeps what tokens promise.

The journal is JSON, as on a disk. A restart reads it; a reboot takes the clock back to the last
write as well. ``DRUMBEAT_SEEDS`` sets the number of orders.
"""

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from drumbeat.access.token import Role, Token
from drumbeat.coordinator import errors
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import DeadlineReached, TokenCreated, TokenRevoked
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.tokens.token_table import KeptToken, TokenTable, secret_sha256
from drumbeat.coordinator.core.tokens.tokens import Tokens
from tests.support.orders import orders

POLICY = Policy(tokens_max=4, tokens_ended_max=3)


class TokenMachine(RuleBasedStateMachine):
    """One coordinator over many lives, and what was promised of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.written_at = 1_000.0
        self.core, self.disk = Tokens(POLICY), dict[str, bytes]()
        self.number = 0
        self.revoked = set[str]()
        self.seen_expired = set[str]()

    def take(self, event: TokenCreated | TokenRevoked | DeadlineReached) -> object:
        """Handle an event and journal what follows; return the answer."""
        answer = None
        for effect in self.core.handle(event, now=self.now):
            match effect:
                case fx.KeepToken(token_id=key, token=None):
                    del self.disk[key]
                case fx.KeepToken(token_id=key, token=token):
                    self.disk[key] = msgspec.json.encode(token)
                case fx.Answer(result=result):
                    answer = result
            self.written_at = self.now
        self.core.check_invariants()
        return answer

    @rule(role=st.sampled_from(Role), ttl_s=st.none() | st.integers(1, 50))
    def create(self, role: Role, ttl_s: int | None) -> None:
        valid = sum(token.is_valid(now=self.now) for token in self.table().tokens.values())
        self.number += 1
        answer = self.take(
            TokenCreated(
                request_id=self.number,
                token_id=f"id{self.number:06}",
                role=role,
                secret_sha256=secret_sha256(f"secret {self.number}"),
                ttl_s=ttl_s,
            )
        )
        assert isinstance(answer, errors.LimitReached) == (valid >= POLICY.tokens_max)

    @rule(back=st.integers(0, 8))
    def revoke(self, back: int) -> None:
        key = f"id{max(1, self.number - back):06}"
        is_known = key in self.table().tokens
        answer = self.take(TokenRevoked(request_id=0, token_id=key))
        assert isinstance(answer, errors.UnknownToken) != is_known
        if is_known:
            self.revoked.add(key)

    @rule(seconds=st.integers(1, 60), is_handled=st.booleans())
    def advance(self, seconds: int, is_handled: bool) -> None:
        self.now += seconds
        if is_handled and self.core.deadline is not None and self.now >= self.core.deadline:
            self.take(DeadlineReached())
            due = self.core.deadline
            assert due is None or due > self.now

    @rule(is_reboot=st.booleans())
    def restart(self, is_reboot: bool) -> None:
        if is_reboot:
            self.now = self.written_at
        journaled = self.table().tokens
        self.seen_expired &= {key for key, token in journaled.items() if token.has_expired}
        self.core = Tokens(POLICY)
        self.core.restore(journaled.values())

    def table(self) -> TokenTable:
        """Return the tokens as readers see them."""
        table = TokenTable()
        for key, body in self.disk.items():
            table.put(key, msgspec.json.decode(body, type=KeptToken))
        return table

    @invariant()
    def nothing_opens_that_has_ended(self) -> None:
        table = self.table()
        assert table.tokens == self.core.table.tokens
        for number in range(1, self.number + 1):
            key = f"id{number:06}"
            kept = table.tokens.get(key)
            role = kept.role if kept is not None else Role.JOIN
            try:
                caller = table.verify(Token(role, key, f"secret {number}"), now=self.now)
            except errors.Unauthenticated:
                assert kept is None or key in self.revoked
                continue
            assert key not in self.revoked
            assert caller.is_expired or key not in self.seen_expired
            if caller.is_expired:
                self.seen_expired.add(key)
            with pytest.raises(errors.Unauthenticated):
                table.verify(Token(role, key, f"secret {number + 1}"), now=self.now)


def test_any_order_keeps_the_promises() -> None:
    run_state_machine_as_test(
        TokenMachine,
        settings=orders(60, steps=30),
    )
