"""Codes and cookies: what is signed, for whom, until when; and how fast strangers are served."""

import pytest
from msgspec.structs import replace

from drumbeat.access.token import Role
from drumbeat.coordinator.errors import LimitReached, Unauthenticated
from drumbeat.coordinator.web import passes
from drumbeat.coordinator.web.connections import RateLimit
from drumbeat.coordinator.web.passes import Kind, Pass, UsedCodes, csrf_of, opened, signed

SECRET, OTHER = b"s" * 32, b"o" * 32
CODE = Pass(
    kind=Kind.CODE, pass_id="1", name="k3v9qr2m", role=Role.VIEW, until=100.0, token_id="k3v9qr2m"
)


def test_what_is_signed_is_read_until_its_end() -> None:
    text = signed(CODE, SECRET)
    assert opened(text, Kind.CODE, SECRET, now=99.9) == CODE
    with pytest.raises(Unauthenticated, match="has expired"):
        opened(text, Kind.CODE, SECRET, now=100.0)
    with pytest.raises(Unauthenticated, match="where a session is asked for"):
        opened(text, Kind.SESSION, SECRET, now=0.0)


def test_what_another_key_signed_or_was_changed_is_refused() -> None:
    text = signed(CODE, SECRET)
    admin = signed(replace(CODE, role=Role.ADMIN), OTHER)
    forged = f"{admin.partition('.')[0]}.{text.partition('.')[2]}"
    swapped = text.replace("e", "f", 1)
    for wrong in ("", ".", "é.é", text[:-1], text + "A", admin, forged, swapped, "a" * 10_000):
        with pytest.raises(Unauthenticated, match="not one of this coordinator's"):
            opened(wrong, Kind.CODE, SECRET, now=0.0)


def test_no_text_of_a_caller_is_told() -> None:
    with pytest.raises(Unauthenticated) as error:
        opened("secret.secret", Kind.CODE, SECRET, now=0.0)
    assert "secret" not in str(error.value)


def test_a_code_is_good_once_and_remembered_no_longer_than_it_is_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passes, "USED_MAX", 2)
    used = UsedCodes()
    for number in "12":
        used.take(replace(CODE, pass_id=number), now=0.0)
    with pytest.raises(LimitReached):
        used.take(replace(CODE, pass_id="3"), now=99.0)
    used.take(replace(CODE, pass_id="3", until=200.0), now=100.0)
    with pytest.raises(Unauthenticated, match="used before"):
        used.take(replace(CODE, pass_id="3", until=200.0), now=101.0)


def test_what_the_page_shows_belongs_to_its_session() -> None:
    assert len({csrf_of("a", SECRET), csrf_of("b", SECRET), csrf_of("a", OTHER)}) == 3


def test_strangers_come_at_once_for_a_moment_and_then_at_one_rate() -> None:
    pace = RateLimit(10.0, 3)
    assert [pace.take(now=0.0) for _ in range(5)] == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2])
    assert pace.take(now=60.0) == 0.0


@pytest.mark.parametrize("now", [0.0, 211.60322905771815, 32757.11767436881])
def test_a_turn_that_comes_at_once_is_no_wait_however_long_the_host_runs(now: float) -> None:
    assert RateLimit(0.01, 1).take(now=now) == 0.0


def test_those_that_leave_before_their_turn_delay_no_one() -> None:
    pace = RateLimit(10.0, 3)
    delays = [pace.take(now=0.0) for _ in range(3_003)]
    assert delays[-1] == pytest.approx(300.0)
    for _ in range(3_000):
        pace.give_back()
    assert pace.take(now=0.0) == pytest.approx(0.1)
