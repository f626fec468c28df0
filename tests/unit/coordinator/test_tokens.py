"""Tokens: who is let in with which, when they end, what is remembered of them."""

from typing import Any

import pytest

from drumbeat.access.token import Role, Token
from drumbeat.coordinator import errors
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import DeadlineReached, TokenCreated, TokenRevoked
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.tokens.caller import Caller
from drumbeat.coordinator.core.tokens.token_table import KeptToken, secret_sha256
from drumbeat.coordinator.core.tokens.tokens import Tokens

SECRET = "s" * 22
POLICY = Policy(tokens_max=3, tokens_ended_max=2)


def created(number: int = 1, **fields: Any) -> TokenCreated:
    given: dict[str, Any] = {
        "request_id": number,
        "token_id": f"token{number:03}",
        "role": Role.JOIN,
        "secret_sha256": secret_sha256(SECRET),
        "caller": "operator",
    }
    return TokenCreated(**(given | fields))


def revoked(number: int = 1, request_id: int = 9) -> TokenRevoked:
    return TokenRevoked(request_id=request_id, token_id=f"token{number:03}", caller="operator")


def token(number: int = 1, secret: str = SECRET, role: Role = Role.JOIN) -> Token:
    return Token(role, f"token{number:03}", secret)


def tokens(*events: TokenCreated | TokenRevoked, now: float = 10.0) -> Tokens:
    core = Tokens(POLICY)
    for event in events:
        core.handle(event, now=now)
        core.check_invariants()
    return core


def refusal(core: Tokens, given: Token, now: float = 10.0) -> str:
    with pytest.raises(errors.Unauthenticated) as refused:
        core.table.verify(given, now=now)
    return str(refused.value)


def test_a_created_token_is_journaled_and_answered() -> None:
    core = Tokens(POLICY)
    effects = core.handle(created(run_id="exp1", ttl_s=60.0), now=10.0)
    kept = KeptToken(
        token_id="token001",
        role=Role.JOIN,
        secret_sha256=secret_sha256(SECRET),
        created_at=10.0,
        expires_at=70.0,
        run_id="exp1",
        created_by="operator",
    )
    assert effects == [
        fx.KeepToken(token_id="token001", token=kept),
        fx.Answer(request_id=1, result=kept),
    ]
    assert core.deadline == 70.0


def test_a_token_tells_who_calls_and_for_which_run() -> None:
    core = tokens(created(run_id="exp1"), created(2, role=Role.ADMIN))
    assert core.table.verify(token(), now=11.0) == Caller("token001", Role.JOIN, "exp1")
    admin = token(2, role=Role.ADMIN)
    assert core.table.verify(admin, now=11.0) == Caller("token002", Role.ADMIN)


def test_an_unknown_id_and_a_wrong_secret_are_refused_alike() -> None:
    core = tokens(created())
    wrong = {
        refusal(core, token(secret="t" * 22)),
        refusal(core, token(role=Role.ADMIN)),
        refusal(Tokens(POLICY), token()),
    }
    assert len(wrong) == 1
    assert "token001 is not known here" in wrong.pop()


def test_a_refusal_has_no_secret_in_it() -> None:
    assert SECRET not in refusal(Tokens(POLICY), token())
    assert SECRET not in repr(created())


def test_a_revoked_token_is_refused_by_that_word_only_with_its_secret() -> None:
    core = tokens(created(), revoked())
    assert "token001 was revoked" in refusal(core, token())
    assert "not known" in refusal(core, token(secret="t" * 22))


def test_revoking_again_changes_nothing_and_is_answered() -> None:
    core = tokens(created(), revoked())
    kept = core.table.tokens["token001"]
    assert kept.revoked_at == 10.0
    assert core.handle(revoked(), now=20.0) == [fx.Answer(request_id=9, result=kept)]


def test_an_unknown_token_cannot_be_revoked() -> None:
    (answer,) = Tokens(POLICY).handle(revoked(), now=1.0)
    assert isinstance(answer, fx.Answer)
    assert isinstance(answer.result, errors.UnknownToken)


def test_a_token_expires_at_its_instant_and_still_tells_who_calls() -> None:
    core = tokens(created(ttl_s=5.0), now=10.0)
    assert not core.table.verify(token(), now=14.9).is_expired
    assert core.table.verify(token(), now=15.0) == Caller("token001", Role.JOIN, is_expired=True)


def test_what_has_expired_is_journaled_so_that_no_clock_brings_it_back() -> None:
    core = tokens(created(ttl_s=5.0), created(2, ttl_s=9.0), now=10.0)
    (effect,) = core.handle(DeadlineReached(), now=15.0)
    assert isinstance(effect, fx.KeepToken)
    assert effect.token is not None
    assert effect.token.has_expired
    assert core.deadline == 19.0
    assert core.table.verify(token(), now=1.0).is_expired
    assert core.handle(DeadlineReached(), now=16.0) == []


def test_a_revoked_token_awaits_no_instant() -> None:
    core = tokens(created(ttl_s=5.0), revoked())
    assert core.deadline is None


def test_one_more_than_the_most_is_refused_until_one_ends() -> None:
    core = tokens(*(created(number) for number in (1, 2, 3)))
    (answer,) = core.handle(created(4), now=11.0)
    assert isinstance(answer, fx.Answer)
    assert str(answer.result) == "the coordinator's limit tokens_max is reached: 3"
    core.handle(revoked(2), now=12.0)
    assert len(core.handle(created(4), now=13.0)) == 2


def test_an_expired_token_counts_no_more_even_before_that_is_journaled() -> None:
    core = tokens(*(created(number, ttl_s=1.0) for number in (1, 2, 3)), now=10.0)
    effects = core.handle(created(4), now=11.0)
    assert core.table.verify(token(4), now=11.0).name == "token004"
    assert fx.KeepToken(token_id="token001", token=None) in effects


def test_those_that_ended_first_are_forgotten_first() -> None:
    core = tokens(*(created(number) for number in (1, 2, 3)))
    for number, now in ((2, 11.0), (3, 12.0)):
        core.handle(revoked(number), now=now)
    effects = core.handle(revoked(1), now=13.0)
    assert effects[1] == fx.KeepToken(token_id="token002", token=None)
    assert list(core.table.tokens) == ["token001", "token003"]
    assert "not known" in refusal(core, token(2))


def test_an_id_is_not_given_twice() -> None:
    core = tokens(created())
    (answer,) = core.handle(created(request_id=2, role=Role.ADMIN), now=11.0)
    assert isinstance(answer, fx.Answer)
    assert isinstance(answer.result, errors.Unavailable)
    assert core.table.tokens["token001"].role is Role.JOIN
