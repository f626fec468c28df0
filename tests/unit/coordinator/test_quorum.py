"""Which replica groups train together: torchft's rules, and what the coordinator adds to them."""

from typing import Any

import pytest

from drumbeat.coordinator.core.quorum.model import (
    CallEnded,
    GiveQuorum,
    GroupLeft,
    KeepQuorum,
    KeptQuorum,
    QuorumDue,
    QuorumEffect,
    QuorumEvent,
    QuorumKept,
    QuorumRequest,
    ReplicaReported,
)
from drumbeat.coordinator.core.quorum.quorum import JobQuorum, QuorumPolicy

JOIN_S, RETURN_S = 10.0, 5.0


class Story:
    """A job whose groups have the replicas a, b, c … in calls of the same names."""

    def __init__(
        self, *, groups_min: int = 1, groups_count: int = 0, kept: KeptQuorum | None = None
    ) -> None:
        self.now, self.numbers = 100.0, dict[str, int]()
        policy = QuorumPolicy(groups_min=groups_min, groups_count=groups_count)
        running = () if kept is None else kept.members.keys()
        self.core = JobQuorum("ft", policy, kept, running, now=self.now)
        self.given: list[tuple[int, list[str], list[str]]] = []  # id, members, who was answered
        self.reasons: list[str] = []
        self.journal: KeptQuorum | None = kept
        self.is_stalled = False  # the journal does not answer

    def handle(self, event: QuorumEvent) -> None:
        effects: list[QuorumEffect] = self.core.handle(event, now=self.now)
        self.core.check_invariants()
        for effect in effects:
            match effect:
                case KeepQuorum(quorum=quorum):
                    self.journal = quorum
                    if not self.is_stalled:
                        self.handle(QuorumKept())
                case GiveQuorum(quorum=quorum, numbers=numbers):
                    members = [request.replica_id for request in quorum.requests]
                    self.given.append((quorum.quorum_id, members, sorted(numbers)))
                case _:
                    self.reasons.append(effect.reason)

    def ask(self, names: str, **request: Any) -> None:
        """Replicas ask, each with a new number unless one is given."""
        for name in names:
            self.numbers[name] = number = request.pop("number", self.numbers.get(name, 0) + 1)
            asked = QuorumRequest(replica_id=name, number=number, **request)
            self.report(name, request=asked)

    def beat(self, names: str) -> None:
        for name in names:
            self.report(name)

    def report(self, name: str, **more: Any) -> None:
        group = ord(name.lower()) - ord("a")
        self.handle(ReplicaReported(group=group, source=name, replica_id=name, **more))

    def leave(self, name: str) -> None:
        self.handle(GroupLeft(group=ord(name) - ord("a"), reason="a worker failed"))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.handle(QuorumDue())

    def due_s(self) -> float | None:
        due = self.core.next_deadline()
        return None if due is None else due - self.now


def trained(names: str = "abc", **more: Any) -> Story:
    """Return a story in which these have had a quorum, its id being 1."""
    story = Story(**more)
    story.beat(names)
    story.ask(names)
    assert story.given == [(1, sorted(names), sorted(names))]
    story.given.clear()
    return story


def test_groups_that_live_are_waited_for_and_then_all_get_one_quorum() -> None:
    story = Story()
    story.beat("abc")
    story.ask("ca")
    assert story.given == []
    story.ask("b")
    assert story.given == [(1, ["a", "b", "c"], ["a", "b", "c"])]
    assert story.journal == KeptQuorum(job="ft", quorum_id=1, members={2: "c", 0: "a", 1: "b"})
    assert story.reasons == [
        "quorum 1 of 3 groups (0, 1 and 2): all groups that are waited for ask"
    ]


def test_the_same_members_keep_the_id_and_need_no_journal() -> None:
    story = trained()
    story.is_stalled = True
    for _ in range(3):
        story.ask("bca")
    assert story.given == 3 * [(1, ["a", "b", "c"], ["a", "b", "c"])]


def test_a_failed_commit_gets_another_id() -> None:
    story = trained("ab")
    story.ask("a")
    story.ask("b", commit_failures=2)
    assert story.given == [(2, ["a", "b"], ["a", "b"])]
    assert story.reasons[-1] == "quorum 2 of 2 groups (0 and 1): the last step failed in b"


