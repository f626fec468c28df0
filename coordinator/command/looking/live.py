"""Shell. A status that is kept up to date, through restarts of the coordinator. Blocks."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import grpc

from drumbeat.coordinator.api.documents import overview_document, status_document
from drumbeat.coordinator.command.looking.following import Patience
from drumbeat.coordinator.command.looking.reading import Reader, calls_of
from drumbeat.coordinator.errors import CallFailed
from drumbeat.mapping import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drumbeat.coordinator.api.documents import Document
    from drumbeat.coordinator.api.requests import ShowStatus, WatchRun
    from drumbeat.v1 import query_pb2 as pb

# Between two looks, whatever happens.
LEAST_S = 1.0
# Steps go on without events, so there are looks between these: overviews as often as the
# coordinator makes one, documents with all workers as often as take this share of the time. To show
# them takes no more of a core here, either.
SHARE = 0.02


class Look(NamedTuple):
    """What there is to see of a run, and how long to wait for the next look if nothing happens."""

    status: Document
    run: pb.Run
    wait_s: float


def look(reader: Reader, asked: ShowStatus | WatchRun, *, is_repeated: bool = False) -> Look:
    """Look at a run once: at all of it for programs, else at what tells most."""
    assert asked.run_id is not None, "of all runs there is a list"
    began = time.monotonic()
    is_for_all = asked.output == "json"  # then what is shared is too old beside the agents
    overview = reader.overview(asked.run_id, is_repeated=is_repeated and not is_for_all)
    if not is_for_all:
        return Look(overview_document(overview), overview.run, seconds_of(overview.fresh_for))
    status = status_document(overview, reader.agents(overview.run))
    return Look(status, overview.run, (time.monotonic() - began) / SHARE)


def looks(asked: WatchRun) -> Iterator[Document]:
    """Yield the status of a run at each event, and in between, until the run has ended."""
    calls = calls_of(asked)
    patience = Patience(calls)
    has_ended = False
    while not has_ended:
        try:
            with calls.channel() as (channel, metadata):
                yield from _looks(Reader(channel, metadata), asked, patience)
            has_ended = True
        except CallFailed as error:
            patience.wait(error)


def _looks(reader: Reader, asked: WatchRun, patience: Patience) -> Iterator[Document]:
    news = _News()
    is_first = True
    while True:
        news.is_due.clear()
        began_cpu_s = time.thread_time()
        status, run, wait_s = look(reader, asked, is_repeated=True)
        patience.reached()
        yield status
        if status["phase"] == "ended":
            return
        if is_first:  # it ends with the channel
            threading.Thread(target=news.follow, args=(reader, run), daemon=True).start()
            is_first = False
        if run.event_sequence >= news.sequence:
            wait_s = max(wait_s, (time.thread_time() - began_cpu_s) / SHARE)
        time.sleep(LEAST_S)
        news.is_due.wait(max(0.0, wait_s - LEAST_S))


class _News:
    """What is heard of a run between two looks."""

    def __init__(self) -> None:
        self.is_due = threading.Event()
        self.sequence = 0  # of the latest event; a look that is shared may be from before it

    def follow(self, reader: Reader, run: pb.Run) -> None:
        """Have the next look taken at each event. Of a failure the look itself will tell."""
        with suppress(grpc.RpcError, ValueError):  # the latter: the channel was closed before
            for response in reader.watch(run, run.event_sequence):
                self.sequence = response.events[-1].sequence
                self.is_due.set()
        self.is_due.set()
