"""A candidacy, event by event: what it asks of etcd, and what it believes of itself."""

import pytest

from drumbeat.coordinator.cluster import model as do
from drumbeat.coordinator.cluster.candidacy import RETRY_FIRST_S, Candidacy, CandidacyState
from drumbeat.coordinator.cluster.model import EtcdCall, Leader, Member
from drumbeat.coordinator.journal.etcd.model import Lease

OURS = Member("ours", "a:29400", "1.0")
OTHER = Member("other", "b:29400", "1.0")
BOTH = (OURS, OTHER)
TTL_S = 3.0
GRANT = do.Ask(EtcdCall.GRANT)


class Story:
    """A candidacy that is told events; ``did`` are its effects, without what it tells."""

    def __init__(self) -> None:
        self.now = 100.0
        self.core = Candidacy(OURS, ttl_s=TTL_S)
        assert self.take(do.DeadlineReached()) == [GRANT]

    def take(self, *events: do.Event) -> list[do.Effect]:
        did: list[do.Effect] = []
        for event in events:
            did += self.core.handle(event, now=self.now)
            self.core.check_invariants()
        return [effect for effect in did if not isinstance(effect, do.LeaderChanged)]

    def granted(self, lease_id: int = 1, ttl_s: float = TTL_S) -> list[do.Effect]:
        return self.take(do.LeaseGranted(Lease(lease_id, ttl_s), self.now))

    def answered(
        self, call: EtcdCall, lease_id: int, leader: Leader | None, revision: int
    ) -> list[do.Effect]:
        return self.take(do.Answered(call, lease_id, leader, revision))

    def seen(
        self, leader: Leader | None, revision: int, members: tuple[Member, ...] = BOTH
    ) -> list[do.Effect]:
        return self.take(do.ClusterSeen(leader, members, revision))

    def after(self, seconds: float) -> list[do.Effect]:
        """Let time pass; the deadline is told once, at its end."""
        self.now += seconds
        due = self.core.next_deadline()
        assert due is not None
        return self.take(do.DeadlineReached()) if due <= self.now else []


def led(term: int, lease_id: int = 1) -> Leader:
    return Leader(OURS, term, lease_id)


@pytest.fixture
def follower() -> Story:
    """Member since revision 10, while another one leads in term 5 with lease 9."""
    story = Story()
    assert story.granted() == [do.Ask(EtcdCall.ENROL, 1)]
    assert story.answered(EtcdCall.ENROL, 1, Leader(OTHER, 5, 9), 10) == []
    assert story.seen(Leader(OTHER, 5, 9), 10) == []
    return story


@pytest.fixture
def leader() -> Story:
    """Leads in term 11, as a member since revision 10."""
    story = Story()
    story.granted()
    assert story.answered(EtcdCall.ENROL, 1, None, 10) == [do.Ask(EtcdCall.CAMPAIGN, 1)]
    did = story.answered(EtcdCall.CAMPAIGN, 1, led(11), 11)
    assert did == [do.Lead(11, "it won the campaign")]
    assert story.seen(led(11), 11) == []
    return story


def test_a_lease_is_kept_alive_three_times_in_what_was_granted() -> None:
    story = Story()
    story.granted(ttl_s=6.0)  # more than was asked for
    story.answered(EtcdCall.ENROL, 1, Leader(OTHER, 5, 9), 10)
    assert story.after(1.99) == []
    assert story.after(0.01) == [do.Ask(EtcdCall.KEEP_ALIVE, 1)]
    assert story.core.ttl_s == 6.0


def test_it_is_a_successor_once_it_has_seen_another_leadership(
    follower: Story, leader: Story
) -> None:
    assert not leader.core.is_successor
    assert follower.seen(None, 11) == [do.Ask(EtcdCall.CAMPAIGN, 1)]
    follower.answered(EtcdCall.CAMPAIGN, 1, led(12), 12)
    assert follower.core.is_successor


def test_it_leads_only_as_long_as_it_knows_its_lease(leader: Story) -> None:
    story, asked_at = leader, leader.now + 1.0
    assert story.after(1.0) == [do.Ask(EtcdCall.KEEP_ALIVE, 1)]
    story.now += 1.5  # the answer took that long
    assert story.take(do.LeaseKept(1, TTL_S, asked_at)) == [do.Ask(EtcdCall.KEEP_ALIVE, 1)]
    assert story.core.is_leading(now=asked_at + TTL_S - 0.01)
    assert not story.core.is_leading(now=asked_at + TTL_S)


