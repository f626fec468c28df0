"""Leases and graces."""

import pytest

from drumbeat.coordinator.core.effects import Direct
from drumbeat.coordinator.core.events import Deafened, OutageEnded
from drumbeat.coordinator.core.membership.leases import RunMembers
from drumbeat.coordinator.core.model import Beat
from drumbeat.coordinator.core.policy import Policy
from drumbeat.model import GroupState, Pace, Standby
from tests.support.agents import an_assignment
from tests.support.world import a_running_story

POLICY = Policy(base_pace=Pace(heartbeat_interval_s=1.0, lease_s=5.0, reconnect_delay_max_s=0.25))
BEAT = Beat(state=GroupState.RUNNING, round_id=0)


def test_a_lease_runs_from_the_latest_beat() -> None:
    members = RunMembers(POLICY)
    assert members.attach("a", "s1", now=0.0) is None
    members.heard("a", BEAT, sent_at=3.0, now=3.0)
    assert members.pop_expired(now=7.9) == []
    assert members.pop_expired(now=8.0) == ["a"]


def test_a_broken_stream_has_a_grace_and_a_return_ends_it() -> None:
    members = RunMembers(POLICY)
    members.attach("a", "s1", now=0.0)
    assert members.detach("a", "s1", until=0.5)
    assert (members.connected, members.missed) == (set(), {"a"})
    assert members.next_deadline() == 0.5
    assert members.attach("a", "s2", now=0.4) is None
    assert (members.connected, members.missed) == ({"a"}, set())
    assert members.pop_expired(now=5.3) == []
    assert members.pop_expired(now=5.4) == ["a"]


def test_a_hello_that_was_read_late_shortens_no_grace() -> None:
    members = RunMembers(POLICY)
    members.expect(["a"], until=15.0)
    for is_hello, until in ((True, 15.0), (False, 3.5)):
        members.attach("a", "s1", now=3.0)
        members.heard("a", BEAT, sent_at=3.0, now=3.0, is_hello=is_hello)
        members.detach("a", "s1", until=3.5)
        assert members.next_deadline() == until


def test_a_grace_that_is_over_ends_a_member() -> None:
    members = RunMembers(POLICY)
    members.attach("a", "s1", now=0.0)
    members.detach("a", "s1", until=0.5)
    assert members.pop_expired(now=0.5) == ["a"]
    assert members.presences["a"].session_id is None


def test_those_who_come_back_together_have_as_long_as_it_takes_to_let_them_in() -> None:
    members = RunMembers(POLICY)
    names = [f"n{number}" for number in range(100)]
    members.expect(names, until=15.0)
    lost: list[tuple[float, str]] = []
    for tick in range(200):
        now = 0.5 * tick
        if tick < 60:  # each half a second one more; the others are dead
            members.attach(names[tick], f"s{tick}", now=now)
        for name in names[: min(60, tick + 1)]:
            members.heard(name, BEAT, sent_at=now, now=now)
        lost += [(now, name) for name in members.pop_expired(now=now)]
    assert lost == [(29.5 + 15.0, name) for name in names[60:]]  # from the latest return on


def test_one_that_comes_and_goes_keeps_no_other_waiting_for_ever() -> None:
    members = RunMembers(POLICY)
    members.expect(["flaps", "gone"], until=15.0)
    now = 0.0
    while "gone" in members.missed and now < 200.0:
        members.attach("flaps", f"s{now}", now=now)
        members.detach("flaps", f"s{now}", until=now + 0.5)
        now += 1.0
        if "gone" in members.pop_expired(now=now):
            break
        members.expect(["flaps"], until=now + 15.0)
    assert now == 60.0


def test_ten_thousand_may_take_minutes_to_come_back() -> None:
    members = RunMembers(POLICY)
    names = [f"n{number}" for number in range(10_000)]
    members.expect(names, until=15.0)
    for now in range(200):
        for number in range(50 * now, 50 * now + 50):
            members.attach(names[number], f"s{number}", now=float(now))
        over = members.pop_expired(now=float(now))
        assert not members.missed.intersection(over)


def test_a_new_session_replaces_the_old_one_whose_end_means_nothing() -> None:
    members = RunMembers(POLICY)
    members.attach("a", "s1", now=0.0)
    assert members.attach("a", "s2", now=1.0) == "s1"
    assert members.current("a", "s1") is None
    assert members.current("a", "s2") is members.presences["a"]
    assert members.current("stranger", "s2") is None
    assert not members.detach("a", "s1", until=1.5)
    assert not members.detach("stranger", "s9", until=1.5)
    assert members.connected == {"a"}


