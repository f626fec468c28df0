"""Shell. Live streams (server-sent events): each event is made once for all readers.

A slow reader gets only the latest event of each kind; nothing waits for it.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog

from drumbeat.coordinator.api.documents import (
    document_of,
    goodput_document,
    overview_document,
)
from drumbeat.coordinator.api.operations import RUN_PATH
from drumbeat.coordinator.api.shares import Shares
from drumbeat.coordinator.cluster.term import Term
from drumbeat.coordinator.core.registry.jobs import groups_of
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import CoordinatorError, Unavailable, UnknownRun
from drumbeat.coordinator.journal.watches import Watch
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.observe.ranks import Grid, ranks_of
from drumbeat.coordinator.observe.readings import FRESH_LEAST_S, fresh_s
from drumbeat.coordinator.web.api.run_list import RunList
from drumbeat.coordinator.web.calls import SILENCE, SILENCE_MAX_S, WebCall, event
from drumbeat.coordinator.web.site import Route
from drumbeat.coordinator.wire.run_status import new_events
from drumbeat.v1 import query_pb2 as pb
from drumbeat.wire.mapping import seconds_of

log = structlog.get_logger()

# Share of the event loop that all streams of one kind may use.
SHARE = 0.02
LIST_SHARE = 0.75 * SHARE  # the rest is for sending it
# Of a list that nobody has been shown yet: what fits a screen, in the time of one turn.
RUNS_AT_ONCE = 50
_EVENTS = "events"


class LaterRun(CoordinatorError):
    """A later run of the same id has begun."""

    status, text = "ABORTED", "a later run {0!a} has begun"


class Reader(Watch):
    """One reader, with the latest of each kind that it has not taken. ``after``: its last event."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after
        self._slots: dict[str, bytes] = {}

    def put(self, kind: str, made: bytes) -> None:
        """Offer something, in place of an older one of the same kind."""
        self._slots[kind] = made
        self.wake()

    async def take(self, feed: Feed) -> bytes:
        """Return what there is, as soon as there is something; after a while a sign of life.

        Raises the error that the feed ended with.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(SILENCE_MAX_S):
                await self.news()
        parts, has_more = [], False
        if self._slots.pop(_EVENTS, None) is not None:
            part, self.after = feed.events(self.after)
            parts.append(part)
            has_more = self.after < feed.events_count
        parts += self._slots.values()
        self._slots.clear()
        if has_more:
            self.put(_EVENTS, b"")
        return b"".join(parts) or SILENCE


class Feed(ABC):
    """What several readers see. It is made while there is a reader."""

    events_count = 0
    """How many events readers can have."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._latest: dict[str, bytes] = {}
        self._encoded: dict[int, tuple[bytes, int]] = {}  # events, until they or their ages change
        self.readers: dict[Reader, None] = {}
        self._maker: asyncio.Task[None] | None = None

    @contextmanager
    def open(self, after: int = 0) -> Iterator[Reader]:
        """Add a reader while the context is open."""
        reader = Reader(after)
        for kind, made in self._latest.items():
            reader.put(kind, made)
        self.readers[reader] = None
        if self._maker is None or self._maker.done():
            self._maker = asyncio.create_task(self._made(), name="page")
        try:
            yield reader
        finally:
            self.readers.pop(reader, None)
            if not self.readers and self._maker is not None:
                self._maker.cancel()
                self._maker = None

    def events(self, after: int) -> tuple[bytes, int]:
        """Return the events after one, encoded once for all readers, and the number of the last."""
        if after not in self._encoded:
            self._encoded[after] = self.encode(after)
        return self._encoded[after]

    def encode(self, after: int) -> tuple[bytes, int]:
        """Encode the events after one; return them with the number of the last."""
        return b"", after

    def put(self, kind: str, made: bytes) -> None:
        """Give something to all readers, also to later ones."""
        self._latest[kind] = made
        for reader in self.readers:
            reader.put(kind, made)

    @abstractmethod
    async def make(self) -> None:
        """Produce what readers see, until cancelled."""

    async def _made(self) -> None:
        try:
            await self.make()
        except Exception as error:
            if not isinstance(error, CoordinatorError):
                log.exception("stream broken")
                error = Unavailable("the stream broke; the coordinator's log says why")
            for reader in self.readers:
                reader.wake(error)


class RunsFeed(Feed):
    """The list of runs. Its changes are to readers what events of a run are."""

    def __init__(self, term: Term, only_run: str) -> None:
        super().__init__(term)
        self._list = RunList(term, only_run)

    def encode(self, after: int) -> tuple[bytes, int]:
        return event("runs", self._list.since(after)), self.events_count

    async def make(self) -> None:
        """Look for changes again and again; at first at some runs, which are shown at once."""
        most: int | None = RUNS_AT_ONCE
        while True:
            took_s = await self._list.look(most)
            self._encoded.clear()  # their ages
            if self._list.number != self.events_count:
                self.events_count = self._list.number
                self.put(_EVENTS, b"")
            await asyncio.sleep(0 if most else fresh_s(took_s, LIST_SHARE))
            most = None


class JobFeed(Feed):
    """One job."""

    def __init__(self, term: Term, job: str) -> None:
        super().__init__(term)
        self._job = job

    async def make(self) -> None:
        asked = pb.GetJobRequest(run_id=self._job, with_segments=True)
        while True:
            began = time.thread_time()
            job = await self._term.queries.GetJob(asked)
            self.put("job", event("job", document_of(job)))
            await asyncio.sleep(fresh_s(time.thread_time() - began, SHARE))