def test_an_answer_that_comes_when_the_lease_is_over_is_none(follower: Story) -> None:
    story = follower
    assert story.seen(None, 12) == [do.Ask(EtcdCall.CAMPAIGN, 1)]
    story.now += TTL_S
    did = story.answered(EtcdCall.CAMPAIGN, 1, led(13), 13)
    assert did == [do.Ask(EtcdCall.REVOKE, 1), GRANT]
    assert story.core.standing is CandidacyState.OUTSIDE


def test_who_stood_still_stops_first_whatever_it_hears(leader: Story) -> None:
    story = leader
    story.now += 60.0
    did = story.seen(other := Leader(OTHER, 20, 9), 20)
    reason = "its lease of 3 s in etcd could not be kept alive: this process stood still"
    assert did == [do.StopLeading(other, reason), do.Ask(EtcdCall.REVOKE, 1), GRANT]
    assert story.core.leader == other


def test_who_stood_still_stops_though_etcd_still_names_it(leader: Story) -> None:
    leader.now += 60.0
    stop, *_ = leader.seen(led(11), 12)
    assert isinstance(stop, do.StopLeading)
    assert stop.leader is None
    assert leader.core.leader is None


def test_a_lease_that_has_ended_in_etcd_ends_a_leadership(leader: Story) -> None:
    did = leader.take(do.LeaseKept(1, 0.0, leader.now))
    assert did == [
        do.StopLeading(None, "its lease had ended in etcd"), GRANT, do.Ask(EtcdCall.REVOKE, 1),
    ]  # fmt: skip
    assert leader.take(do.Revoked(1)) == []
    assert leader.granted(2) == [do.Ask(EtcdCall.ENROL, 2), do.Ask(EtcdCall.CAMPAIGN, 2)]


def test_a_lost_answer_is_found_by_another_campaign(follower: Story) -> None:
    story = follower
    assert story.seen(None, 12) == [do.Ask(EtcdCall.CAMPAIGN, 1)]
    did = story.take(do.EtcdCallFailed(EtcdCall.CAMPAIGN, 1, "no answer"))
    assert did == [do.Ask(EtcdCall.KEEP_ALIVE, 1)], "perhaps the lease is over"
    assert story.core.reason == "etcd does not do what it is asked for: no answer"
    assert story.after(RETRY_FIRST_S) == [do.Ask(EtcdCall.CAMPAIGN, 1)]
    assert story.answered(EtcdCall.CAMPAIGN, 1, led(13), 14) == [do.Lead(13, "it won the campaign")]
    assert story.core.reason == ""


def test_or_by_the_watch(follower: Story) -> None:
    story = follower
    story.seen(None, 12)
    assert story.seen(led(13), 13) == [do.Lead(13, "it won the campaign")]
    assert story.take(do.EtcdCallFailed(EtcdCall.CAMPAIGN, 1, "no answer")) == [
        do.Ask(EtcdCall.KEEP_ALIVE, 1)
    ]
    assert story.core.term == 13


def test_retries_are_spread(follower: Story) -> None:
    story = follower
    story.seen(None, 12)
    delays: list[float] = []
    for _ in range(6):
        story.take(do.EtcdCallFailed(EtcdCall.CAMPAIGN, 1, "no answer"))
        began_at = story.now
        while do.Ask(EtcdCall.CAMPAIGN, 1) not in story.after(0.01):
            story.take(do.LeaseKept(1, TTL_S, story.now))
        delays.append(round(story.now - began_at, 2))
    assert delays == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]


def test_what_was_said_late_of_the_leader_changes_nothing(leader: Story) -> None:
    assert leader.seen(None, 10) == []
    assert leader.answered(EtcdCall.ENROL, 1, Leader(OTHER, 5, 9), 9) == []
    assert leader.core.term == 11


def test_another_leader_ends_a_leadership(leader: Story) -> None:
    other = Leader(OTHER, 20, 9)
    did = leader.seen(other, 20)
    reason = "b:29400 leads, in term 20"
    assert did == [do.StopLeading(other, reason), do.Ask(EtcdCall.REVOKE, 1), GRANT]


def test_a_refused_write_ends_the_leadership_of_its_term(leader: Story) -> None:
    assert leader.take(do.WriteRefused(10)) == []
    reason = "etcd refused a write: another one may lead by now"
    did = leader.take(do.WriteRefused(11))
    assert did == [do.StopLeading(None, reason), do.Ask(EtcdCall.REVOKE, 1), GRANT]
    assert leader.take(do.WriteRefused(11)) == []


