"""Metrics of runs: counters that never go back, histograms from records, few labels."""

import pytest

from drumbeat.command.metrics import Metric
from drumbeat.coordinator.core.model import Hang
from drumbeat.coordinator.observe.goodput.ledger import NONE
from drumbeat.coordinator.observe.metrics import declared
from drumbeat.coordinator.observe.metrics.recoveries import Recoveries
from drumbeat.coordinator.observe.metrics.runs import OTHERS, RunMetrics
from drumbeat.coordinator.observe.observer import account
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.model import GroupState, HangKind
from drumbeat.text.durations import SECOND
from tests.support.world import RUN, Story, a_running_story, a_spec

Values = dict[tuple[str, ...], float]


def looked(story: Story, metrics: RunMetrics, *, named_max: int = 100) -> dict[str, Values]:
    """Return all values of runs by metric and labels."""
    look = metrics.look((run.state for run in story.registry.runs.values()), named_max=named_max)
    for state in look.states:
        look.take(state, story.registry.runs[state.key], now=story.now, epoch_s=1e9)
    return {metric.name: dict(look.rows(metric)) for metric in (declared.RUNS, *declared.OF_RUNS)}


def value(found: dict[str, Values], metric: Metric, *labels: str) -> float:
    return found[metric.name][RUN, *labels]


def counters(found: dict[str, Values]) -> dict[tuple[str, tuple[str, ...]], float]:
    kinds = {metric.name: metric.kind for metric in declared.METRICS}
    return {
        (name, labels): each
        for name, values in found.items()
        for labels, each in values.items()
        if kinds[name] == "counter"
    }


class Watched:
    """Looks at a story each second, and finds counters that go back."""

    def __init__(self, story: Story) -> None:
        self.story, self.metrics = story, RunMetrics()
        self.before: dict[tuple[str, tuple[str, ...]], float] = {}

    def look(self) -> dict[str, Values]:
        found = looked(self.story, self.metrics)
        now = counters(found)
        assert {key for key, was in self.before.items() if now.get(key, was) < was} == set()
        self.before = now
        return found

    def train(self, steps: range, names: str = "ab") -> None:
        for step in steps:
            self.story.advance(1.0)
            for name in names:
                worker = WorkerProgress(local_rank=0, step=step, heartbeat_age_s=0.0)
                self.story.beat(name, GroupState.RUNNING, workers=(worker,))
            self.look()
        for agent in self.story.agents.values():
            agent.workers = ()

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.story.advance(1.0)
            self.look()

    def restart(self) -> None:
        """Restart the coordinator: what it had counted is gone, what it had told is not."""
        self.story.restart()
        self.metrics = RunMetrics()
        self.look()
        for name in "ab":
            self.story.back(name)
        self.look()


def test_parts_are_those_of_the_account_and_never_go_back_through_a_hang() -> None:
    watched = Watched(a_running_story(2, restarts_max=3))
    story = watched.story
    watched.wait(3)
    watched.train(range(70))
    watched.wait(40)
    # Up to the last progress that is journaled, at most a minute before the last.
    assert 10.0 <= value(watched.look(), declared.TIME, "training") <= 70.0
    story.record("b", hang=Hang(kind=HangKind.PROGRESS, limit_s=30.0, elapsed_s=40.0))
    story.fail("b")
    found = watched.look()
    account = story.state().observed.ledger
    told = {part: value(found, declared.TIME, part) for part in declared.PARTS}
    assert told == {
        part: account.parts.get(part.upper(), NONE).run / SECOND  # type: ignore[call-overload]
        for part in declared.PARTS
    }
    assert told["hanging"] == 40.0
    lost = sum(value(found, declared.LOST, cause) for cause in declared.CAUSES)
    assert lost + told["training"] == pytest.approx(sum(told.values()))
    assert value(found, declared.HOST_TIME, "hanging") == 80.0
    assert value(found, declared.RESTARTS, "hang") == value(found, declared.FAILED) == 1.0
    story.obey_all()
    watched.wait(2)
    watched.train(range(60, 90))
    found = watched.look()
    assert value(found, declared.TIME, "repeated") > 0
    assert value(found, declared.ROUNDS) == 2.0
    assert value(found, declared.BUDGET) == 2.0
    assert value(found, declared.STEP) == 89.0
    assert value(found, declared.PROGRESS) == story.now + 1e9


def test_no_counter_goes_back_when_the_coordinator_restarts_and_steps_are_done_again() -> None:
    watched = Watched(a_running_story(2, restarts_max=3))
    watched.train(range(100))
    watched.restart()
    watched.train(range(100, 130))
    watched.wait(30)
    watched.restart()
    watched.story.fail("a")
    watched.look()
    watched.restart()
    watched.story.obey_all()
    watched.train(range(110, 140))
    account = watched.story.run().state.observed.ledger
    found = watched.look()
    told = sum(value(found, declared.TIME, part) for part in declared.PARTS)
    # All of it, but for what no one knows yet.
    assert told == pytest.approx(watched.story.now - (account.began or 0) / SECOND, abs=61.0)


