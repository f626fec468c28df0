"""Ranks that are slower than their peers: when that is found, told, over, and when it is not."""

import math
import time
from typing import Any

import pytest

from drumbeat.coordinator.core.membership.admission import spec_error
from drumbeat.coordinator.core.model import Beat, Round
from drumbeat.coordinator.core.phases.ranks import assign_seats
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.observe.messages import stragglers_of
from drumbeat.coordinator.observe.steps.medians import PEERS_MAX, spread
from drumbeat.coordinator.observe.steps.stragglers import (
    EVENT_INTERVAL_S,
    EVENTS_BURST,
    NAMED_MAX,
    Straggler,
    StragglerFound,
    StragglerOver,
    Stragglers,
)
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.coordinator.wire.run_status import events_page
from drumbeat.model import GroupState
from drumbeat.v1 import query_pb2
from tests.support.world import START, Story, a_running_story, a_spec, an_agent

RULE: dict[str, Any] = {"straggler_factor": 1.5, "straggler_steps": 20}


class Ranks:
    """The ranks of a running story, an agent each, and what they have said of their steps."""

    def __init__(self, story: Story, *, steps: int = 10, is_busy: bool = False) -> None:
        self.story, self.steps, self.is_busy = story, steps, is_busy
        self.sums = dict.fromkeys(story.agents, (0, 0.0))

    def train(self, seconds: int = 1, **times: float | None) -> None:
        """Let each rank make steps each second, of 0.1 s unless it is said else; None: it hangs."""
        for _ in range(seconds):
            self.story.advance(1.0)
            for name in self.story.agents:
                self.beat(name, times.get(name, 0.1))

    def beat(self, name: str, step_time_s: float | None) -> None:
        steps, took = self.sums[name]
        if step_time_s is not None:
            steps, took = steps + self.steps, took + self.steps * step_time_s
        self.sums[name] = steps, took
        self.story.beat(name, GroupState.RUNNING, workers=(progress(steps, took, self.is_busy),))


def progress(steps: int, took: float, is_busy: bool = False, local_rank: int = 0) -> WorkerProgress:
    return WorkerProgress(
        local_rank=local_rank,
        step=steps,
        heartbeat_age_s=0.0,
        steps_timed=steps,
        steps_s=took,
        is_busy_time=is_busy,
    )


def events(story: Story) -> list[str]:
    return [
        f"{entry.decision}: {entry.reason}"
        for entry in story.state().history
        if entry.decision.startswith("straggler")
    ]


def running(size: int = 4, **more: Any) -> Story:
    story = a_running_story(size, **(RULE | more))
    assert story.state().round is not None
    return story


def test_so_many_steps_in_a_row_are_needed_however_few_are_between_beats() -> None:
    story = running()
    ranks = Ranks(story, steps=1)
    ranks.train(1)
    ranks.train(19, c=1.0)
    ranks.train(1)  # one that is not slow, and the row begins anew
    ranks.train(19, c=1.0)
    assert events(story) == []
    ranks.train(1, c=1.0)
    assert len(events(story)) == 1


def test_times_of_own_work_are_compared_with_such_times_only() -> None:
    story = running(3)
    ranks = Ranks(story, is_busy=True)
    ranks.train(3)
    other = Ranks(story)
    other.sums["c"] = (1000, 1000.0)
    for _ in range(10):
        ranks.story.advance(1.0)
        ranks.beat("a", 0.1)
        ranks.beat("b", 0.1)
        other.beat("c", 7.0)
    assert events(story) == []
    ranks.train(10, b=0.2)
    assert events(story)[0].endswith("works 200 ms for a step, the median of its peers is 100 ms")


def test_a_decision_on_the_run_never_follows() -> None:
    """What is told of them is all that differs from a run in which none is slow."""
    records = []
    for slow_s in (0.1, 0.5):
        story = running(4, restarts_max=2)
        ranks = Ranks(story)
        ranks.train(1)
        ranks.train(40, c=slow_s)
        story.fail("b")
        story.obey_all()
        ranks.train(5, c=slow_s)
        kept = [record for _, record in story.journal]
        found = [record for record in kept if isinstance(record, StragglerFound)]
        assert bool(found) == (slow_s > 0.1)
        others = (record for record in kept if record not in found)
        records.append([(type(each), getattr(each, "reason", "")) for each in others])
    assert records[0] == records[1]


def a_round(size: int, workers: int = 1, roles: int = 1) -> Round:
    agents = [
        an_agent(f"h{i}", local_world_size=workers, role=f"r{i % roles}") for i in range(size)
    ]
    return Round(
        round_id=0,
        seats=assign_seats(agents),
        world_size=size * workers,
        restart_count=0,
        master_addr="m",
        master_port=1,
        reason="",
    )


def slow_half(count: int, size: int) -> tuple[Stragglers, float]:
    """Return what is known once so many of so many ranks have been slow for long."""
    stragglers, now = Stragglers(a_round(size), factor=1.5, steps=1, known={}), START
    for beat in range(1, 8):
        now += 1.0
        for i in range(size):
            worker = progress(beat, beat * (1.0 if i < count else 0.1))
            stragglers.heard(f"h{i}.1", [worker], now=now)
    return stragglers, now