def test_answers_for_an_earlier_lease_are_of_no_account(leader: Story) -> None:
    leader.after(1.0)
    leader.take(do.WriteRefused(11))
    assert leader.granted(2) == [do.Ask(EtcdCall.ENROL, 2)], "it seems to lead still"
    assert leader.take(do.EtcdCallFailed(EtcdCall.REVOKE, 1, "no answer")) == []
    assert leader.after(RETRY_FIRST_S) == [do.Ask(EtcdCall.REVOKE, 1)]
    assert leader.take(do.LeaseKept(1, TTL_S, leader.now + 50.0)) == []
    assert leader.take(do.LeaseKept(1, 0.0, leader.now)) == []
    assert leader.take(do.EtcdCallFailed(EtcdCall.ENROL, 1, "no answer")) == []
    assert leader.core.standing is CandidacyState.FOLLOWING
    assert leader.core.leader is None
    # A campaign of then, which has arrived late: its lease ends at once.
    assert leader.take(do.Revoked(1)) == [do.Ask(EtcdCall.CAMPAIGN, 2)]
    assert leader.answered(EtcdCall.CAMPAIGN, 1, led(15), 15) == [do.Ask(EtcdCall.REVOKE, 1)]


def test_an_enrolment_that_an_earlier_one_undid_is_made_again(follower: Story) -> None:
    assert follower.seen(Leader(OTHER, 5, 9), 9, (OTHER,)) == [], "that was before"
    assert follower.seen(Leader(OTHER, 5, 9), 11, (OTHER,)) == [do.Ask(EtcdCall.ENROL, 1)]
    assert follower.answered(EtcdCall.ENROL, 1, Leader(OTHER, 5, 9), 12) == []


def test_a_campaign_that_teaches_nothing_is_not_repeated_at_once(follower: Story) -> None:
    follower.seen(None, 12)
    follower.seen(None, 20)
    assert follower.answered(EtcdCall.CAMPAIGN, 1, Leader(OTHER, 15, 9), 15) == []
    assert follower.after(RETRY_FIRST_S) == [do.Ask(EtcdCall.CAMPAIGN, 1)]


def test_a_hand_over_ends_when_another_one_leads(leader: Story) -> None:
    assert leader.take(do.StepDownAsked("maintenance")) == [do.Ask(EtcdCall.RESIGN, 1, 11)]
    assert not leader.core.is_leading(now=leader.now)
    assert leader.take(do.StepDownAsked("again")) == []
    assert leader.answered(EtcdCall.RESIGN, 1, None, 12) == [], "and no campaign"
    assert leader.core.reason == "a:29400 gave leadership away, and none has taken it yet"
    other = Leader(OTHER, 13, 9)
    reason = "it gave leadership away (maintenance), and b:29400 took it"
    assert leader.seen(other, 13) == [do.StopLeading(other, reason)]
    assert leader.seen(None, 14) == [do.Ask(EtcdCall.CAMPAIGN, 1)], "a candidate as any other"


def test_a_hand_over_whose_answer_is_lost_is_asked_for_again(leader: Story) -> None:
    leader.take(do.StepDownAsked("maintenance"))
    leader.take(do.EtcdCallFailed(EtcdCall.RESIGN, 1, "no answer"))
    assert leader.after(RETRY_FIRST_S) == [do.Ask(EtcdCall.RESIGN, 1, 11)]
    other = Leader(OTHER, 13, 9)
    (stop,) = leader.answered(EtcdCall.RESIGN, 1, other, 13)
    assert stop == do.StopLeading(
        other, "it gave leadership away (maintenance), and b:29400 took it"
    )


def test_a_hand_over_that_none_takes_ends_within_a_lease(leader: Story) -> None:
    leader.take(do.StepDownAsked("maintenance"))
    leader.answered(EtcdCall.RESIGN, 1, None, 12)
    for _ in range(2):
        assert leader.after(1.0) == [do.Ask(EtcdCall.KEEP_ALIVE, 1)]
        leader.take(do.LeaseKept(1, TTL_S, leader.now))
    reason = "it gave leadership away (maintenance), and none took it in time"
    assert leader.after(1.0) == [
        do.StopLeading(None, reason),
        do.Ask(EtcdCall.KEEP_ALIVE, 1),
        do.Ask(EtcdCall.CAMPAIGN, 1),
    ]


def test_a_hand_over_that_is_not_answered_ends_within_a_lease(leader: Story) -> None:
    leader.take(do.StepDownAsked("maintenance"))
    for _ in range(2):
        leader.after(1.0)
        leader.take(do.LeaseKept(1, TTL_S, leader.now))
    reason = "the hand-over was not answered in time"
    assert leader.after(1.0) == [do.StopLeading(None, reason), do.Ask(EtcdCall.REVOKE, 1), GRANT]