def test_remembered_members_are_missed_until_heard() -> None:
    members = RunMembers(POLICY)
    members.expect(["a", "b"], until=15.0)
    assert members.missed == {"a", "b"}
    members.attach("a", "s1", now=1.0)
    members.heard("a", BEAT, sent_at=1.0, now=1.0)
    assert (members.presences["a"].heard_at, members.presences["b"].heard_at) == (1.0, None)
    assert members.pop_expired(now=15.0) == ["a", "b"]


def test_forgetting_leaves_nothing() -> None:
    members = RunMembers(POLICY)
    members.attach("a", "s1", now=0.0)
    members.forget("a")
    members.forget("a")
    assert (members.presences, members.connected, members.missed) == ({}, set(), set())
    assert members.next_deadline() is None


def test_leases_expire_in_the_order_members_came() -> None:
    """Sets of names are ordered by chance; an order by chance can't be replayed."""
    members = RunMembers(POLICY)
    names = [f"agent-{index}" for index in range(50)]
    for name in names:
        members.attach(name, f"s-{name}", now=0.0)
    assert members.pop_expired(now=99.0) == names


def test_who_is_silent_for_more_than_an_interval_and_a_half_is_suspect_until_heard() -> None:
    members = RunMembers(POLICY)
    members.attach("a", "s1", now=0.0)
    members.attach("b", "s2", now=0.0)
    assert members.next_deadline() == 1.5
    members.heard("b", BEAT, sent_at=1.0, now=1.0)
    assert members.pop_expired(now=1.5) == []
    assert (members.suspects, members.present_count) == ({"a"}, 1)
    assert not members.is_present("a")
    assert members.is_present("b")
    assert members.connected == {"a", "b"}
    members.heard("a", BEAT, sent_at=2.0, now=2.0)
    assert (members.suspects, members.present_count) == (set(), 2)


@pytest.mark.parametrize("end", ["a new session", "a broken stream", "the end of its lease"])
def test_a_suspect_is_one_no_longer_after(end: str) -> None:
    members = RunMembers(POLICY)
    members.attach("a", "s1", now=0.0)
    members.pop_expired(now=2.0)
    assert members.suspects == {"a"}
    match end:
        case "a new session":
            members.attach("a", "s2", now=2.0)
        case "a broken stream":
            members.detach("a", "s1", until=2.5)
        case _:
            assert members.pop_expired(now=5.0) == ["a"]
            members.forget("a")
    assert members.suspects == set()
    members.check_invariants()


def a_waiting_member(*, others: int) -> RunMembers:
    members = RunMembers(POLICY, agents=others + 1)
    members.attach("a", "s1", now=0.0)
    members.directed("a", Direct(session_id="s1", state=Standby(reason="waits")), now=0.0)
    return members


def test_those_who_wait_in_a_large_run_may_be_silent_for_longer() -> None:
    members = a_waiting_member(others=POLICY.agents_at_base_pace)
    assert (members.pace.waiting_interval_s, members.pace.lease_s) == (4.0, 5.0)
    assert members.pop_expired(now=5.9) == []
    assert members.suspects == set()
    assert members.pop_expired(now=6.0) == []
    assert members.suspects == {"a"}
    assert members.pop_expired(now=10.0) == ["a"]
    assert members.why_over("a") == "nothing was heard of it for 10 s"


def test_those_who_wait_in_a_small_run_may_not() -> None:
    assert a_waiting_member(others=0).pop_expired(now=5.0) == ["a"]


def test_one_that_is_seated_has_an_ordinary_lease_from_then_on() -> None:
    members = a_waiting_member(others=POLICY.agents_at_base_pace)
    members.directed("a", Direct(session_id="s1", state=an_assignment()), now=5.0)
    assert members.pop_expired(now=9.9) == []
    assert members.pop_expired(now=10.0) == ["a"]
    assert members.why_over("a") == "nothing was heard of it for 5 s"


def test_a_tighter_pace_gives_those_who_took_their_time_a_whole_lease() -> None:
    members = a_waiting_member(others=POLICY.agents_at_base_pace)
    assert members.follow(1, now=5.5)
    assert members.pop_expired(now=5.5) == []
    assert members.suspects == set()
    assert members.pop_expired(now=10.4) == []
    assert members.pop_expired(now=10.5) == ["a"]


def test_a_lease_shorter_than_that_leaves_no_suspects() -> None:
    members = RunMembers(
        Policy(base_pace=Pace(heartbeat_interval_s=10.0, lease_s=5.0, reconnect_delay_max_s=1.0))
    )
    members.attach("a", "s1", now=0.0)
    assert members.pop_expired(now=5.0) == ["a"]


