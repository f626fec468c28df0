"""Pure. Metrics of runs: values, and counters that never decrease."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from drumbeat.command.metrics import Metric, Sample
from drumbeat.coordinator.core.registry.isolation import IsolatedRun
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.observe.goodput.ledger import NONE, Ledger
from drumbeat.coordinator.observe.goodput.stretches import MEASURED, Stretch
from drumbeat.coordinator.observe.health import HealthState, health_of
from drumbeat.coordinator.observe.metrics import declared
from drumbeat.text.durations import SECOND, nanoseconds

# The run_id label of all runs without a label of their own. No run can have this id.
OTHERS = "(others)"

# For workers without heartbeats: how late a failure may be detected.
_UNHEARD = 15 * SECOND

_Counted = dict[tuple[str, tuple[str, ...]], float]


def settled_until(ledger: Ledger, now_s: float) -> int:
    """Return up to which instant the account of a run is final.

    Time after the last progress may turn out to be a hang, and a restarted coordinator forgets
    what was not journaled. Counters that include such time would decrease.
    """
    marks, now = ledger.marks, max(nanoseconds(now_s), ledger.seen)
    if ledger.stretch not in MEASURED:
        return now
    if marks is None:
        return ledger.until
    if ledger.stretch is Stretch.GATHERING or marks.running is marks.progress is None:
        return now
    settled = marks.progress
    if settled is None:
        settled = max(marks.running or 0, ledger.seen - _UNHEARD)
    return max(ledger.until, settled)


def values(
    state: RunState, run: IsolatedRun | None, *, now: float, epoch_s: float
) -> Iterator[Sample]:
    """Yield the values of a run at ``now``; ``now + epoch_s`` is in seconds since 1970."""
    ledger = state.observed.ledger
    health = health_of(state, run, now=now)
    for phase in Phase:
        yield declared.PHASE, (phase.lower(),), float(state.phase is phase)
    for one in HealthState:
        yield declared.HEALTH, (one.lower(),), float(health.state is one)
    current = state.round
    is_running = current is not None and state.phase is Phase.RUNNING
    yield declared.WORKERS, (), float(current.world_size if current and is_running else 0)
    yield declared.ROUNDS, (), 0.0 if current is None else current.round_id + 1.0
    yield declared.LEFT_OUT, (), float(len(state.left_out))
    yield declared.FREE, (), float(state.restarts.free)
    yield declared.EXCLUSIONS, (), float(state.exclusions_count)
    yield declared.FAILED, (), float(ledger.failures)
    yield declared.RECORDS, (), float(state.failures_count)
    restarts = {cause.lower(): count for cause, count in ledger.restarts.items()}
    for cause in declared.RESTART_CAUSES:
        yield declared.RESTARTS, (cause,), float(restarts.get(cause, 0))
    yield from _times(ledger, now)
    if (ratio := health.ledger.ratio) is not None:
        yield declared.RATIO, (), round(ratio, 6)
    if (highest := health.ledger.highest_step) is not None:
        yield declared.STEP, (), float(highest)
    if state.observed.steps_total:
        yield declared.STEPS, (), float(state.observed.steps_total)
    if state.phase is Phase.ENDED:
        return
    slow = state.observed.slow if run is None else run.members.observer.slow
    yield declared.STRAGGLERS, (), float(len(slow))
    hang = state.current_hang
    hung_s = 0.0 if hang is None else round(max(0.0, now - hang.since_s), 3)
    yield declared.HANGING, (), hung_s
    yield declared.COLLECTIVE_STALLED, (), hung_s if hang is not None and hang.collective else 0.0
    yield declared.AGENTS_MIN, (), float(state.spec.agents_min)
    if not state.spec.launcher:
        left = state.spec.restarts_max - state.restarts_used_at(now)
        yield declared.BUDGET, (), float(left)
    marks = None if run is None else run.members.observer.marks(ledger)
    if marks is not None and marks.progress is not None:
        yield declared.PROGRESS, (), round(marks.progress / SECOND + epoch_s, 3)
    if run is not None:
        yield declared.EXCLUDED, (), float(run.excluded_count)
        members = run.members
        pace = members.observer.meter.said.pace.per_second(now)
        yield declared.PACE, (), round(pace or 0.0, 6)
        yield declared.AGENTS_UNHEALTHY, (), float(members.unhealthy_count)
        counts = (members.present_count, len(members.suspects), len(members.missed))
        for presence, count in zip(declared.PRESENCES, (*counts, len(run.outside())), strict=True):
            yield declared.AGENTS, (presence,), float(count)


def _times(ledger: Ledger, now: float) -> Iterator[Sample]:
    """Yield the final part of the account."""
    settled = ledger.up_to(settled_until(ledger, now))
    parts = {part.lower(): time for part, time in settled.parts.items()}
    for part in declared.PARTS:
        time = parts.get(part, NONE)
        yield declared.TIME, (part,), time.run / SECOND
        yield declared.HOST_TIME, (part,), time.hosts / SECOND
    causes = {cause.lower(): time.run for cause, time in settled.causes.items()}
    for cause in declared.CAUSES:
        yield declared.LOST, (cause,), causes.get(cause, 0) / SECOND


def named(states: Iterable[RunState], most: int) -> list[RunState]:
    """Choose the runs that get a label of their own: the latest of each id, live runs first.

    A live run keeps its label whatever begins later; of ended runs the latest get one.
    """
    latest = {state.run_id: state for state in states}  # in order of creation
    alive = [state for state in latest.values() if state.phase is not Phase.ENDED]
    ended = [state for state in latest.values() if state.phase is Phase.ENDED]
    ended.sort(key=lambda state: state.ended_at or 0.0, reverse=True)
    return [*alive, *ended][:most]


class RunMetrics:
    """Keeps previous values of counters, so that none decreases.

    Runs without a label of their own share one. Its counters hold what these runs spent while
    they shared it, and go on when one leaves or is forgotten.
    """

    def __init__(self) -> None:
        self._counted: dict[str, _Counted] = {}
        self._unnamed: _Counted = {}

    def look(self, states: Iterable[RunState], *, named_max: int) -> MetricsPass:
        """Begin a pass over all runs."""
        every = list(states)
        chosen = {state.key for state in named(every, named_max)}
        for key in self._counted.keys() - {state.key for state in every}:
            del self._counted[key]
        return MetricsPass(every, chosen, self._counted, self._unnamed)


class MetricsPass:
    """One pass over the runs."""

    def __init__(
        self,
        states: list[RunState],
        named: set[str],
        counted: dict[str, _Counted],
        unnamed: _Counted,
    ) -> None:
        # Unnamed runs that have ended change no more.
        self.states = [
            state
            for state in states
            if state.key in named or state.phase is not Phase.ENDED or state.key in counted
        ]
        self._phases = Counter(state.phase.lower() for state in states)
        self._named, self._counted, self._unnamed = named, counted, unnamed
        self._rows: dict[str, list[tuple[tuple[str, ...], float]]] = {}
        self._sums: _Counted = {}

    def take(self, state: RunState, run: IsolatedRun | None, *, now: float, epoch_s: float) -> None:
        """Add one run."""
        before, is_named = self._counted.get(state.key, {}), state.key in self._named
        counted: _Counted = {}
        for metric, labels, latest in values(state, run, now=now, epoch_s=epoch_s):
            is_counter, key, value = metric.kind == "counter", (metric.name, labels), latest
            if is_counter:
                value = counted[key] = max(latest, before.get(key, latest))
            if is_named:
                rows = self._rows.setdefault(metric.name, [])
                rows.append(((state.run_id, *labels), value))
            elif is_counter:
                more = value - before.get(key, value)
                self._unnamed[key] = self._unnamed.get(key, 0.0) + more
            elif metric not in declared.OF_ONE_RUN:
                self._sums[key] = self._sums.get(key, 0.0) + value
        self._counted[state.key] = counted
        if not is_named and state.phase is Phase.ENDED:
            del self._counted[state.key]

    def rows(self, metric: Metric) -> list[tuple[tuple[str, ...], float]]:
        """Return the rows of a metric."""
        if metric is declared.RUNS:
            return [((phase,), float(self._phases[phase])) for phase in declared.PHASES]
        rows = self._rows.get(metric.name, [])
        sums = self._unnamed if metric.kind == "counter" else self._sums
        unnamed = ((labels, value) for (name, labels), value in sums.items() if name == metric.name)
        return [*rows, *(((OTHERS, *labels), value) for labels, value in unnamed)]
