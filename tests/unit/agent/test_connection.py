"""Attempts, the delays between them, and the end of patience."""

import dataclasses
from typing import Any

import pytest

from drumbeat.agent.core.events import SessionLost, SessionWelcomed
from drumbeat.agent.core.link import DELAY_FIRST_S, CoordinatorLink
from drumbeat.agent.errors import AccessRefused, CoordinatorLost, CoordinatorUnreachable, RunRefused
from drumbeat.agent.session.convert import Identity, hello_message
from drumbeat.agent.session.session import WELCOME_TIMEOUT_S
from drumbeat.agent.settings.config import GRACE_S, ISOLATION_GRACE_S
from drumbeat.command.leader_search import Outcome
from drumbeat.v1 import session_pb2
from tests.support.agents import CONFIG, PACE, a_beat

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


def several() -> CoordinatorLink:
    link = CoordinatorLink(dataclasses.replace(CONFIG, coordinator="a:1,b:1,c:1"))
    link.begin(now=0.0)
    return link


def opened(link: CoordinatorLink, delay_s: float) -> tuple[str, int, float]:
    opening = link.opening(delay_s, a_beat())
    return opening.address, opening.lost_term, opening.delay_max_s


def test_of_several_coordinators_each_is_asked_at_once_before_it_waits() -> None:
    link = several()
    asked = [opened(link, link.lost(lost("away"), now=1.0)) for _ in range(6)]
    assert asked == [
        *(("b:1", 0, 0.0), ("c:1", 0, 0.0), ("a:1", 0, DELAY_FIRST_S)),
        *(("b:1", 0, 0.0), ("c:1", 0, 0.0), ("a:1", 0, 2 * DELAY_FIRST_S)),
    ]
    assert link.reason == "a:1, b:1 and c:1: away"


def test_the_term_that_is_lost_is_told_to_all_but_the_one_it_is_sent_to() -> None:
    link = several()
    link.welcomed(SessionWelcomed(attempt=1, pace=PACE, term=7))
    link.welcomed(SessionWelcomed(attempt=1, pace=PACE))  # another pace
    silent = lost("timeout", outcome=Outcome.SILENT)
    assert opened(link, link.lost(silent, now=1.0)) == ("b:1", 7, 0.0)
    sent = lost("", outcome=Outcome.NOT_LEADER, leader="d:1")
    assert opened(link, link.lost(sent, now=1.0)) == ("d:1", 0, 0.0)
    assert opened(link, link.lost(lost("refused"), now=1.0)) == ("c:1", 7, 0.0)


def test_others_are_not_to_wait_at_first_where_the_one_that_is_lost_may_be_back() -> None:
    link = several()
    link.welcomed(SessionWelcomed(attempt=1, pace=PACE, term=7))
    asked = [opened(link, link.lost(lost("reset", outcome=Outcome.BROKEN), now=1.0))]
    asked += [opened(link, link.lost(lost("refused"), now=1.0)) for _ in range(5)]
    assert [(address, term) for address, term, _ in asked] == [
        *(("a:1", 0), ("b:1", 0), ("c:1", 0)),
        *(("a:1", 7), ("b:1", 7), ("c:1", 7)),
    ]


def test_one_that_fell_silent_is_asked_again_once_its_successor_was_waited_for_in_vain() -> None:
    link = several()
    link.welcomed(SessionWelcomed(attempt=1, pace=PACE, term=7))
    silent = lost("timeout", outcome=Outcome.SILENT)
    assert opened(link, link.lost(silent, now=1.0)) == ("b:1", 7, 0.0)
    named = lost("", outcome=Outcome.NOT_LEADER, leader="a:1")
    assert opened(link, link.lost(named, now=7.0)) == ("a:1", 0, 0.0)
    assert opened(link, link.lost(silent, now=9.0)) == ("c:1", 7, 0.0)


