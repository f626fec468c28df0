"""Which coordinator is asked next: a table of stories, and what holds whatever they answer."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.command.leader_search import (
    REDIRECTS_MAX,
    LeaderSearch,
    Outcome,
    is_silence,
    plain_details,
)
from drumbeat.coordinator.errors import NotLeader

NOWHERE, SILENT, BROKEN, REFUSED = (
    Outcome.NO_ANSWER,
    Outcome.SILENT,
    Outcome.BROKEN,
    Outcome.REFUSED,
)
NO_LEADER = Outcome.NOT_LEADER


def asked_addresses(search: LeaderSearch, *story: object) -> list[str]:
    """Tell a search what each address answers; return whom it asks, "wait" between two rounds.

    A text of an answer is the leader that a follower names.
    """
    asked = []
    for answer in story:
        if answer == "found":
            search.note_leader()
            continue
        outcome, leader = (NO_LEADER, answer) if type(answer) is str else (answer, "")
        assert isinstance(outcome, Outcome)
        if not search.failed(outcome, "why", leader=str(leader)):
            asked.append("wait")
        asked.append(search.address)
        search.check_invariants()
    return asked


@pytest.mark.parametrize(
    ("addresses", "story", "asked"),
    [
        # One address is waited for and asked again, whatever it says.
        ("a", [NOWHERE, NO_LEADER, REFUSED], ["wait", "a", "wait", "a", "wait", "a"]),
        ("a", ["found", BROKEN, NOWHERE], ["wait", "a", "wait", "a"]),
        # A follower names another one: at once, though it is not in the list, and back if it fails.
        ("a", ["b", NOWHERE, "b"], ["b", "wait", "a", "b"]),
        # Each is asked once before the search waits; those that gave no answer are asked last.
        ("abc", [NOWHERE, NO_LEADER, NOWHERE, NO_LEADER], ["b", "c", "wait", "b", "a"]),
        # In one hop.
        ("abc", ["c", "found"], ["c"]),
        # The leader is asked first when a session breaks, then the others.
        ("abc", ["b", "found", BROKEN, NOWHERE, NO_LEADER], ["b", "wait", "b", "a", "c"]),
        # One that went silent is not asked again at once.
        ("abc", ["b", "found", SILENT, "c", "found"], ["b", "a", "c"]),
        # None answers: it may be this client's network, so the one that led comes first again.
        ("abc", ["b", "found", SILENT, NOWHERE, NOWHERE], ["b", "a", "c", "wait", "b"]),
        # Handed over: to the next leader at once.
        ("abc", ["found", "c", "found", "b"], ["c", "b"]),
        # The one that leads refuses for now: no other would say anything else.
        ("abc", ["b", REFUSED, REFUSED], ["b", "wait", "b", "wait", "b"]),
        # They name a dead one: it is asked once in a round.
        ("abc", [NOWHERE, "a", "a"], ["b", "c", "wait", "b"]),
        ("ab", [NOWHERE, "a", "a"], ["b", "wait", "b", "a"]),
        # They name each other: the round goes on with the others, and ends.
        ("abc", ["b", "a", "b", "a", "found"], ["b", "a", "b", "c"]),
        ("ab", ["b", "a", "b", "a"], ["b", "a", "b", "wait", "a"]),
        # One names itself.
        ("ab", ["a", "b"], ["b", "wait", "a"]),
    ],
)
def test_the_next_one_to_ask(addresses: str, story: list[object], asked: list[str]) -> None:
    assert asked_addresses(LeaderSearch(addresses), *story) == asked


def test_who_was_sent_to_a_coordinator_has_not_lost_it() -> None:
    search = LeaderSearch("ab")
    asked_addresses(search, "found", "b")
    assert search.is_named
    asked_addresses(search, NOWHERE)
    assert (search.address, search.is_named) == ("a", False)
    asked_addresses(search, "b", "found", BROKEN)
    assert (search.address, search.is_named) == ("b", False)


def test_one_that_is_named_and_gives_no_answer_has_died() -> None:
    search = LeaderSearch("ab")
    asked_addresses(search, NOWHERE)
    assert not search.is_leader_dead
    asked_addresses(search, "a")
    assert search.is_leader_dead
    asked_addresses(search, "c")
    assert not search.is_leader_dead
    asked_addresses(search, NOWHERE)
    assert search.is_leader_dead
    search.note_leader()
    assert not search.is_leader_dead


def test_why_none_was_found_is_said_once_for_those_that_say_the_same() -> None:
    search = LeaderSearch(["head1:1", "head2:1", "head3:1"])
    away = str(NotLeader("", "etcd has not answered for 12 s"))
    refused = "failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:1: refused"
    for outcome, reason in ((NO_LEADER, away), (NO_LEADER, away), (NOWHERE, refused)):
        search.failed(outcome, reason)
    assert search.why() == (
        "no coordinator leads: etcd has not answered for 12 s (head1:1 and head2:1 say so); "
        "head3:1: refused"
    )
    search.note_leader()
    assert search.why() == ""


def test_of_one_address_the_reason_is_as_it_was_given() -> None:
    search = LeaderSearch(["head:1"])
    search.failed(NOWHERE, "refused")
    assert (search.why(), search.has_others) == ("refused", False)
    search.failed(NO_LEADER, str(NotLeader("", "it starts")))
    assert search.why() == "no coordinator leads: it starts (head:1 says so)"
    search.failed(NO_LEADER, str(NotLeader("other:1")), leader="other:1")
    assert search.why() == "head:1: this coordinator does not lead, other:1 does"
    assert search.has_others


@pytest.mark.parametrize(
    "details",
    ["keepalive watchdog timeout", "Stream removed (ping timeout)", "recvmsg:Connection timed out"],
)
def test_silence_is_told_from_other_ends(details: str) -> None:
    assert is_silence(details)
    assert not is_silence("Socket closed")


def test_a_write_that_broke_is_told_without_the_words_of_grpc() -> None:
    assert plain_details("Internal error from Core") == (
        "the connection broke while a message was sent"
    )
    assert plain_details("Socket closed") == "Socket closed"


ADDRESSES = st.integers(1, 5).map(lambda size: "abcde"[:size])
ANSWERS = st.one_of(
    st.sampled_from([NOWHERE, SILENT, NO_LEADER, REFUSED, BROKEN, "found"]),
    st.sampled_from("abcdefgh"),
)


@given(ADDRESSES, st.lists(ANSWERS, max_size=60))
def test_a_round_is_bounded_and_asks_each_address(addresses: str, story: list[object]) -> None:
    search = LeaderSearch(addresses)
    asked: list[str] = [search.address]
    is_whole = True
    for answer in story:
        seen = asked_addresses(search, answer)
        if answer == "found" or answer in (REFUSED, BROKEN):
            is_whole = False
        if answer == "found" or "wait" in seen:
            assert len(asked) <= len(addresses) + 1 + REDIRECTS_MAX
            assert not is_whole or set(addresses) <= set(asked), "one was left out"
            asked, is_whole = [search.address], "wait" in seen
        else:
            asked.append(search.address)


def test_reasons_are_bounded() -> None:
    search = LeaderSearch("a")
    for number in range(200):
        search.failed(NO_LEADER, "why", leader=f"b{number}")
    assert len(re.findall("why", search.why())) <= 32
