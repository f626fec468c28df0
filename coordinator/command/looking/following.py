"""Shell. Follows a run through restarts of its coordinator. Blocks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeVar

import grpc

from drumbeat.coordinator.access.calls import EXIT_NOT_REACHED, CoordinatorCalls
from drumbeat.coordinator.api.documents import Document, overview_document, status_document
from drumbeat.coordinator.command.client import Client, calls_of
from drumbeat.coordinator.command.request import Request
from drumbeat.coordinator.errors import CallFailed
from drumbeat.v1 import query_pb2 as pb
from drumbeat.wire.mapping import seconds_of

T = TypeVar("T")

# Between two tries to reach a coordinator that was there before.
RETRY_LEAST_S, RETRY_MOST_S = 0.1, 2.0
# Between two looks, whatever happens.
LEAST_S = 1.0
# Steps go on without events, so there are looks between these: overviews as often as the
# coordinator makes one, documents with all workers as often as take this share of the time. To show
# them takes no more of a core here, either.
SHARE = 0.02


class Patience:
    """Waits for a coordinator that was reached once, and says so once."""

    def __init__(
        self, calls: CoordinatorCalls, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._calls, self._sleep = calls, sleep
        self._is_known = self._is_away = False
        self._delay_s = 0.0

    def reached(self) -> None:
        """Take note that it answers."""
        self._calls.note_leader()
        if self._is_away:
            search = self._calls.search
            back = f"{search.address} leads" if search.has_others else "it is back"
            print(f"coordinator: {back}", file=sys.stderr)
        self._is_known, self._is_away, self._delay_s = True, False, 0.0

    def wait(self, error: CallFailed) -> None:
        """Wait before the next try, unless another coordinator is next. Raises if it is no use."""
        if self._calls.goes_on and not self._is_known:
            return
        if not self._calls.goes_on:
            error = self._calls.failure(error)
            if not self._is_known or error.exit_code != EXIT_NOT_REACHED:
                raise error
        if not self._is_away:
            awaited = "the one that leads" if self._calls.search.has_others else "it"
            print(f"coordinator: {error}; waiting for {awaited}", file=sys.stderr)
        self._is_away = True
        if self._calls.goes_on:
            return
        self._delay_s = min(max(RETRY_LEAST_S, 2 * self._delay_s), RETRY_MOST_S)
        self._sleep(self._delay_s)


def resumed(
    calls: CoordinatorCalls,
    read: Callable[[Client, Patience], Iterator[T]],
    *,
    is_patient: bool = True,
) -> Iterator[T]:
    """Yield what ``read`` yields. After an outage it is called again, to go on where it was.

    Unless ``is_patient``, it is called again only for another coordinator that may lead.
    """
    patience = Patience(calls)
    while True:
        try:
            # Anew each time: a restarted coordinator may let this user in by another token.
            with calls.channel() as (channel, metadata):
                yield from read(Client(channel, metadata), patience)
                return
        except CallFailed as error:
            if not (is_patient or calls.goes_on):
                raise calls.failure(error) from error
            patience.wait(error)


def follow(calls: CoordinatorCalls, run: pb.Run, after: int) -> Iterator[pb.WatchEventsResponse]:
    """Yield what is decided on a run after that, each event once, until the run has ended."""

    def read(client: Client, patience: Patience) -> Iterator[pb.WatchEventsResponse]:
        nonlocal after
        client.run(run.run_id)  # one that does not lead takes a stream, too, and holds it
        patience.reached()
        for response in client.watch_events(run, after):
            after = response.events[-1].sequence
            yield response

    return resumed(calls, read)


class RunView(NamedTuple):
    """What there is to see of a run, and how long to wait for the next look if nothing happens."""

    status: Document
    run: pb.Run
    wait_s: float


def look(client: Client, asked: Request, *, is_repeated: bool = False) -> RunView:
    """Look at a run once: at all of it for programs, else at what tells most."""
    began, run_id = time.monotonic(), asked.values["run_id"]
    is_for_all = asked.output == "json"  # then what is shared is too old beside the agents
    is_shared = is_repeated and not is_for_all
    overview = client.call("GetOverview", run_id=run_id, is_repeated=is_shared)
    if not is_for_all:
        return RunView(overview_document(overview), overview.run, seconds_of(overview.fresh_for))
    status = status_document(overview, client.agents(overview.run))
    return RunView(status, overview.run, (time.monotonic() - began) / SHARE)


def looks(asked: Request) -> Iterator[Document]:
    """Yield the status of a run at each event, and in between, until the run has ended."""

    def read(client: Client, patience: Patience) -> Iterator[Document]:
        news = _News()
        is_followed = False
        while True:
            news.is_due.clear()
            began_cpu_s = time.thread_time()
            status, run, wait_s = look(client, asked, is_repeated=True)
            patience.reached()
            yield status
            if status["phase"] == "ended":
                return
            if not is_followed:  # the thread ends with the channel
                threading.Thread(target=news.follow, args=(client, run), daemon=True).start()
                is_followed = True
            if run.event_sequence >= news.sequence:
                wait_s = max(wait_s, (time.thread_time() - began_cpu_s) / SHARE)
            time.sleep(LEAST_S)
            news.is_due.wait(max(0.0, wait_s - LEAST_S))

    return resumed(calls_of(asked), read)


class _News:
    """What is heard of a run between two looks."""

    def __init__(self) -> None:
        self.is_due = threading.Event()
        self.sequence = 0  # of the latest event; a look that is shared may be from before it

    def follow(self, client: Client, run: pb.Run) -> None:
        """Have the next look taken at each event. Of a failure the look itself will tell."""
        with suppress(grpc.RpcError, ValueError):  # the latter: the channel was closed before
            for response in client.watch_events(run, run.event_sequence):
                self.sequence = response.events[-1].sequence
                self.is_due.set()
        self.is_due.set()