def test_all_have_to_refuse_its_token_but_one_that_has_let_it_in() -> None:
    refusal = AccessRefused("no such token")
    refused = lost("no such token", refusal=refusal)
    link = several()
    for _ in "ab":
        assert link.refusal(refused) is None
        link.lost(refused, now=1.0)
    assert link.refusal(refused) is refusal
    link = several()
    link.welcomed(SessionWelcomed(attempt=1, pace=PACE, term=7))
    assert link.refusal(refused) is refusal
    link = CoordinatorLink(CONFIG)
    link.lost(lost("", outcome=Outcome.NOT_LEADER, leader="d:1"), now=1.0)
    assert link.refusal(refused) is refusal
    final = RunRefused("r", "it has ended")
    assert several().refusal(lost("it has ended", refusal=final)) is final


UNREACHED = [
    lost("keepalive watchdog timeout", outcome=Outcome.SILENT),
    lost("Failed to connect to remote host: getsockopt(SO_ERROR): Connection timed out"),
    lost("connection attempt timed out before receiving SETTINGS frame"),
    lost("connect: Network is unreachable (101)"),
    lost("connect: No route to host (113)"),
    lost("errors resolving head1:29400: [field:hostname lookup error:address lookup failed"),
    lost("DNS resolution failed for head1:29400"),
    lost(f"no answer within {WELCOME_TIMEOUT_S:g} s"),
]
REACHED = [
    lost("Failed to connect to remote host: Connection refused"),
    lost("none does: etcd did not answer in time, timed out", outcome=Outcome.NOT_LEADER),
    lost("the journal cannot be written: timed out", outcome=Outcome.REFUSED),
    lost("Ssl handshake failed (TSI_PROTOCOL_FAILURE): certificate has expired"),
]
SEVERAL = dataclasses.replace(CONFIG, coordinator="a:1,b:1", coordinator_grace=None)


@pytest.mark.parametrize("event", UNREACHED, ids=lambda event: event.reason)
def test_an_agent_that_reaches_no_host_of_several_coordinators_gives_up_sooner(
    event: SessionLost,
) -> None:
    connection = CoordinatorLink(SEVERAL)
    connection.begin(now=0.0)
    connection.welcomed(WELCOMED)
    connection.lost(lost("reset", outcome=Outcome.BROKEN), now=1000.0)
    connection.lost(REACHED[0], now=1100.0)
    connection.lost(event, now=1150.0)
    assert connection.given_up(now=1100.0 + ISOLATION_GRACE_S - 0.1) is None
    error = connection.given_up(now=1100.0 + ISOLATION_GRACE_S)
    assert isinstance(error, CoordinatorLost)
    assert "did not come back within 2 min 40 s" in str(error)


@pytest.mark.parametrize("event", REACHED, ids=lambda event: event.reason)
def test_it_waits_for_the_whole_grace_while_a_host_answers(event: SessionLost) -> None:
    connection = CoordinatorLink(SEVERAL)
    connection.begin(now=0.0)
    connection.welcomed(WELCOMED)
    connection.lost(lost("reset", outcome=Outcome.BROKEN), now=1000.0)
    for now in range(1010, 1600, 50):
        connection.lost(event, now=now)
        connection.lost(UNREACHED[1], now=now + 40)
    assert connection.deadline == 1000.0 + GRACE_S


@pytest.mark.parametrize(
    ("told", "grace_s"),
    [({"coordinator": "a:1"}, GRACE_S), ({"coordinator_grace": 300.0}, 300.0)],
    ids=["one address", "a grace is given"],
)
def test_else_the_grace_is_one(told: dict[str, Any], grace_s: float) -> None:
    connection = CoordinatorLink(dataclasses.replace(SEVERAL, **told))
    connection.begin(now=0.0)
    connection.welcomed(WELCOMED)
    connection.lost(lost("reset"), now=1000.0)
    connection.lost(UNREACHED[1], now=1040.0)
    assert connection.deadline == 1000.0 + grace_s


def test_agents_of_a_run_tell_one_grace_however_many_addresses_they_were_given() -> None:
    one = dataclasses.replace(SEVERAL, coordinator="a:1")
    identity = Identity(incarnation="i", host="h")
    said = [hello_message(each, identity, session_pb2.Beat()) for each in (one, SEVERAL)]
    assert said[0].run.spec == said[1].run.spec