def test_a_quorum_with_another_id_is_given_once_it_is_durable() -> None:
    story = trained("ab")
    story.is_stalled = True
    story.ask("abc")
    story.ask("a", commit_failures=1)
    assert story.given == [(1, ["a", "b"], ["a", "b"])]
    story.given.clear()
    story.ask("b")
    assert story.given == []
    story.handle(QuorumKept())
    assert story.given == [(2, ["a", "b", "c"], ["a", "b", "c"])]


def test_a_member_that_goes_before_its_quorum_is_durable_is_in_none() -> None:
    story = trained("abc")
    story.is_stalled = True
    story.ask("ab")
    story.ask("c", commit_failures=1)
    story.leave("c")
    story.is_stalled = False
    story.handle(QuorumKept())
    assert story.given == [(3, ["a", "b"], ["a", "b"])]


@pytest.mark.parametrize(
    ("alive", "asking", "is_enough"),
    [("abcd", "ab", False), ("abcd", "abc", True), ("abc", "ab", True), ("ab", "a", False)],
)
def test_no_quorum_has_fewer_than_half_of_those_that_live(
    alive: str, asking: str, *, is_enough: bool
) -> None:
    story = Story()
    story.beat(alive)
    story.ask(asking)
    story.wait(JOIN_S)
    assert bool(story.given) == is_enough


def test_the_wait_for_groups_that_live_ends_with_the_join_timeout() -> None:
    story = Story()
    story.beat("abc")
    story.ask("a")
    story.now += 1
    story.ask("b")
    assert story.due_s() == JOIN_S - 1
    story.wait(JOIN_S - 1)
    assert story.given == [(1, ["a", "b"], ["a", "b"])]
    assert story.reasons[-1].endswith("1 group did not ask within 10.0 s")


@pytest.mark.parametrize(
    ("step_s", "elapsed_s", "wait_s"), [(0.1, 0.2, 0.5), (4.0, 1.0, 7.0), (60.0, 1.0, JOIN_S)]
)
@pytest.mark.parametrize("cause", ["death", "failed commit"])
def test_after_a_failed_step_others_are_waited_for_as_long_as_steps_take(
    step_s: float, elapsed_s: float, wait_s: float, cause: str
) -> None:
    """Those that do not ask may be stuck in a collective until the others have left it."""
    story = trained("abcd")
    story.now += step_s
    story.ask("abcd")
    story.now += elapsed_s
    if cause == "death":
        story.leave("d")
        story.ask("ab")
    else:
        story.ask("ab")
        story.ask("d", commit_failures=1)
    assert story.due_s() == pytest.approx(wait_s)
    story.wait(wait_s)
    assert [quorum[0] for quorum in story.given] == [1, 2]


def test_a_long_step_has_others_waited_for_as_long() -> None:
    """Groups of DiLoCo ask after hundreds of steps, and not within seconds of each other."""
    story = trained("abc")
    story.now += 600
    story.ask("abc")
    story.now += 500
    story.ask("ab")
    assert story.due_s() == 600


def test_the_first_quorum_waits_for_groups_that_have_not_come() -> None:
    story = Story(groups_count=3)
    story.ask("ab")
    assert (story.given, story.due_s()) == ([], JOIN_S)
    story.wait(JOIN_S)
    assert story.given == [(1, ["a", "b"], ["a", "b"])]
    story.leave("b")
    story.ask("a")
    assert story.given[1:] == [(2, ["a"], ["a"])]


def test_fewer_than_the_minimum_wait() -> None:
    story = Story(groups_min=3)
    story.ask("ab")
    assert (story.given, story.due_s()) == ([], None)
    story.ask("c")
    assert story.given == [(1, ["a", "b", "c"], ["a", "b", "c"])]


def test_a_group_whose_worker_ended_is_out_at_once() -> None:
    story = trained("abc")
    story.ask("ab")
    assert story.given == []
    story.leave("c")
    assert story.given == [(2, ["a", "b"], ["a", "b"])]


def test_a_silent_replica_is_out_until_it_is_heard() -> None:
    story = trained("abc")
    story.ask("ab")
    story.report("c", is_silent=True)
    assert story.given == [(2, ["a", "b"], ["a", "b"])]
    story.ask("abc")
    story.ask("ab")
    assert story.given[1:] == [(2, ["a", "b"], ["a", "b"]), (3, ["a", "b", "c"], ["a", "b", "c"])]


