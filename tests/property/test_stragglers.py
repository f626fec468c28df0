"""Whatever ranks say of their steps: who is found slow, and what is told, follows the rule."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from drumbeat.coordinator.core.model import Round
from drumbeat.coordinator.core.phases.ranks import assign_seats
from drumbeat.coordinator.observe.steps.stragglers import (
    BEATS_LEAST,
    DIFFERENCE_LEAST_S,
    EVENT_INTERVAL_S,
    EVENTS_BURST,
    NAMED_MAX,
    Straggler,
    StragglerFound,
    Stragglers,
)
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from tests.support.orders import orders
from tests.support.world import START, an_agent

FACTOR, STEPS, HOSTS = 1.5, 6, 5
BEAT = st.tuples(
    st.integers(0, HOSTS - 1),
    st.integers(0, 4),  # steps since the beat before; 0: a beat that repeats it
    st.sampled_from([0.0, 0.0005, 0.1, 0.1, 0.1, 0.14, 0.4]),
    st.booleans() | st.just(False),  # whether it is of its own work
)
# All ranks for some seconds, some of them slow, so many steps a second.
PHASE = st.tuples(
    st.just("phase"),
    st.integers(1, 6),
    st.sets(st.integers(0, HOSTS - 1), max_size=2),
    st.integers(1, 4),
)
LOST = st.tuples(st.just("lost"), st.integers(0, HOSTS - 1))


def a_round() -> Round:
    agents = [an_agent(f"h{i}", role="x" if i < HOSTS - 1 else "y") for i in range(HOSTS)]
    return Round(
        round_id=0,
        seats=assign_seats(agents),
        world_size=HOSTS,
        restart_count=0,
        master_addr="m",
        master_port=1,
        reason="",
    )


@dataclass
class Expected:
    """The rule in other words, of ranks whose medians are always fresh."""

    means: dict[bool, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    rows: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    found: set[int] = field(default_factory=set)

    def beat(self, rank: int, steps: int, mean: float, is_busy: bool) -> None:
        means = self.means[is_busy]
        means[rank] = mean
        peers = [peer for peer in means if (peer == HOSTS - 1) == (rank == HOSTS - 1)]
        if len(peers) < 2:
            return
        ordered = sorted(means[peer] for peer in peers)
        median = ordered[(len(ordered) - 1) // 2]
        is_slow = mean > FACTOR * median and mean > median + DIFFERENCE_LEAST_S
        if is_slow is (rank in self.found):
            self.rows[rank] = []
            return
        self.rows[rank].append(steps)
        if sum(self.rows[rank]) >= STEPS and len(self.rows[rank]) >= BEATS_LEAST:
            self.rows[rank] = []
            self.found ^= {rank}


class World:
    """Ranks that say something, what is found of it, and what is told."""

    def __init__(self) -> None:
        self.stragglers = Stragglers(a_round(), factor=FACTOR, steps=STEPS, known={})
        self.expected, self.now = Expected(), START
        self.said: dict[int, tuple[int, float, bool]] = {}
        self.told: dict[int, Straggler] = {}
        self.records_count = 0

    def lose(self, rank: int) -> None:
        self.stragglers.lost(f"h{rank}.1")
        self.said.pop(rank, None)
        self.expected.found.discard(rank)
        self.expected.rows.pop(rank, None)
        for means in self.expected.means.values():
            means.pop(rank, None)

    def beat(self, rank: int, steps: int, step_time_s: float, is_busy: bool) -> None:
        if (known := self.said.get(rank)) is None:
            count, took = 1, step_time_s  # what came before it is not known
        else:
            before, took_before, was_busy = known
            count, took = before + steps, took_before + steps * step_time_s
            if was_busy is is_busy and steps:
                self.expected.beat(rank, steps, (took - took_before) / steps, is_busy)
        self.said[rank] = count, took, is_busy
        worker = WorkerProgress(local_rank=0, steps_timed=count, steps_s=took, is_busy_time=is_busy)
        self.stragglers.heard(f"h{rank}.1", [worker], now=self.now)

    def tell(self) -> None:
        if not self.stragglers.is_due(self.now):
            return
        for record in self.stragglers.news(self.told, now=self.now):
            self.records_count += 1
            is_found = isinstance(record, StragglerFound)
            assert (record.straggler.rank in self.told) is not is_found, "told twice"
            self.told.pop(record.straggler.rank, None)
            if is_found:
                self.told[record.straggler.rank] = record.straggler

    def check(self) -> None:
        assert set(self.stragglers.by_rank) == self.expected.found
        self.stragglers.check_invariants()
        assert len(self.told) <= NAMED_MAX
        assert self.records_count <= EVENTS_BURST + (self.now - START) / EVENT_INTERVAL_S

    def live(self, event: Any) -> None:
        match event:
            case ("lost", rank):
                self.now += 1.0
                self.lose(rank)
            case ("phase", seconds, slow, steps):
                for _ in range(seconds):
                    for rank in range(HOSTS):
                        self.now += 1.0
                        self.beat(rank, steps, 0.4 if rank in slow else 0.1, False)
                        self.tell()
                        self.check()
            case _:
                self.now += 1.0
                self.beat(*event)
        self.tell()
        self.check()


@orders(100, steps=1)
@given(st.lists(st.one_of(PHASE, PHASE, BEAT, LOST), max_size=30))
def test_who_is_found_and_what_is_told_follow_the_rule(events: list[Any]) -> None:
    world = World()
    for event in events:
        world.live(event)
    for _ in range(2 * HOSTS):
        world.now += EVENT_INTERVAL_S
        world.tell()
    assert set(world.told) == world.expected.found, "what is told is not what is, in the end"
