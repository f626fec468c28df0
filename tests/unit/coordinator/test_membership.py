"""Leases and graces."""

from __future__ import annotations

from coordinator.membership import Expiry, Membership
from coordinator.model import Beat, GroupState, Pace

PACE = Pace(heartbeat_interval_s=1.0, lease_s=5.0, reconnect_delay_max_s=0.25)
BEAT = Beat(state=GroupState.RUNNING, round_id=0)


def test_a_lease_runs_from_the_latest_beat() -> None:
    members = Membership(PACE)
    assert members.attach("a", "s1", now=0.0) is None
    assert members.next_deadline() == 5.0
    members.heard("a", BEAT, now=3.0)
    assert members.next_deadline() == 8.0
    assert members.pop_expired(now=7.9) == []
    reason = "nothing was heard of it for 5 s"
    assert members.pop_expired(now=8.0) == [Expiry(incarnation="a", session_id="s1", reason=reason)]


def test_a_broken_stream_has_a_grace_and_a_return_ends_it() -> None:
    members = Membership(PACE)
    members.attach("a", "s1", now=0.0)
    assert members.detach("a", "s1", until=0.5)
    assert (members.connected, members.missed) == (set(), {"a"})
    assert members.next_deadline() == 0.5
    assert members.attach("a", "s2", now=0.4) is None
    assert (members.connected, members.missed) == ({"a"}, set())
    assert members.next_deadline() == 5.4


def test_a_grace_that_is_over_names_no_session() -> None:
    members = Membership(PACE)
    members.attach("a", "s1", now=0.0)
    members.detach("a", "s1", until=0.5)
    (expiry,) = members.pop_expired(now=0.5)
    assert (expiry.session_id, expiry.reason) == (
        None,
        "its connection broke and it did not come back",
    )


def test_a_new_session_replaces_the_old_one_whose_end_means_nothing() -> None:
    members = Membership(PACE)
    members.attach("a", "s1", now=0.0)
    assert members.attach("a", "s2", now=1.0) == "s1"
    assert members.current("a", "s1") is None
    assert members.current("a", "s2") is members.presences["a"]
    assert members.current("stranger", "s2") is None
    assert not members.detach("a", "s1", until=1.5)
    assert not members.detach("stranger", "s9", until=1.5)
    assert members.connected == {"a"}


def test_remembered_members_are_missed_until_heard() -> None:
    members = Membership(PACE)
    members.remember(["a", "b"], until=15.0)
    assert members.missed == {"a", "b"}
    members.attach("a", "s1", now=1.0)
    members.heard("a", BEAT, now=1.0)
    assert (members.presences["a"].heard_at, members.presences["b"].heard_at) == (1.0, None)
    assert [expiry.incarnation for expiry in members.pop_expired(now=15.0)] == ["a", "b"]


def test_forgetting_leaves_nothing() -> None:
    members = Membership(PACE)
    members.attach("a", "s1", now=0.0)
    members.forget("a")
    members.forget("a")
    assert (members.presences, members.connected, members.missed) == ({}, set(), set())
    assert members.next_deadline() is None


def test_renewing_gives_leases_and_graces_anew_but_shortens_none() -> None:
    members = Membership(PACE)
    members.remember(["far", "near"], until=15.0)
    members.remember(["near"], until=1.0)
    members.attach("here", "s1", now=0.0)
    members.renew(now=10.0, grace_s=0.5)
    assert [e.incarnation for e in members.pop_expired(now=10.5)] == ["near"]
    assert members.next_deadline() == 15.0
    assert [e.incarnation for e in members.pop_expired(now=15.0)] == ["far", "here"]


def test_renewed_leases_expire_in_the_order_members_came() -> None:
    """Sets of names are ordered by chance; an order by chance can't be replayed."""
    members = Membership(PACE)
    names = [f"agent-{index}" for index in range(50)]
    for name in names:
        members.attach(name, f"s-{name}", now=0.0)
    members.renew(now=1.0)
    assert [expiry.incarnation for expiry in members.pop_expired(now=99.0)] == names


def test_a_silence_is_excused_once_and_anew_after_a_word() -> None:
    members = Membership(PACE)
    members.attach("mute", "s1", now=0.0)
    members.attach("lively", "s2", now=0.0)
    members.excuse(now=10.0, grace_s=0.5)
    members.heard("lively", Beat(state=GroupState.IDLE), now=10.1)
    members.excuse(now=10.0 + PACE.lease_s + 0.2, grace_s=0.5)
    expired = members.pop_expired(now=10.0 + PACE.lease_s + 0.2)
    assert [expiry.incarnation for expiry in expired] == ["mute"]