def test_a_restarted_group_is_not_waited_for_before_it_asks() -> None:
    story = trained("abc")
    story.leave("c")
    story.beat("C")
    story.ask("ab")
    assert story.given == [(2, ["a", "b"], ["a", "b"])]
    story.ask("C")
    story.ask("ab")
    assert story.given[1:] == [(3, ["C", "a", "b"], ["C", "a", "b"])]


def test_in_a_job_that_begins_anew_groups_that_live_are_waited_for() -> None:
    story = trained("abc")
    for name in "abc":
        story.leave(name)
    story.beat("ABC")
    story.ask("AB")
    assert story.given == []
    story.ask("C")
    assert story.given == [(2, ["A", "B", "C"], ["A", "B", "C"])]


def test_with_shrink_only_those_that_come_wait() -> None:
    story = trained("ab")
    story.ask("c")
    story.ask("a", shrink_only=True)
    story.ask("b")
    assert story.given == [(1, ["a", "b"], ["a", "b"])]
    story.ask("ab")
    assert story.given[1:] == [(2, ["a", "b", "c"], ["a", "b", "c"])]


def test_shrink_only_keeps_nobody_out_of_a_quorum_of_which_none_is_left() -> None:
    story = trained("a")
    story.leave("a")
    story.ask("b", shrink_only=True)
    assert story.given == [(2, ["b"], ["b"])]


def test_a_replica_that_asks_takes_the_place_of_another_of_its_group() -> None:
    story = trained("ab")
    story.beat("B")
    story.ask("a")
    assert story.given == []
    story.ask("B")
    assert story.given == [(2, ["B", "a"], ["B", "a"])]
    assert "group 1: another replica of the group took its place" in story.reasons


def test_a_request_that_is_taken_back_counts_no_more() -> None:
    story = trained("ab")
    story.ask("a")
    story.report("a")
    story.ask("b")
    assert story.given == []
    story.ask("a")
    assert story.given == [(1, ["a", "b"], ["a", "b"])]


def test_a_replica_whose_agent_is_away_is_waited_for() -> None:
    story = trained("abc")
    story.ask("ab")
    story.handle(CallEnded(group=2, source="c"))
    assert story.due_s() == RETURN_S
    story.now += RETURN_S - 1
    story.ask("c")
    assert story.given == [(1, ["a", "b", "c"], ["a", "b", "c"])]


def test_a_replica_whose_agent_stays_away_is_out() -> None:
    story = trained("abc")
    story.handle(CallEnded(group=2, source="c"))
    story.ask("ab")
    story.wait(RETURN_S)
    assert story.given == [(2, ["a", "b"], ["a", "b"])]
    assert "group 2: its agent did not come back" in story.reasons


def test_the_end_of_an_earlier_call_changes_nothing() -> None:
    story = trained("ab")
    story.handle(CallEnded(group=0, source="earlier"))
    assert story.due_s() is None


def test_a_repeated_request_gets_its_answer_again() -> None:
    story = trained("ab")
    story.ask("ab")
    story.handle(CallEnded(group=1, source="b"))
    story.ask("b", number=2)
    assert story.given == [(1, ["a", "b"], ["a", "b"]), (1, ["a", "b"], ["b"])]


def test_a_quorum_whose_step_has_failed_is_not_repeated() -> None:
    story = trained("abc")
    story.ask("abc")
    story.ask("ab", commit_failures=1)
    story.handle(CallEnded(group=2, source="c"))
    story.ask("c", number=2)
    assert story.given[1:] == [(2, ["a", "b", "c"], ["a", "b", "c"])]


def test_a_coordinator_that_starts_again_goes_on_with_the_same_id() -> None:
    before = trained("ab")
    story = Story(kept=before.journal)
    story.ask("a", number=2)
    assert (story.given, story.due_s()) == ([], RETURN_S)
    story.ask("b", number=2)
    assert story.given == [(1, ["a", "b"], ["a", "b"])]


def test_a_coordinator_that_starts_again_never_repeats_an_id() -> None:
    before = trained("ab")
    story = Story(kept=before.journal)
    story.ask("a", number=2)
    story.leave("b")
    assert story.given == [(2, ["a"], ["a"])]


def test_a_coordinator_that_starts_again_repeats_what_an_agent_has_got() -> None:
    """One member got the quorum, and the coordinator ended before the other did."""
    before = trained("ab")
    before.ask("ab")
    latest = before.core.latest
    assert latest is not None
    story = Story(kept=before.journal)
    story.ask("b", number=2)
    story.report("a", latest=latest)
    assert story.given == [(1, ["a", "b"], ["b"])]