class RunFeed(Feed):
    """One run."""

    def __init__(self, term: Term, state: RunState, *, is_latest: bool) -> None:
        super().__init__(term)
        self._grid: Grid | None = None
        self._run_id, self._generation, self._key = state.run_id, state.generation, state.key
        self._is_latest = is_latest

    async def make(self) -> None:
        """Produce events when something is decided, and state at intervals while the run lives."""
        driver, due, clock = self._term.driver, 0.0, asyncio.get_running_loop().time
        runs, is_first = driver.journal.runs, True
        with runs.watches.open(self._key, most=driver.limits.watches_max) as watch:
            while True:
                state = self._state()
                if is_first or state.events_count != self.events_count:
                    is_first, self.events_count = False, state.events_count
                    due = min(due, clock() + FRESH_LEAST_S)
                    self._encoded.clear()
                    self.put(_EVENTS, b"")
                if clock() >= due:
                    due = clock() + await self._look(state)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await watch.news()

    async def _look(self, state: RunState) -> float:
        """Produce the state of the run; return in how many seconds to do so again."""
        asked = pb.GetOverviewRequest(
            run_id=self._run_id, generation=self._generation, is_repeated=True
        )
        overview = await self._term.queries.GetOverview(asked)
        of = pb.GetGoodputRequest(run_id=self._run_id, generation=self._generation)
        began = time.thread_time()
        self._encoded.clear()  # their ages
        self.put("run", event("run", overview_document(overview)))
        goodput = await self._term.queries.GetGoodput(of)
        self.put("goodput", event("goodput", goodput_document(self._run_id, goodput)))
        took_s, is_over = time.thread_time() - began, state.verdict is not None
        run = self._term.driver.registry.runs.get(self._key)
        readings, readers = self._term.queries.readings, len(self.readers)
        grid = await ranks_of(readings, state, run, is_repeated=not is_over, readers=readers)
        if grid is not self._grid:
            self._grid = grid
            self.put("ranks", b"event: ranks\ndata: " + grid.columns + b"\n\n")
        pause_s = max(seconds_of(overview.fresh_for), fresh_s(took_s, SHARE))
        return float("inf") if is_over else pause_s

    def _state(self) -> RunState:
        """Return the run. Raises ``UnknownRun`` or ``LaterRun``."""
        runs = self._term.driver.journal.runs
        state = runs.find(self._run_id, 0 if self._is_latest else self._generation)
        if state is None:
            raise UnknownRun(self._run_id, "any more")
        if state.generation != self._generation:
            raise LaterRun(self._run_id)
        return state

    def encode(self, after: int) -> tuple[bytes, int]:
        state = self._state()
        events, missed = new_events(state, after, now=self._term.driver.now())
        last = events[-1].sequence if events else state.events_count
        documents = [document_of(entry) for entry in events]
        data = {"events": documents, "missed": missed, "generation": self._generation}
        return event(_EVENTS, data, f"{self._generation}.{last}"), last


class Live:
    """Handlers of live streams."""

    def __init__(self, limits: Limits) -> None:
        self._term: Term | None = None
        self._feeds: dict[tuple[str, int, bool], Feed] = {}
        self.streams = Shares("page_streams", limits)

    def routes(self) -> list[Route]:
        return [
            Route("/api/live", self.runs),
            Route(f"/api/runs/{RUN_PATH}/live", self.run),
        ]

    async def runs(self, call: WebCall) -> None:
        only_run = call.known.caller.run_id
        term = call.term
        feed = self._feed(term, (only_run, 0, False), lambda: RunsFeed(term, only_run))
        await self._stream(call, feed, 0)

    async def run(self, call: WebCall) -> None:
        term, runs = call.term, call.term.driver.journal.runs
        if runs.find(call.run_id) is None and groups_of(call.run_id, runs.states.values()):
            feed = self._feed(term, (call.run_id, 0, True), lambda: JobFeed(term, call.run_id))
            await self._stream(call, feed, 0)
            return
        (state, _), is_latest = call.find_run(), not call.generation
        key = (call.run_id, state.generation, is_latest)
        feed = self._feed(call.term, key, lambda: RunFeed(call.term, state, is_latest=is_latest))
        await self._stream(call, feed, _resumed(call, state))

    def _feed(self, term: Term, key: tuple[str, int, bool], make: Callable[[], Feed]) -> Feed:
        if term is not self._term:  # readers of the one before were ended with it
            self._term, self._feeds = term, {}
        self._feeds = {k: feed for k, feed in self._feeds.items() if feed.readers}
        if key not in self._feeds:
            self._feeds[key] = make()
        return self._feeds[key]

    async def _stream(self, call: WebCall, feed: Feed, after: int) -> None:
        with self.streams.held(call.known.caller), feed.open(after) as reader:
            await call.open_stream()
            while not call.is_head:
                await call.send(await reader.take(feed))


def _resumed(call: WebCall, state: RunState) -> int:
    """Return the last event that a reader has of this run; 0: none."""
    generation, _, number = call.request.headers.get("Last-Event-ID", "").partition(".")
    if generation != str(state.generation) or not (number.isascii() and number.isdecimal()):
        return 0
    after = int(number[:18])
    return after if after <= state.events_count else 0