def test_the_ratio_is_that_of_the_account_now() -> None:
    watched = Watched(a_running_story(2))
    watched.train(range(90))
    story = watched.story
    exact = account(story.run().state.observed, story.run().members.observer, now=story.now).ratio
    assert value(watched.look(), declared.RATIO) == pytest.approx(exact, abs=1e-6)


def test_agents_are_told_by_their_presence_while_a_run_lives() -> None:
    story = a_running_story(2)
    metrics = RunMetrics()
    story.break_session("a")
    found = looked(story, metrics)
    told = {presence: value(found, declared.AGENTS, presence) for presence in declared.PRESENCES}
    assert told == {"present": 1.0, "suspect": 0.0, "away": 1.0, "outside": 0.0}
    assert value(found, declared.PHASE, "running") == 1.0
    assert value(found, declared.WORKERS) == 2.0
    story.back("a")
    for name in "ab":
        story.succeed(name)
    found = looked(story, metrics)
    assert value(found, declared.PHASE, "ended") == 1.0
    assert found[declared.RUNS.name]["ended",] == 1.0
    assert found[declared.AGENTS.name] == found[declared.PROGRESS.name] == {}


def test_runs_beyond_the_limit_are_told_together_and_their_counters_go_on() -> None:
    story = Story(spec=a_spec(1))
    metrics = RunMetrics()
    for number in range(4):
        story.join(f"host-{number}", run_id=f"run-{number}", spec=a_spec(1))
    found = looked(story, metrics, named_max=2)
    ids = {labels[0] for labels in found[declared.TIME.name]}
    assert ids == {"run-0", "run-1", OTHERS}
    assert found[declared.AGENTS.name][OTHERS, "present"] == 2.0
    assert (OTHERS, "running") not in found[declared.PHASE.name], "it says nothing of several"
    story.obey_all()
    story.advance(70.0)
    before = looked(story, metrics, named_max=2)[declared.TIME.name][OTHERS, "training"]
    assert before == pytest.approx(2 * (60.0 - 15.0), abs=1.0)
    story.succeed("host-2")
    story.advance(5.0)
    after = looked(story, metrics, named_max=2)[declared.TIME.name][OTHERS, "training"]
    assert after >= before + 5.0, "a run that has ended takes nothing back"
    story.succeed("host-0")
    found = looked(story, metrics, named_max=2)
    assert {labels[0] for labels in found[declared.TIME.name]} == {"run-1", "run-3", OTHERS}
    assert found[declared.TIME.name][OTHERS, "training"] >= after


def test_of_several_runs_with_one_id_the_latest_is_told() -> None:
    story = Story(spec=a_spec(1))
    story.join("a", began_at=story.now)
    story.obey_all()
    story.succeed("a")
    story.advance(1.0)
    story.join("b", began_at=story.now)
    found = looked(story, RunMetrics())
    assert found[declared.PHASE.name][RUN, "running"] == 1.0
    assert found[declared.RUNS.name] == {
        ("gathering",): 0.0, ("running",): 1.0, ("ending",): 0.0, ("ended",): 1.0,
    }  # fmt: skip


def observed(story: Story) -> list[tuple[str, tuple[str, ...], float]]:
    recoveries = Recoveries()
    return [
        (metric.name, labels, round(value, 3))
        for key, record in story.journal
        for metric, labels, value in recoveries.saw(key, record)
    ]


def test_detection_and_reforming_are_measured_from_records() -> None:
    story = a_running_story(2, restarts_max=3)
    watched = Watched(story)
    watched.train(range(10))
    story.advance(40.0)
    story.record("b", hang=Hang(kind=HangKind.PROGRESS, limit_s=30.0, elapsed_s=40.0))
    story.fail("b")
    story.advance(2.0)
    story.obey_all()
    story.advance(3.0)
    watched.train(range(10, 12))
    assert observed(story) == [
        (declared.DETECTION.name, ("hang",), 40.0),
        (declared.REFORMING.name, ("round", "running"), 2.0),
        (declared.REFORMING.name, ("round", "progress"), 6.0),
    ]


def test_a_run_that_ends_before_it_went_on_has_taken_no_time() -> None:
    story = a_running_story(2, restarts_max=3)
    story.fail("b")
    story.fail("a")
    recoveries = Recoveries()
    for key, record in story.journal:
        assert all(metric is declared.DETECTION for metric, _, _ in recoveries.saw(key, record))
    recoveries.forget(RUN)
    assert not recoveries._reforming
