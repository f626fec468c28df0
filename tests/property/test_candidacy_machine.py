"""Any order of requests, answers, losses, pauses and watches leaves one leader at a time.

The cores of three coordinators on the model of etcd, in virtual time. ``DRUMBEAT_SEEDS`` sets the
number of orders.
"""

from dataclasses import dataclass, field
from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from drumbeat.coordinator.cluster import model as do
from drumbeat.coordinator.cluster import transactions
from drumbeat.coordinator.cluster.candidacy import Candidacy, CandidacyState
from drumbeat.coordinator.cluster.election import answer
from drumbeat.coordinator.cluster.model import Member
from drumbeat.coordinator.journal.etcd.model import Etcd, Lease, Transaction, TransactionOutcome
from drumbeat.coordinator.journal.keys import Keys
from tests.support.etcd_state import EXPIRY_LAG_MAX_S, EtcdState, Refused
from tests.support.orders import orders

KEYS = Keys("test")
TTL_S = 3.0
COORDINATORS = 3
# Within this a cluster that is left in peace has a leader: leases of before are over, one pause of
# etcd before it ends them, and the retries in between.
PEACE_S = 2 * TTL_S + EXPIRY_LAG_MAX_S + 2.0


@dataclass
class Request:
    """What one coordinator asked of etcd, and how far it has come."""

    effect: do.Ask
    member: Member
    asked_at: float
    answer: do.Event | None = None  # it has arrived at etcd
    is_given_up: bool = False  # its coordinator takes it for lost
    is_done: bool = False


class Client:
    """An ``Etcd`` that answers at once."""

    def __init__(self, state: EtcdState, now: float) -> None:
        self._state, self._now = state, now

    async def commit(self, transaction: Transaction) -> TransactionOutcome:
        return self._state.commit(transaction)

    async def grant(self, ttl_s: float) -> Lease:
        return self._state.grant(ttl_s, now=self._now)

    async def keep_alive(self, lease_id: int) -> float:
        return self._state.keep_alive(lease_id, now=self._now)

    async def revoke(self, lease_id: int) -> None:
        self._state.revoke(lease_id)


@dataclass
class Coordinator:
    """One host with a coordinator over its lives."""

    address: str
    core: Candidacy
    requests: list[Request] = field(default_factory=list)
    seen: int = 0  # of the pictures: up to which its watch has told it
    is_stopped: bool = False
    led: int = 0  # the term that it was told to lead, until it was told to stop