def apply(told_of: dict[int, Straggler], records: list[Any]) -> None:
    for record in records:
        told_of.pop(record.straggler.rank, None)
        if isinstance(record, StragglerFound):
            told_of[record.straggler.rank] = record.straggler


def test_of_many_a_few_are_named_and_all_are_counted() -> None:
    stragglers, now = slow_half(300, 700)
    assert len(stragglers.by_rank) == 300
    told_of: dict[int, Straggler] = {}
    for _ in range(50):
        apply(told_of, stragglers.news(told_of, now=now))
        now += EVENT_INTERVAL_S
    assert len(told_of) == NAMED_MAX
    assert not stragglers.is_due(now)


def test_those_that_come_and_go_make_no_more_events_than_their_pace_allows() -> None:
    size, now, count = 40, START, 0
    stragglers = Stragglers(a_round(size), factor=1.5, steps=1, known={})
    told_of: dict[int, Straggler] = {}
    took = [0.0] * size
    for beat in range(1, 401):
        now += 1.0
        for i in range(size):
            is_slow = i < 18 and beat // 5 % 2
            took[i] += 1.0 if is_slow else 0.1
            stragglers.heard(f"h{i}.1", [progress(beat, took[i])], now=now)
        if stragglers.is_due(now):
            records = stragglers.news(told_of, now=now)
            apply(told_of, records)
            count += len(records)
    assert EVENTS_BURST < count <= EVENTS_BURST + 400 / EVENT_INTERVAL_S
    for _ in range(100):  # once they rest, what is told becomes what is
        now += 1.0
        beat += 1
        for i in range(size):
            took[i] += 0.1
            stragglers.heard(f"h{i}.1", [progress(beat, took[i])], now=now)
    while told_of:
        now += EVENT_INTERVAL_S
        assert stragglers.is_due(now)
        records = stragglers.news(told_of, now=now)
        assert {type(record) for record in records} == {StragglerOver}
        apply(told_of, records)


def test_events_of_them_push_no_others_out_of_the_history() -> None:
    story = running(4)
    state = story.state()
    straggler = Straggler(rank=1, name="b", host="b", step_time_s=2.0, median_s=1.0)
    for _ in range(state.history_max):
        state.apply(StragglerFound(straggler=straggler, at_s=START))
        state.apply(StragglerOver(straggler=straggler, at_s=START))
    decisions = [entry.decision for entry in state.history]
    assert decisions[0] == "agent admitted"
    assert sum(each.startswith("straggler") for each in decisions) == state.history_max // 10


def test_a_reader_is_told_the_latest_times_and_how_many_there_are() -> None:
    story = running()
    ranks = Ranks(story)
    ranks.train(1)
    ranks.train(5, c=0.25)
    ranks.train(1, c=0.5)
    run = story.run()
    shown, count = stragglers_of(story.state(), run)
    assert (count, [each.rank for each in shown]) == (1, [2])
    assert shown[0].step_time.ToTimedelta().total_seconds() == pytest.approx(0.5)
    assert stragglers_of(story.state(), None)[1] == 1
    page = events_page(query_pb2.ListEventsRequest(), story.state(), now=story.now)
    assert page.events[-1].kind == query_pb2.RUN_EVENT_KIND_STRAGGLER_FOUND


def test_the_median_of_many_is_that_of_some_from_every_place_of_a_host() -> None:
    ranks = spread(range(80_000))
    assert PEERS_MAX / 2 < len(ranks) <= PEERS_MAX
    assert {rank % 8 for rank in ranks} == set(range(8))
    assert spread(range(5)) == range(5)


@pytest.mark.parametrize("factor", [1.0, -2.0, 101.0, math.nan, math.inf])
def test_an_impossible_rule_is_refused(factor: float) -> None:
    error = spec_error(a_spec(1, straggler_factor=factor, straggler_steps=1), Policy(agents_max=10))
    assert error is not None
    assert "straggler_factor" in str(error)
    error = spec_error(a_spec(1, straggler_factor=1.5), Policy(agents_max=10))
    assert error is not None
    assert "straggler_steps" in str(error)


def test_a_beat_costs_next_to_nothing_without_and_little_with_it() -> None:
    """Far above what it is, so that it fails only if the work is of another order."""
    costs = []
    for rule in (dict[str, Any](), RULE):
        story = a_running_story(2, **rule)
        observer = story.run().members.observer
        incarnation = story.agents["a"].identity.incarnation
        beats = [
            Beat(state=GroupState.RUNNING, round_id=0, workers=(progress(n, 0.1 * n),))
            for n in range(1, 2001)
        ]
        began = time.thread_time()
        for number, beat in enumerate(beats):
            observer.heard(incarnation, beat, sent_at=START, now=START + number / 1000)
        costs.append((time.thread_time() - began) / len(beats))
    assert costs[0] < 20e-6
    assert costs[1] < 100e-6
