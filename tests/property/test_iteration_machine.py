"""Whatever befalls workers, hosts and the coordinator, iterations keep their promises.

Hypothesis plays hosts that do what they are told, late or not at all, and whose
workers fail in every way; after every event the decisions, and what each host is
told, are held against what the design promises. ``DRUMBEAT_SEEDS`` sets the number
of orders, which are then drawn at random.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from drumbeat.coordinator.core.inprocess.rank_rules import FILL_GAPS, SHIFT_RANKS, RankRule
from drumbeat.coordinator.core.inprocess.records import (
    InprocessReport,
    InprocessSpec,
    IterationBegan,
    IterationCompleted,
    IterationInterrupted,
)
from drumbeat.coordinator.core.phases.rendezvous import GiveUp
from drumbeat.inprocess import (
    InprocessDirective,
    InprocessSeat,
    InprocessStep,
    Interruption,
    InterruptionKind,
    IterationBegin,
    IterationInterrupt,
)
from tests.support.inprocess.round import (
    COMPLETED,
    ENTERED,
    INTERRUPTED,
    RUNNING,
    Decision,
    IterationStory,
    a_fault,
)
from tests.support.inprocess.rules import active_divisor, active_max, group_sizes
from tests.support.orders import orders

NAMES = st.sampled_from("abcd")
Worker = tuple[str, int]


@dataclass
class Host:
    """An agent and its workers; does what it is told when it is asked to."""

    name: str
    size: int
    iteration: int = 0
    step: InprocessStep | None = None  # None: its workers are in no iteration
    terminated: dict[int, Interruption] = field(default_factory=dict)
    interruptions: dict[int, Interruption] = field(default_factory=dict)
    said: list[InprocessReport] = field(default_factory=list)
    is_heard: bool = False  # in this life of the coordinator
    is_lost: bool = False

    @property
    def left(self) -> list[int]:
        return [worker for worker in range(self.size) if worker not in self.terminated]

    def go(self, iteration: int, step: InprocessStep) -> None:
        if iteration != self.iteration:
            self.interruptions = {}
        self.iteration, self.step = iteration, step

    def obey(self, directive: InprocessDirective) -> None:
        iteration, kind = directive.iteration, directive.kind
        for worker in set(directive.terminated) & set(self.left):
            self.terminated[worker] = a_fault(worker, InterruptionKind.DISCARDED)
        if (
            self.step is None
            or iteration < self.iteration
            or (self.step is INTERRUPTED and iteration == self.iteration)
        ):
            return
        match kind:
            case IterationBegin():
                if self.step is ENTERED and iteration == self.iteration:
                    self.step = RUNNING
            case IterationInterrupt():
                self.go(iteration, INTERRUPTED)
            case _:
                self.step = None
                self.iteration = iteration + 1


class Promises:
    """Knows what hosts said and were told; nothing of how it was decided."""

    def __init__(self, story: IterationStory) -> None:
        self.story = story
        self.begins: dict[int, dict[str, InprocessDirective]] = {}
        self.seats: set[Worker] = set()
        self.latest = -1
        self.is_running = False
        self.is_over = False
        self.completed: set[str] = set()
        self.entered: dict[str, int] = {}
        self.spoiled = ""
        self.dead: set[Worker] = set()

    def heard(self, host: Host, report: InprocessReport) -> None:
        """Note a report that is about to be delivered."""
        dead = {(host.name, t.local_rank) for t in report.terminated}
        if self.is_running and host.name in {name for name, _ in self.seats}:
            if dead & self.seats - self.dead:
                self.spoiled = f"a worker of {host.name} ended"
            if report.iteration == self.latest and report.step is INTERRUPTED:
                self.spoiled = f"{host.name} was interrupted"
            if report.iteration > self.latest:
                self.spoiled = f"{host.name} had left it"
            if report.iteration == self.latest and report.step is COMPLETED:
                self.completed.add(host.name)
        self.dead |= dead
        if report.step is ENTERED:
            self.entered[host.name] = max(self.entered.get(host.name, 0), report.iteration)

    def lost(self, host: Host) -> None:
        workers = {(host.name, worker) for worker in range(host.size)}
        if self.is_running and workers & self.seats - self.dead:
            self.spoiled = f"{host.name} was lost"
        self.dead |= workers

    def decided(self, decision: Decision) -> None:
        assert not self.is_over, "it goes on after it was given up"
        match decision:
            case IterationBegan(iteration=iteration):
                assert not self.is_running, "two iterations at once"
                assert iteration == self.latest + 1, "iterations rise by one"
                self.is_running, self.spoiled, self.completed = True, "", set()
                self.latest = iteration
                self.check_begin(decision)
            case IterationInterrupted(iteration=iteration, reason=reason):
                assert iteration == self.latest + (not self.is_running)
                assert reason.startswith(f"iteration {iteration} was interrupted: ")
                self.is_running, self.latest = False, iteration
            case IterationCompleted(iteration=iteration):
                assert self.is_running, "complete without an iteration"
                assert iteration == self.latest
                assert not self.spoiled, f"complete although {self.spoiled}"
                hosts = {name for name, _ in self.seats}
                assert hosts == self.completed, "complete without all hosts"
                self.is_running = False
            case GiveUp():
                self.is_over = True
            case _:
                raise AssertionError(f"{decision} takes no effect")

    def check_begin(self, begin: IterationBegan) -> None:
        told = {name: self.story.directive(name) for name in self.story.names}
        seats: dict[Worker, InprocessSeat] = {}
        for name, directive in told.items():
            assert directive is not None
            assert isinstance(directive.kind, IterationBegin)
            seats |= {(name, seat.local_rank): seat for seat in directive.kind.seats}
            seated = [seat.local_rank for seat in directive.kind.seats]
            size = self.story.round.seats[f"{name}.1"].agent.local_world_size
            assert sorted([*seated, *directive.terminated]) == list(range(size))
            same = replace(directive.kind, seats=())
            assert same == replace(self.story.begin("a"), seats=()), (
                "hosts are told different sizes"
            )
        ranks = sorted(seat.rank for seat in seats.values())
        assert ranks == list(range(len(self.story.state.order)))
        active = {seat.active_rank for seat in seats.values() if seat.active_rank is not None}
        assert active == set(range(begin.active_world_size))
        late = {name for name, _ in seats if self.entered.get(name) != begin.iteration}
        assert not late, "begun without waiting"
        assert not seats.keys() & self.dead, "a dead worker has a rank"
        assert not self.seats or seats.keys() <= self.seats, "a worker came back"
        (first,) = [name for (name, _), seat in seats.items() if seat.active_rank == 0]
        assert begin.master_addr == f"10.{first}"
        for name, directive in told.items():
            assert directive is not None
            self.begins.setdefault(begin.iteration, {})[name] = directive
        self.seats = set(seats)

    def check_told(self) -> None:
        """Whoever asks what to do in an iteration that runs hears the same as ever."""
        for name in self.story.names:
            directive = self.story.directive(name)
            assert (directive is not None) == (self.latest >= 0)
            if directive is None:
                continue
            assert directive.iteration == self.latest
            if isinstance(directive.kind, IterationBegin):
                assert self.is_running
                assert directive == self.begins[self.latest][name], "two begins differ"


class IterationMachine(RuleBasedStateMachine):
    """A round of up to four hosts with up to three workers each."""

    story: IterationStory

    @initialize(
        sizes=st.lists(st.sampled_from([2, 1, 3]), min_size=1, max_size=4),
        rules=st.lists(
            st.sampled_from(
                [
                    FILL_GAPS,
                    FILL_GAPS,
                    group_sizes([1, 2]),
                    group_sizes([2]),
                    active_max(3),
                    active_divisor(2),
                ]
            ),
            max_size=2,
        ),
        iterations_max=st.sampled_from([0, 0, 0, 3]),
        world_size_min=st.sampled_from([0, 0, 2]),
        has_begun=st.booleans(),
    )
    def begin(
        self,
        sizes: list[int],
        rules: list[RankRule],
        iterations_max: int,
        world_size_min: int,
        has_begun: bool,
    ) -> None:
        spec = InprocessSpec(
            rules=(*rules, SHIFT_RANKS),
            iterations_max=iterations_max,
            world_size_min=world_size_min,
            barrier_timeout_s=10.0,
            completion_timeout_s=10.0,
        )
        self.story = IterationStory(*sizes, spec=spec, watch=self.watch)
        self.promises = Promises(self.story)
        self.hosts = {n: Host(n, size) for n, size in zip(self.story.names, sizes, strict=True)}
        if has_begun:
            self.go_on()

    def watch(self, decision: Decision) -> None:
        self.promises.decided(decision)

    @property
    def is_over(self) -> bool:
        return self.story.give_up is not None

    def host(self, name: str) -> Host | None:
        """Return the host of that name, or another one, that still has workers."""
        alive = [h for h in self.hosts.values() if h.left and not h.is_lost]
        if not alive or self.is_over:
            return None
        return next((h for h in alive if h.name == name), alive[ord(name) % len(alive)])

    def say(self, host: Host) -> None:
        """Let a host report what is the case."""
        if host.step is None:
            return
        report = InprocessReport(
            iteration=host.iteration,
            step=host.step,
            terminated=tuple(host.terminated[worker] for worker in sorted(host.terminated)),
            interruptions=tuple(host.interruptions.values()),
            spec=self.story.spec if host.step is ENTERED else None,
            groups=tuple(f"{host.name}{worker // 2}" for worker in range(host.size)),
        )
        host.said.append(report)
        host.is_heard = True
        self.deliver(host, report)

    def deliver(self, host: Host, report: InprocessReport) -> None:
        self.promises.heard(host, report)
        self.story.deliver(host.name, report)
        self.promises.is_over = self.is_over

    @rule(name=NAMES, is_said=st.booleans())
    def enter(self, name: str, is_said: bool) -> None:
        """Workers call the function, or have cleaned up."""
        host = self.host(name)
        if host is None:
            return
        if host.step is None:
            host.go(host.iteration, ENTERED)
        elif host.step is INTERRUPTED:
            host.go(host.iteration + 1, ENTERED)
        if is_said:
            self.say(host)

    @rule()
    def enter_all(self) -> None:
        for name in self.hosts:
            self.enter(name, is_said=True)

    @rule(name=NAMES, is_said=st.booleans())
    def obey(self, name: str, is_said: bool) -> None:
        host = self.host(name)
        if host is None:
            return
        directive = self.story.directive(host.name)
        if directive is not None:
            host.obey(directive)
        if is_said:
            self.say(host)

    @rule()
    def obey_all(self) -> None:
        for name in self.hosts:
            self.obey(name, is_said=True)

    @rule()
    def go_on(self) -> None:
        """All do what they are told until they are where they should be."""
        self.obey_all()
        self.enter_all()
        self.obey_all()

    @rule(name=NAMES, is_said=st.booleans())
    def complete(self, name: str, is_said: bool) -> None:
        host = self.host(name)
        if host is not None and host.step is RUNNING:
            host.step = COMPLETED
            if is_said:
                self.say(host)

    @rule()
    def complete_all(self) -> None:
        for name in self.hosts:
            self.complete(name, is_said=True)

    @rule(name=NAMES, worker=st.integers(0, 2), is_end=st.booleans(), is_said=st.booleans())
    def fail(self, name: str, worker: int, is_end: bool, is_said: bool) -> None:
        """A worker raises, or ends."""
        host = self.host(name)
        if host is None or host.step is None:
            return
        local_rank = host.left[worker % len(host.left)]
        if host.step is not ENTERED:
            host.step = INTERRUPTED
            host.interruptions[local_rank] = a_fault(local_rank)
        if is_end or host.step is ENTERED:
            host.terminated[local_rank] = a_fault(local_rank, InterruptionKind.TERMINATED)
        if is_said or not host.left:
            self.say(host)

    @rule(name=NAMES)
    def interrupted_early(self, name: str) -> None:
        """Something goes wrong at the barrier."""
        host = self.host(name)
        if host is not None and host.step is ENTERED:
            host.step = INTERRUPTED
            self.say(host)

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        host = self.host(name)
        if host is not None:
            host.is_lost = True
            self.promises.lost(host)
            self.story.lose(host.name)

    @rule(name=NAMES)
    def repeat(self, name: str) -> None:
        if host := self.host(name):
            self.say(host)

    @rule(name=NAMES, age=st.integers(1, 4))
    def say_something_old(self, name: str, age: int) -> None:
        """An older report arrives again; never before this coordinator heard the newest."""
        host = self.host(name)
        if host is not None and host.is_heard and len(host.said) > age:
            self.deliver(host, host.said[-1 - age])

    @rule(name=NAMES)
    def speak_although_lost(self, name: str) -> None:
        host = self.hosts.get(name)
        if host is not None and host.is_lost and not self.is_over:
            self.say(host)

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def advance(self, seconds: float) -> None:
        if not self.is_over:
            self.story.advance(seconds)

    @rule(is_portless=st.booleans())
    def port(self, is_portless: bool) -> None:
        if not self.is_over:
            self.story.is_portless = is_portless
            self.story.settle()

    @rule()
    def restart(self) -> None:
        if not self.is_over:
            for host in self.hosts.values():
                host.is_heard = False
            # What only the dead one knew is unknown again.
            self.promises.completed, self.promises.entered = set(), {}
            self.story.restart()

    @invariant()
    def promises_hold(self) -> None:
        if hasattr(self, "story"):
            self.story.iterations.check_invariants()
            self.promises.check_told()

    def teardown(self) -> None:
        """If all do what they are told, what was begun ends."""
        if not hasattr(self, "story") or self.is_over:
            return
        self.port(is_portless=False)
        for _ in range(12):
            if self.is_over or self.is_quiet():
                return
            before = self.progress()
            for host in [h for h in self.hosts.values() if not h.is_lost and h.left]:
                if self.host(host.name) is not host:
                    continue  # the last of its workers has just ended
                self.obey(host.name, is_said=True)
                if host.step is INTERRUPTED:
                    self.enter(host.name, is_said=True)
                self.obey(host.name, is_said=True)
                self.complete(host.name, is_said=True)
            if not self.is_over and self.progress() == before:
                assert self.story.deadline() is not None, "waits for ever"
                self.story.advance(11.0)
        raise AssertionError(f"it never ends: {self.story.latest}")

    def progress(self) -> list[object]:
        return [len(self.story.journal), *((h.iteration, h.step) for h in self.hosts.values())]

    def is_quiet(self) -> bool:
        return not self.story.iterations.is_engaged and all(
            host.step is None or host.is_lost or not host.left for host in self.hosts.values()
        )


def test_no_order_of_events_breaks_a_promise() -> None:
    run_state_machine_as_test(
        IterationMachine,
        settings=orders(150, steps=50),
    )


def test_the_watch_can_fail() -> None:
    """A promise that nothing could break would be worth nothing."""
    promises = Promises(IterationStory(1))
    with pytest.raises(AssertionError, match="complete without an iteration"):
        promises.decided(IterationCompleted(round_id=0, iteration=0))
    promises.is_running, promises.latest, promises.spoiled = True, 0, "it was not"
    with pytest.raises(AssertionError, match="complete although it was not"):
        promises.decided(IterationCompleted(round_id=0, iteration=0))