def test_time_that_the_coordinator_stood_still_counts_in_no_silence() -> None:
    members = RunMembers(POLICY)
    members.attach("a", "s1", now=0.0)
    members.attach("gone", "s2", now=0.0)
    members.detach("gone", "s2", until=0.5)
    members.stood_still(59.5)  # from 0.5 to 60
    assert members.pop_expired(now=60.0) == []
    assert members.suspects == set()
    # Both have as long as before, and an interval and a half to read what has come.
    assert members.pop_expired(now=61.5) == ["gone"]
    assert members.pop_expired(now=65.9) == []
    assert members.pop_expired(now=66.0) == ["a"]


def test_a_short_stall_makes_detection_little_later() -> None:
    """Deciding for ten thousand agents takes a moment; their leases don't start anew."""
    members = RunMembers(POLICY)
    members.attach("a", "s1", now=0.0)
    members.stood_still(0.2)
    assert members.pop_expired(now=5.3) == []
    assert members.pop_expired(now=5.4) == ["a"]


@pytest.mark.parametrize("late_s", [0.11, 1.0, 10.0])
def test_a_coordinator_that_is_always_late_gives_up_at_last(late_s: float) -> None:
    members = RunMembers(POLICY)
    members.attach("mute", "s1", now=0.0)
    for _ in range(1000):
        due = members.next_deadline()
        assert due is not None
        members.stood_still(late_s)
        if members.pop_expired(now=due + late_s):
            return
    pytest.fail("it waits for ever")


def test_a_word_starts_a_new_silence() -> None:
    members = RunMembers(POLICY)
    members.attach("a", "s1", now=0.0)
    members.stood_still(60.0)
    members.heard("a", BEAT, sent_at=100.0, now=100.0)
    assert members.pop_expired(now=105.0) == ["a"]


@pytest.mark.parametrize(("has_others", "is_kept"), [(True, True), (False, False)])
def test_agents_that_went_to_look_for_another_coordinator_may_come_back(
    has_others: bool, is_kept: bool
) -> None:
    """They were silent for none, and gave up one that stood still."""
    story = a_running_story(2, policy=Policy(has_others=has_others))
    due = story.registry.next_deadline()
    assert due is not None
    assert not story.registry.was_deaf(now=due + 0.3)
    assert story.registry.was_deaf(now=due + 0.5) is has_others
    story.break_session("a")
    if has_others:
        story.handle(OutageEnded())
    story.break_session("b")
    story.advance(5.0)
    assert ("a.1" in story.state().members) is is_kept
    assert ("b.1" in story.state().members) is is_kept


@pytest.mark.parametrize("has_cut_off", [True, False])
def test_agents_that_a_front_end_took_along_may_come_back(has_cut_off: bool) -> None:
    story = a_running_story(2)
    if has_cut_off:
        story.handle(OutageEnded(has_cut_off=True))
    story.break_session("a")
    story.advance(5.0)
    assert ("a.1" in story.state().members) is has_cut_off


@pytest.mark.parametrize(("deaf_s", "is_kept"), [(0.0, False), (4.0, True)])
def test_silence_behind_a_front_end_that_is_stuck_is_not_an_agents(
    deaf_s: float, is_kept: bool
) -> None:
    story = a_running_story(2)
    story.silence("a")
    story.handle(Deafened(seconds=deaf_s))
    story.advance(POLICY.base_pace.lease_s + 2.0)
    assert ("a.1" in story.state().members) is is_kept
    story.advance(deaf_s + 2.0)
    assert "a.1" not in story.state().members


@pytest.mark.parametrize(("has_others", "is_kept"), [(True, True), (False, False)])
def test_agents_that_left_a_front_end_that_was_stuck_may_come_back(
    has_others: bool, is_kept: bool
) -> None:
    """They noticed its silence first, and ask another coordinator, which may be slow, too."""
    story = a_running_story(2, policy=Policy(has_others=has_others))
    story.handle(Deafened(seconds=1.0))
    story.break_session("a")
    story.advance(5.0)
    assert ("a.1" in story.state().members) is is_kept


@pytest.mark.parametrize("has_others", [True, False])
def test_where_others_may_lead_there_is_always_a_deadline_soon(has_others: bool) -> None:
    """Else one that stood still meanwhile would not know it."""
    policy = Policy(has_others=has_others)
    story = a_running_story(1, policy=policy)
    story.break_session("a")
    story.advance(policy.reconnect_grace_s)
    for _ in range(3):
        due = story.registry.next_deadline()
        assert (due is not None and due <= story.now + policy.pulse_s) is has_others
        story.advance(policy.pulse_s)
