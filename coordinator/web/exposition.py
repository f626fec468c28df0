"""Shell. ``/metrics``: who may scrape, and the text. Needs prometheus_client, of extra ``page``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import datetime

from aiohttp import hdrs, web
from cryptography import x509

from drumbeat import VERSION
from drumbeat.command.exposition import Library
from drumbeat.command.metrics import BUILD, END, OPENMETRICS, TEXT, Metric, is_openmetrics, written
from drumbeat.coordinator.access.server_identity import ServerIdentity, Shown
from drumbeat.coordinator.cluster.server import Server
from drumbeat.coordinator.cluster.term import Term
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.errors import Forbidden
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.observe.metrics import declared
from drumbeat.coordinator.observe.metrics.recoveries import Recoveries
from drumbeat.coordinator.observe.metrics.runs import RunMetrics
from drumbeat.coordinator.observe.readings import Readings, View
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.web.calls import WebCall
from drumbeat.coordinator.web.connections import DATA
from drumbeat.coordinator.web.site import Route

# One measurement takes about 10 µs.
INTERVAL_S = 1.0


class LoopLag:
    """Calls ``observe`` with each lag in seconds, from ``start`` to ``stop``."""

    def __init__(self, observe: Callable[[float], None], interval_s: float = INTERVAL_S) -> None:
        self._observe, self._interval_s = observe, interval_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start measuring the running loop."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(loop.time() + self._interval_s, self._look, loop)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._timer is not None, "it was set"
        self._observe(max(0.0, loop.time() - self._timer.when()))
        self.start()


# Runs visited between two turns of other tasks: less than 1 ms.
RUNS_PER_TURN = 8
# Share of the event loop for all scrapes, and the shortest time that one answer serves them.
SHARE, FRESH_LEAST_S = 0.05, 0.5


# Larger answers are compressed in a thread.
COMPRESSED_HERE_BYTES_MAX = 16 * 1024
_VIEWS = {is_open: View[bytes](SHARE, FRESH_LEAST_S) for is_open in (False, True)}


class Exposition:
    """Metrics of one coordinator, from its start to its end, also while another one leads."""

    coordinator: Server  # once it has started

    def __init__(
        self,
        limits: Limits,
        identity: ServerIdentity | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs_max, self._identity = limits.metrics_runs_max, identity
        self._certificate: tuple[Shown, datetime] | None = None  # with its end
        self._library = Library(declared.METRICS)
        for cause in declared.DETECTED:
            self._library.expect(declared.DETECTION, cause.lower())
        for labels in declared.REFORMED:
            self._library.expect(declared.REFORMING, *labels)
        self._lag = LoopLag(lambda lag_s: self._library.observe(declared.LOOP_LAG, lag_s))
        self._recoveries, self._runs = Recoveries(), RunMetrics()
        self._readings = Readings(clock)

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        # A caller that may list all runs may scrape.
        return [Route("/metrics", self._scraped, needs_term=False)]

    def start(self, coordinator: Server) -> None:
        """Start measuring."""
        self.coordinator = coordinator
        self._lag.start()

    def stop(self) -> None:
        """Stop measuring."""
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

    async def render(self, *, is_open: bool = False) -> bytes:
        """Return all metrics as text or OpenMetrics; scrapes within a short time share one."""
        return await self._readings.get(_VIEWS[is_open], lambda _: self._make(is_open=is_open))

    def _make(self, *, is_open: bool) -> Generator[None, None, bytes]:
        parts = []
        for piece in self._pieces(is_open=is_open):
            parts.append(piece)
            yield
        return "".join(parts).encode()

    def _pieces(self, *, is_open: bool) -> Iterator[str]:
        """Yield the text in pieces of a few milliseconds of work; some are empty."""
        term, notifier = self.coordinator.term, self.coordinator.notifier
        for metric, value in self._of_coordinator(term):
            labels = ((VERSION, "coordinator"),) if metric is BUILD else ((),)
            yield written(metric, ((row, value) for row in labels), is_open=is_open)
        if notifier is not None:
            counts = notifier.counts
            rows = [((outcome,), float(counts[outcome])) for outcome in declared.OUTCOMES]
            yield written(declared.NOTIFICATIONS, rows, is_open=is_open)
        if term is not None:
            yield from self._of_runs(term.driver, is_open=is_open)
        yield from self._library.pieces(is_open=is_open)
        yield END if is_open else ""

    def _of_coordinator(self, term: Term | None) -> Iterator[tuple[Metric, float]]:
        cluster = self.coordinator.cluster
        leading = 0 if cluster.leader is None else cluster.leader.term
        yield BUILD, 1.0
        yield declared.LEADING, float(term is not None)
        yield declared.TERM, float(leading if term is None else term.number)
        yield declared.MEMBERS, float(len(cluster.members))
        if (ends := self._certificate_ends()) is not None:
            yield declared.CERTIFICATE, ends.timestamp()
        if term is None:
            return
        driver = term.driver
        yield declared.SESSIONS, float(driver.sessions_count)
        yield declared.QUEUED, float(driver.queued.events)
        yield declared.STRETCH, float(driver.registry.load.stretch)
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

    async def _scraped(self, call: WebCall) -> web.StreamResponse:
        if call.known.caller.run_id:
            name, run_id = call.known.caller.name, call.known.caller.run_id
            raise Forbidden(name, f"it is for the run {run_id}, and metrics tell of all runs")
        is_open = is_openmetrics(call.request.headers.get(hdrs.ACCEPT, ""))
        response = web.Response(
            body=await self.render(is_open=is_open),
            headers={**DATA, hdrs.CONTENT_TYPE: OPENMETRICS if is_open else TEXT},
            zlib_executor_size=COMPRESSED_HERE_BYTES_MAX,
        )
        response.enable_compression()
        return response

    def _certificate_ends(self) -> datetime | None:
        if self._identity is None:
            return None
        shown = self._identity.configuration()
        if self._certificate is None or self._certificate[0] is not shown:
            certificate = x509.load_pem_x509_certificate(shown.chain)
            self._certificate = shown, certificate.not_valid_after_utc
        return self._certificate[1]
