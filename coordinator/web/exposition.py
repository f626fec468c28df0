"""Shell. The text of ``/metrics``. It needs prometheus_client, of the extra ``page``."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from drumbeat.command.exposition import Library
from drumbeat.command.metrics import BUILD, END, OPENMETRICS, TEXT, Metric, written
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.observe.metrics import declared
from drumbeat.coordinator.observe.metrics.loop_lag import LoopLag
from drumbeat.coordinator.observe.metrics.recoveries import Recoveries
from drumbeat.coordinator.observe.metrics.runs import RunMetrics
from drumbeat.coordinator.observe.readings import Readings, View
from drumbeat.coordinator.shell.driver import Driver

# Runs visited between two turns of other tasks: less than 1 ms.
RUNS_PER_TURN = 8
# Share of the event loop for all scrapes, and the shortest time that one answer serves them.
SHARE, FRESH_LEAST_S = 0.05, 0.5


class CoordinatorStatus(NamedTuple):
    """What a coordinator knows of itself, also while it does not lead."""

    term: int = 0
    members: int = 1
    certificate_ends: datetime | None = None
    notifications: Mapping[str, int] | None = None  # by outcome; None: no endpoint has any


class Rendered(NamedTuple):
    """An answer to a scrape."""

    body: bytes
    content_type: str


_VIEWS = {is_open: View[Rendered](SHARE, FRESH_LEAST_S) for is_open in (False, True)}


class Exposition:
    """Metrics of one coordinator, from its start to its end.

    ``driver`` returns the driver of the present term, ``None`` while it does not lead; ``version``
    is its release.
    """

    def __init__(
        self,
        driver: Callable[[], Driver | None],
        standing: Callable[[], CoordinatorStatus],
        *,
        version: str,
        runs_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver, self._standing = driver, standing
        self._version, self._runs_max = version, runs_max
        self._library = Library(declared.METRICS)
        for cause in declared.DETECTED:
            self._library.expect(declared.DETECTION, cause.lower())
        for labels in declared.REFORMED:
            self._library.expect(declared.REFORMING, *labels)
        self._lag = LoopLag(lambda lag_s: self._library.observe(declared.LOOP_LAG, lag_s))
        self._recoveries, self._runs = Recoveries(), RunMetrics()
        self._readings = Readings(clock)

    def start(self) -> None:
        """Start measuring the event loop."""
        self._lag.start()

    def stop(self) -> None:
        """Stop measuring the event loop."""
        self._lag.stop()

    def follow(self, driver: Driver) -> None:
        """Measure what a new term journals."""
        self._recoveries = Recoveries()
        driver.on_written = self._written

    def _written(self, effects: Sequence[fx.Effect], took_s: float) -> None:
        """Take in what one write to the journal made durable."""
        self._library.observe(declared.JOURNAL_WRITES, took_s)
        for effect in effects:
            if isinstance(effect, fx.Persist):
                self._library.observe_all(self._recoveries.saw(effect.run_id, effect.record))
            elif isinstance(effect, fx.Forget):
                self._recoveries.forget(effect.run_id)

    async def render(self, *, is_open: bool = False) -> Rendered:
        """Return all metrics as text or OpenMetrics; scrapes within a short time share one."""
        return await self._readings.get(_VIEWS[is_open], lambda _: self._make(is_open=is_open))

    def _make(self, *, is_open: bool) -> Generator[None, None, Rendered]:
        parts = []
        for piece in self._pieces(is_open=is_open):
            parts.append(piece)
            yield
        return Rendered("".join(parts).encode(), OPENMETRICS if is_open else TEXT)

    def _pieces(self, *, is_open: bool) -> Iterator[str]:
        """Yield the text in pieces of a few milliseconds of work; some are empty."""
        driver, standing = self._driver(), self._standing()
        for metric, value in self._of_coordinator(driver, standing):
            labels = ((self._version, "coordinator"),) if metric is BUILD else ((),)
            yield written(metric, ((row, value) for row in labels), is_open=is_open)
        if (counts := standing.notifications) is not None:
            rows = [((outcome,), float(counts.get(outcome, 0))) for outcome in declared.OUTCOMES]
            yield written(declared.NOTIFICATIONS, rows, is_open=is_open)
        if driver is not None:
            yield from self._of_runs(driver, is_open=is_open)
        yield from self._library.pieces(is_open=is_open)
        yield END if is_open else ""

    def _of_coordinator(
        self, driver: Driver | None, standing: CoordinatorStatus
    ) -> Iterator[tuple[Metric, float]]:
        yield BUILD, 1.0
        yield declared.LEADING, float(driver is not None)
        yield declared.TERM, float(standing.term)
        yield declared.MEMBERS, float(standing.members)
        if standing.certificate_ends is not None:
            yield declared.CERTIFICATE, standing.certificate_ends.timestamp()
        if driver is None:
            return
        yield declared.SESSIONS, float(driver.sessions_count)
        yield declared.QUEUED, float(driver.queued.events)
        yield declared.QUEUED_FAILURES, float(driver.queued.failures)
        yield declared.DRAINS, float(len(driver.drains))
        yield declared.JOURNAL_WRITABLE, float(not driver.outage)
        yield declared.JOURNAL_OUTAGE, round(driver.outage_s, 3)

    def _of_runs(self, driver: Driver, *, is_open: bool) -> Iterator[str]:
        now, states = driver.now(), driver.journal.runs.states
        epoch_s, core = time.time() - now, driver.registry.runs
        look = self._runs.look(states.values(), named_max=self._runs_max)
        for index, state in enumerate(look.states):
            look.take(state, core.get(state.key), now=now, epoch_s=epoch_s)
            if index % RUNS_PER_TURN == RUNS_PER_TURN - 1:
                yield ""
        for metric in (declared.RUNS, *declared.OF_RUNS):
            yield written(metric, look.rows(metric), is_open=is_open)