def test_a_campaign_that_arrives_during_a_hand_over_is_given_back(leader: Story) -> None:
    leader.take(do.StepDownAsked("maintenance"))
    leader.answered(EtcdCall.RESIGN, 1, None, 12)
    assert leader.seen(led(13), 13) == [do.Ask(EtcdCall.RESIGN, 1, 13)]
    assert leader.answered(EtcdCall.RESIGN, 1, None, 14) == []
    other = Leader(OTHER, 15, 9)
    assert [type(each) for each in leader.seen(other, 15)] == [do.StopLeading]


def test_a_leadership_that_was_given_up_is_not_taken_up_again(leader: Story) -> None:
    leader.take(do.StepDownAsked("maintenance"))
    leader.answered(EtcdCall.RESIGN, 1, None, 12)
    for _ in range(2):
        leader.after(1.0)
        leader.take(do.LeaseKept(1, TTL_S, leader.now))
    leader.after(1.0)
    # As if it had not been given back: the lease has to go.
    assert leader.answered(EtcdCall.CAMPAIGN, 1, led(11), 13) == [do.Ask(EtcdCall.REVOKE, 1), GRANT]


def test_a_lease_that_is_lost_during_a_hand_over_ends_it(leader: Story) -> None:
    leader.take(do.StepDownAsked("maintenance"))
    leader.answered(EtcdCall.RESIGN, 1, None, 12)
    did = leader.take(do.LeaseKept(1, 0.0, leader.now))
    assert did == [do.StopLeading(None, "its lease had ended in etcd"), GRANT]


def test_stepping_down_is_refused_where_none_could_take_over(leader: Story) -> None:
    leader.seen(led(11), 12, (OURS,))
    did = leader.take(do.StepDownAsked("maintenance"))
    assert did == [do.RefuseStepDown("there is no other one that could")]
    leader.seen(led(11), 13)
    leader.after(1.0)
    leader.take(do.EtcdCallFailed(EtcdCall.KEEP_ALIVE, 1, "no answer"))
    did = leader.take(do.StepDownAsked("maintenance"))
    assert did == [do.RefuseStepDown("etcd does not answer now: no answer")]
    assert leader.core.is_leading(now=leader.now)


def test_who_does_not_lead_does_not_step_down(follower: Story, leader: Story) -> None:
    refused = do.RefuseStepDown("it does not lead")
    assert follower.take(do.StepDownAsked("maintenance")) == [refused]
    leader.now += TTL_S
    assert leader.take(do.StepDownAsked("maintenance"))[0] == refused


def test_what_it_knew_counts_no_more_once_etcd_is_silent_for_a_lease(follower: Story) -> None:
    follower.after(1.0)
    follower.take(do.EtcdCallFailed(EtcdCall.KEEP_ALIVE, 1, "no answer"))
    assert follower.core.leader == Leader(OTHER, 5, 9)
    assert GRANT in follower.after(2.0)
    assert follower.core.leader is None
    assert follower.core.reason.endswith("could not be kept alive: no answer")
    follower.take(do.EtcdCallFailed(EtcdCall.GRANT, 0, "still none"))
    assert follower.core.reason == "etcd does not do what it is asked for: still none"
    follower.after(RETRY_FIRST_S)
    follower.granted(2)
    assert follower.core.leader is None
    follower.answered(EtcdCall.ENROL, 2, Leader(OTHER, 5, 9), 10)
    assert follower.core.leader == Leader(OTHER, 5, 9)


@pytest.mark.parametrize(
    "member", [Member("dead", "a:29400"), Member("ours-key", "")], ids=["its address", "unknown"]
)
def test_none_is_sent_to_a_leader_that_cannot_be_asked(follower: Story, member: Member) -> None:
    follower.seen(Leader(member, 12, 8), 12)
    assert follower.core.leader is None
    assert follower.core.reason.endswith("has a lease that is not over yet")
    assert follower.seen(None, 13) == [do.Ask(EtcdCall.CAMPAIGN, 1)]


def test_what_others_are_told_changes_with_the_leader(follower: Story) -> None:
    core = follower.core
    told = core.handle(do.ClusterSeen(None, BOTH, 12), now=follower.now)
    assert told[-1] == do.LeaderChanged(None, "b:29400 has stopped leading")
    told = core.handle(do.Answered(EtcdCall.CAMPAIGN, 1, led(13), 13), now=follower.now)
    assert told[-1] == do.LeaderChanged(led(13), "")
    assert core.handle(do.ClusterSeen(led(13), BOTH, 13), now=follower.now) == []