class CandidacyMachine(RuleBasedStateMachine):
    """A cluster of coordinators, and what must hold of it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.etcd = EtcdState()
        self.lives = 0
        self.terms = list[int]()
        self.has_intruder = False  # the operator deleted the key
        self.pictures = [do.ClusterSeen(None, (), 0)]  # as etcd was, one after the other
        self.all = [Coordinator(f"head{n}:29400", self._new(n)) for n in range(COORDINATORS)]
        for each in self.all:
            self._take(each, do.DeadlineReached())

    # The world.

    def _new(self, number: int) -> Candidacy:
        self.lives += 1
        return Candidacy(Member(f"life{self.lives}", f"head{number}:29400"), ttl_s=TTL_S)

    def _take(self, each: Coordinator, event: do.Event) -> None:
        for effect in each.core.handle(event, now=self.now):
            match effect:
                case do.Lead(term, reason):
                    assert each.led == 0, "it leads already"
                    assert reason
                    assert term not in self.terms, "no term is led twice"
                    assert term > max(self.terms, default=0) or self.has_intruder, "terms grow"
                    self.terms.append(term)
                    each.led = term
                case do.StopLeading(leader, reason):
                    assert each.led, "it does not lead"
                    assert reason
                    assert leader is None or leader.address != each.address
                    each.led = 0
                case do.LeaderChanged(leader, reason):
                    assert (leader is None) == bool(reason), "who, or why none"
                case do.RefuseStepDown(reason):
                    assert reason
                case _:
                    each.requests.append(Request(effect, each.core.member, self.now))
        each.core.check_invariants()

    def _arrive(self, request: Request) -> None:
        """Let a request arrive at etcd, however late."""
        try:
            request.answer = self._carry_out(request)
        except Refused as error:
            request.answer = do.EtcdCallFailed(
                request.effect.call, request.effect.lease_id, str(error)
            )
        self._look()

    def _carry_out(self, request: Request) -> do.Event:
        asked_at, etcd = request.asked_at, cast("Etcd", Client(self.etcd, self.now))
        asked = answer(
            request.effect, etcd, KEYS, request.member, ttl_s=TTL_S, clock=lambda: asked_at
        )
        try:
            asked.send(None)
        except StopIteration as ended:
            event: do.Event = ended.value
            return event
        raise AssertionError("this client waits for nothing")

    def _answer(self, each: Coordinator, request: Request) -> None:
        assert request.answer is not None
        request.is_done = True
        if not request.is_given_up:
            self._take(each, request.answer)

    def _look(self) -> do.ClusterSeen:
        """Return how it is in etcd; watches tell of it later."""
        reading = self.etcd.read(*transactions.range_of(KEYS))
        picture = do.ClusterSeen(*transactions.cluster(reading.pairs, KEYS), reading.revision)
        latest = self.pictures[-1]
        if (picture.leader, picture.members) != (latest.leader, latest.members):
            self.pictures.append(picture)
        return picture

    def _see(self, each: Coordinator, *, most: int = 1_000) -> None:
        """Let the watch tell of some changes, the oldest first."""
        self._look()
        for picture in self.pictures[each.seen + 1 :][:most]:
            each.seen += 1
            self._take(each, picture)

    def _tick(self, each: Coordinator) -> None:
        due = each.core.next_deadline()
        if not each.is_stopped and due is not None and due <= self.now:
            self._take(each, do.DeadlineReached())
            due = each.core.next_deadline()
            assert due is None or due > self.now, "a deadline that is handled is over"

    def _under_way(self, number: int) -> Request | None:
        left = [each for each in self.all[number % COORDINATORS].requests if not each.is_done]
        return left[number % len(left)] if left else None

    # What may happen.

    @rule(number=st.integers(0, 8))
    def a_request_arrives(self, number: int) -> None:
        request = self._under_way(number)
        if request is not None and request.answer is None:
            self._arrive(request)

    @rule(number=st.integers(0, 8))
    def it_is_answered_at_once(self, number: int) -> None:
        each, request = self.all[number % COORDINATORS], self._under_way(number)
        if request is not None and not each.is_stopped:
            if request.answer is None:
                self._arrive(request)
            self._answer(each, request)

    @rule(number=st.integers(0, 8))
    def no_answer_came_in_time(self, number: int) -> None:
        """The request may arrive all the same, then or later."""
        each, request = self.all[number % COORDINATORS], self._under_way(number)
        if request is not None and not each.is_stopped and not request.is_given_up:
            request.is_given_up = True
            self._take(
                each, do.EtcdCallFailed(request.effect.call, request.effect.lease_id, "no answer")
            )

    @rule(number=st.integers(0, 2))
    def all_goes_well_for_one(self, number: int) -> None:
        each = self.all[number]
        while not each.is_stopped and (left := [it for it in each.requests if not it.is_done]):
            if left[0].answer is None:
                self._arrive(left[0])
            self._answer(each, left[0])
        if not each.is_stopped:
            self._see(each)

    @rule()
    def all_goes_well_for_all(self) -> None:
        for number in range(COORDINATORS):
            self.all_goes_well_for_one(number)

    @rule(number=st.integers(0, 2), most=st.integers(1, 2))
    def a_watch_tells(self, number: int, most: int) -> None:
        if not self.all[number].is_stopped:
            self._see(self.all[number], most=most)

    @rule(number=st.integers(0, 2))
    def a_watch_breaks_and_all_is_read_anew(self, number: int) -> None:
        if not (each := self.all[number]).is_stopped:
            picture = self._look()
            each.seen = len(self.pictures) - 1
            self._take(each, picture)

    @rule(tenths=st.integers(1, 12))
    def time_passes(self, tenths: int) -> None:
        for _ in range(tenths):
            self.now += 0.1
            for each in self.all:
                self._tick(each)

    @rule()
    def etcd_ends_what_is_over(self) -> None:
        self.etcd.expire(now=self.now)
        self._look()

    @rule()
    def etcd_elects_a_leader_of_its_own(self) -> None:
        self.etcd.elect(now=self.now)

    @rule(number=st.integers(0, 2))
    def one_stops(self, number: int) -> None:
        self.all[number].is_stopped = True

    @rule(number=st.integers(0, 2))
    def one_goes_on(self, number: int) -> None:
        each = self.all[number]
        each.is_stopped = False
        self._tick(each)

    @rule(number=st.integers(0, 2))
    def one_is_killed_and_started_again(self, number: int) -> None:
        each = self.all[number]
        late = [it for it in each.requests if it.answer is None]
        for request in late:  # they may still arrive
            request.is_given_up = True
        self.all[number] = Coordinator(each.address, self._new(number), late)
        self._take(self.all[number], do.DeadlineReached())

    @rule(number=st.integers(0, 2))
    def one_is_to_step_down(self, number: int) -> None:
        if not self.all[number].is_stopped:
            self._take(self.all[number], do.StepDownAsked("it is to be replaced"))

    @rule(number=st.integers(0, 2))
    def a_write_is_refused(self, number: int) -> None:
        each = self.all[number]
        leader = self._look().leader
        is_over = leader is None or leader.term != each.core.term
        if each.core.term and is_over and not each.is_stopped:
            self._take(each, do.WriteRefused(each.core.term))

    @rule()
    def the_operator_deletes_the_leader(self) -> None:
        if (leader := self._look().leader) is not None:
            self.has_intruder = True
            self.etcd.commit(transactions.resign(KEYS, leader.term))
            self._look()

    # What must hold.

    @invariant()
    def one_at_most_believes_that_it_leads(self) -> None:
        leading = [each for each in self.all if each.core.is_leading(now=self.now)]
        assert self.has_intruder or len(leading) <= 1, "two lead"

    @invariant()
    def who_believes_to_lead_has_a_lease(self) -> None:
        for each in self.all:
            leader = each.core.leader
            if each.core.is_leading(now=self.now) and not self.has_intruder:
                assert leader is not None
                assert self._look().leader == leader, "etcd says so too"

    @invariant()
    def none_leads_whom_etcd_ended(self) -> None:
        for each in self.all:
            assert (each.led > 0) == (
                each.core.standing
                in (CandidacyState.LEADING, CandidacyState.RESIGNING, CandidacyState.HANDING_OVER)
            )

    def teardown(self) -> None:
        """Left in peace, the cluster has one leader, and all know it."""
        for each in self.all:
            each.is_stopped = False
        until = self.now + PEACE_S
        while self.now < until:
            self.etcd.expire(now=self.now)
            for number, each in enumerate(self.all):
                self._tick(each)
                self.all_goes_well_for_one(number)
                self.all_goes_well_for_one(number)
            self.now += 0.05
        leading = [each for each in self.all if each.core.is_leading(now=self.now)]
        assert len(leading) == 1, [each.core.reason for each in self.all]
        for each in self.all:
            assert each.core.leader == leading[0].core.leader, each.core.reason
            assert len(each.core.members) == COORDINATORS


def test_any_order_leaves_one_leader_at_a_time() -> None:
    run_state_machine_as_test(CandidacyMachine, settings=orders(60, steps=50))
