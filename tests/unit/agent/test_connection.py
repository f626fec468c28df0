"""Attempts, the delays between them, and the end of patience."""

from __future__ import annotations

from typing import Any

import pytest

from agent.core.events import SessionLost, SessionWelcomed
from agent.core.link import DELAY_FIRST_S, CoordinatorLink
from agent.errors import CoordinatorLost, CoordinatorUnreachable
from tests.support.agents import CONFIG, PACE

WELCOMED = SessionWelcomed(attempt=1, pace=PACE)


def lost(reason: str, **more: Any) -> SessionLost:
    return SessionLost(attempt=1, reason=reason, **more)


def a_connection() -> CoordinatorLink:
    return CoordinatorLink(CONFIG)


def test_the_first_attempt_is_made_at_once() -> None:
    connection = a_connection()
    connection.begin(now=10.0)
    assert (connection.attempt, connection.deadline, connection.is_open) == (1, 610.0, False)


def test_delays_double_up_to_what_the_coordinator_allows() -> None:
    connection = a_connection()
    connection.begin(now=0.0)
    delays = [connection.lost(lost("refused"), now=1.0) for _ in range(30)]
    doubled = [DELAY_FIRST_S * 2**failures for failures in range(30)]
    assert delays == [min(delay, PACE.reconnect_delay_max_s) for delay in doubled]
    assert connection.attempt == 31


def test_a_welcome_makes_the_next_delay_short_again() -> None:
    connection = a_connection()
    connection.begin(now=0.0)
    for _ in range(5):
        connection.lost(lost("refused"), now=1.0)
    connection.welcomed(WELCOMED)
    assert (connection.is_open, connection.deadline) == (True, None)
    assert connection.lost(lost("reset"), now=2.0) == DELAY_FIRST_S


def test_the_join_timeout_counts_from_the_first_attempt() -> None:
    connection = a_connection()
    connection.begin(now=10.0)
    connection.lost(lost("refused"), now=500.0)
    assert connection.given_up(now=609.9) is None
    error = connection.given_up(now=610.0)
    assert isinstance(error, CoordinatorUnreachable)
    assert "refused" in str(error)
    assert error.hint == CoordinatorUnreachable.hint


def test_what_to_do_about_the_latest_reason_is_the_hint() -> None:
    connection = a_connection()
    connection.begin(now=0.0)
    connection.lost(lost("its certificate has expired", hint="renew it"), now=1.0)
    error = connection.given_up(now=600.0)
    assert error is not None
    assert error.hint == "renew it"


def test_the_grace_counts_from_the_loss() -> None:
    connection = a_connection()
    connection.begin(now=0.0)
    connection.welcomed(WELCOMED)
    assert connection.given_up(now=10_000.0) is None
    connection.lost(lost("reset"), now=1000.0)
    connection.lost(lost("refused"), now=1050.0)
    assert connection.deadline == 1060.0
    assert connection.given_up(now=1059.9) is None
    error = connection.given_up(now=1060.0)
    assert isinstance(error, CoordinatorLost)
    assert "refused" in str(error)


@pytest.mark.parametrize("is_open", [False, True])
def test_nothing_is_awaited_after_the_end(is_open: bool) -> None:
    connection = a_connection()
    connection.begin(now=0.0)
    if is_open:
        connection.welcomed(WELCOMED)
    attempt = connection.attempt
    connection.end()
    assert (connection.is_open, connection.deadline) == (False, None)
    assert connection.attempt > attempt, "late events belong to nobody"
    assert connection.given_up(now=1e9) is None
