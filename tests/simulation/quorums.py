"""A job of replica groups in virtual time: workers die, hang, come back; coordinators fail over.

Workers train as torchft's do: a step is committed once all members of its quorum have computed it.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec
from msgspec.structs import replace

from drumbeat.coordinator.core.quorum.model import (
    CallEnded,
    GiveQuorum,
    GroupLeft,
    KeepQuorum,
    KeptQuorum,
    Quorum,
    QuorumDue,
    QuorumEvent,
    QuorumKept,
    QuorumRequest,
    ReplicaReported,
)
from drumbeat.coordinator.core.quorum.quorum import JobQuorum, QuorumPolicy

POLICY = QuorumPolicy()
FAULTS_S = 40.0  # for so long there are faults
CALM_S = 50.0  # and after them none
SILENT_AFTER_S = 5.0  # an agent tells of it
COLLECTIVE_TIMEOUT_S = 15.0
ALL_BACK_S = 4.0  # so long after a coordinator began all agents have called it
Step = tuple[int, tuple[tuple[str, int], ...]]  # the quorum of a step: its id, and its requests


@dataclass(slots=True)
class Group:
    """One group: its worker, and the agent that speaks for it."""

    index: int
    replica_id: str = ""  # empty: it has no worker
    is_hung: bool = False
    is_silent: bool = False
    source: str = ""  # its call; empty: it has none
    number: int = 0
    request: QuorumRequest | None = None
    latest: Quorum | None = None
    commit_failures: int = 0
    step: Step | None = None  # that it trains
    asked_at: float = 0.0


@dataclass(slots=True)
class Coordinator:
    """One life of it."""

    core: JobQuorum
    lost: set[int] = field(default_factory=set)  # groups whose end it has not heard of


class Schedule:
    """One job, by seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._names = itertools.count()
        self.groups = [Group(index) for index in range(self.random.randint(1, 6))]
        self.journal = b""
        self.coordinator: Coordinator | None = None
        self.began_at = 0.0  # when it did
        self.arrived: dict[Step, set[str]] = {}
        self.formed: dict[Step, int] = {}  # with their order
        self.committed = -1  # the latest of these that was committed
        self.last: frozenset[str] = frozenset()  # its members
        self.members: dict[int, frozenset[str]] = {}  # by quorum id
        self.longest_wait_s = 0.0
        self.counts: Counter[str] = Counter()

    def live(self) -> None:
        """Live through the faults and the calm after them. Raises ``AssertionError``."""
        self._start_coordinator()
        for group in self.groups:
            self._after(self._between(0, 2), partial(self._start_worker, group))
        for _ in range(self.random.randint(0, 25)):
            fault = self.random.choice(
                [self._kill, self._kill, self._hang, self._cut, self._fail_over, self._fail_step]
            )
            self._after(self._between(0, FAULTS_S), fault)
        self._run_until(FAULTS_S + CALM_S)
        self._check_end()

    def _run_until(self, end: float) -> None:
        while self._due and self._due[0][0] <= end:
            at, _, act = heapq.heappop(self._due)
            if self.coordinator is not None:
                due = self.coordinator.core.next_deadline()
                if due is not None and due < at:
                    self._push(at, act)
                    self.now = max(self.now, due)
                    self._handle(QuorumDue())
                    continue
            self.now = at
            act()
        self.now = end

    def _check_end(self) -> None:
        assert all(group.replica_id for group in self.groups), "a group did not come back"
        assert self.committed >= 0, "no step was committed"
        assert self.last == {group.replica_id for group in self.groups}, "a group was left out"
        waits = [self.now - group.asked_at for group in self.groups if group.request]
        assert max(waits, default=0.0) < POLICY.join_timeout_s, "a group waits for ever"

    # Faults.

    def _kill(self) -> None:
        group = self.random.choice(self.groups)
        if group.replica_id:
            self.counts["kills"] += 1
            group.replica_id, group.request, group.step = "", None, None
            group.is_hung = False
            self._after(self._between(0, 0.05), lambda: self._tell_lost(group))

    def _hang(self) -> None:
        group = self.random.choice(self.groups)
        if group.replica_id and not group.is_hung:
            self.counts["hangs"] += 1
            group.is_hung, replica_id = True, group.replica_id

            def fall_silent() -> None:
                if group.is_hung and group.replica_id == replica_id:
                    group.is_silent = True
                    self._report(group)

            def end() -> None:
                if group.is_hung and group.replica_id == replica_id:
                    group.replica_id, group.request, group.step = "", None, None
                    group.is_hung = False
                    self._tell_lost(group)

            self._after(SILENT_AFTER_S, fall_silent)
            self._after(self._between(6, 20), end)

    def _cut(self) -> None:
        """Break the call of an agent for less time than replicas have to come back."""
        group = self.random.choice(self.groups)
        if group.source:
            self.counts["cuts"] += 1
            source, group.source = group.source, ""
            ended = CallEnded(group=group.index, source=source)
            self._after(self._between(0, 0.5), lambda: self._handle(ended))
            self._after(self._between(0.1, 3), lambda: self._connect(group))

    def _fail_over(self) -> None:
        if self.coordinator is not None:
            self.counts["failovers"] += 1
            self.coordinator = None
            for group in self.groups:
                group.source = ""
            self._after(self._between(0.1, 8), self._start_coordinator)

    def _perhaps_fail_over(self, chance: float, *, within_s: float) -> None:
        """Let the coordinator end where much depends on what it has done so far."""
        if self.now < FAULTS_S and self.random.random() < chance:
            self._after(self._between(0, within_s), self._fail_over)

    def _fail_step(self) -> None:
        """Let a step fail in a group that lives."""
        group = self.random.choice(self.groups)
        if (step := group.step) is not None:
            self.counts["failed steps"] += 1
            for each in self.groups:
                if each.step == step and not each.is_hung:
                    self._ask(each, failures=each.commit_failures + 1)

    # The coordinator.

    def _start_coordinator(self) -> None:
        kept = msgspec.json.decode(self.journal, type=KeptQuorum) if self.journal else None
        running = range(len(self.groups))  # it hears later which of them have no worker any more
        core = JobQuorum("ft", POLICY, kept, running, now=self.now)
        self.coordinator, self.began_at = Coordinator(core), self.now
        for group in self.groups:
            self._after(self._between(0, 2), partial(self._connect, group))
            if not group.replica_id:
                self._after(self._between(0, 2), partial(self._tell_lost, group))

    def _tell_lost(self, group: Group) -> None:
        """Have the coordinator end the round of a group without worker, and begin another."""
        if self.coordinator is not None and not group.replica_id:
            source, group.source = group.source, ""
            self._handle(GroupLeft(group=group.index, reason="its worker ended"))
            self._handle(CallEnded(group=group.index, source=source))
            self._after(self._between(0.2, 4), lambda: self._start_worker(group))

    def _handle(self, event: QuorumEvent) -> None:
        if (coordinator := self.coordinator) is None:
            return
        effects = coordinator.core.handle(event, now=self.now)
        coordinator.core.check_invariants()
        for effect in effects:
            match effect:
                case KeepQuorum(quorum=quorum):
                    self._perhaps_fail_over(0.05, within_s=0.06)
                    self._after(self._between(0, 0.03), partial(self._keep, quorum))
                    kept = self._between(0.03, 0.06)
                    self._after(kept, lambda: self._kept(coordinator))
                case GiveQuorum():
                    self._give(effect)

    def _keep(self, quorum: KeptQuorum) -> None:
        """Take in what was written; it may be that its writer does not live to hear of it."""
        if self.coordinator is not None or self.random.random() < 0.5:
            self.journal = msgspec.json.encode(quorum)

    def _kept(self, coordinator: Coordinator) -> None:
        if self.coordinator is coordinator:
            self._handle(QuorumKept())

    def _give(self, effect: GiveQuorum) -> None:
        quorum = effect.quorum
        members = frozenset(request.replica_id for request in quorum.requests)
        assert self.members.setdefault(quorum.quorum_id, members) == members, "an id came twice"
        step = quorum.quorum_id, tuple((r.replica_id, r.number) for r in quorum.requests)
        if step not in self.formed:
            self.formed[step] = len(self.formed)
            self.counts["quorums"] += 1
            self._perhaps_fail_over(0.01, within_s=0.01)
        else:
            self.counts["repeated answers"] += 1
        for source, number in effect.numbers.items():
            arrive = partial(self._answer, source, number, quorum, step)
            self._after(self._between(0, 0.01), arrive)

    # Agents and workers.

    def _connect(self, group: Group) -> None:
        if self.coordinator is not None and not group.source and group.replica_id:
            group.source = f"call{next(self._names)}"
            self._report(group, latest=group.latest)

    def _report(self, group: Group, latest: Quorum | None = None) -> None:
        reported = ReplicaReported(
            group=group.index,
            source=group.source,
            replica_id=group.replica_id,
            is_silent=group.is_silent,
            request=group.request,
            latest=latest,
        )

        def arrive() -> None:
            if group.source == reported.source and group.replica_id == reported.replica_id:
                self._handle(replace(reported, request=group.request, is_silent=group.is_silent))

        if group.source:
            self._after(self._between(0, 0.01), arrive)

    def _start_worker(self, group: Group) -> None:
        if group.replica_id:
            return
        group.replica_id = f"group{group.index}:{next(self._names)}"
        group.is_silent, group.commit_failures = False, 0
        self._connect(group)
        replica_id = group.replica_id

        def begin() -> None:
            if group.replica_id == replica_id and not group.is_hung:
                self._ask(group)

        self._after(self._between(0, 3), begin)

    def _ask(self, group: Group, failures: int = 0) -> None:
        group.number += 1
        group.step, group.commit_failures, group.asked_at = None, failures, self.now
        group.request = QuorumRequest(
            replica_id=group.replica_id, number=group.number, commit_failures=failures
        )
        self._report(group)

    def _answer(self, source: str, number: int, quorum: Quorum, step: Step) -> None:
        group = next((group for group in self.groups if group.source == source), None)
        if group is None or group.request is None or group.request.number != number:
            self.counts["answers lost"] += group is None
            return
        self.longest_wait_s = max(self.longest_wait_s, self.now - group.asked_at)
        group.request, group.latest, group.step = None, quorum, step
        for other in self.groups:  # it makes its process group anew, and others lose it
            members = {name for name, _ in other.step[1]} if other.step else set[str]()
            if other.step and other.step[0] < step[0] and group.replica_id in members:
                self._after(self._between(0, 0.05), partial(self._give_up, other, other.step))

        def compute() -> None:
            if group.step == step and not group.is_hung:
                self.arrived.setdefault(step, set()).add(group.replica_id)
                self._review(step)

        self._after(self._between(0.2, 1), compute)
        self._after(COLLECTIVE_TIMEOUT_S, lambda: self._give_up(group, step))

    def _give_up(self, group: Group, step: Step) -> None:
        if group.step == step and not group.is_hung:
            numbers = dict(step[1])
            well = {each.replica_id: each.number for each in self.groups if not each.is_hung}
            stays = all(well.get(name) == number for name, number in numbers.items())
            is_led = self.coordinator is not None and self.now - self.began_at > ALL_BACK_S
            assert not (stays and is_led), "a member never heard of its quorum"
            self._ask(group, failures=group.commit_failures + 1)

    def _review(self, step: Step) -> None:
        """Commit a step that all have computed; let one fail of which a member has died."""
        members = {name for name, _ in step[1]}
        alive = {group.replica_id for group in self.groups}
        training = [group for group in self.groups if group.step == step and not group.is_hung]
        if members <= self.arrived[step]:
            order = self.formed[step]
            assert order > self.committed, "a step of an earlier quorum after one of a later"
            self.committed, self.last = order, frozenset(members)
            self.counts["steps"] += 1
            for group in training:
                self._ask(group)
        elif not members <= alive:
            for group in training:
                if group.replica_id in self.arrived[step]:
                    self._ask(group, failures=group.commit_failures + 1)

    def _between(self, least: float, most: float) -> float:
        return self.random.uniform(least, most)

    def _after(self, delay_s: float, act: Callable[[], None]) -> None:
        self._push(self.now + delay_s, act)

    def _push(self, at: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at, next(self._order), act))
