"""Shell. A status that is kept up to date, through restarts of the coordinator. Blocks."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc

from coordinator.command.looking.documents import status_document
from coordinator.command.looking.following import Patience
from coordinator.command.looking.reading import Reader, channel_of
from coordinator.errors import CallFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.command.looking.documents import Document
    from coordinator.command.requests import WatchRun
    from drumbeat.v1 import query_pb2 as pb

# Between two looks, whatever happens.
LEAST_S = 1.0
# Steps go on without events, so there are looks between these: as many as take this share of the
# time, here and at the coordinator.
SHARE = 0.02


def looks(asked: WatchRun) -> Iterator[Document]:
    """Yield the status of a run at each event, and in between, until the run has ended."""
    patience = Patience()
    has_ended = False
    while not has_ended:
        try:
            with channel_of(asked) as (channel, metadata):
                yield from _looks(Reader(channel, metadata), asked.run_id, patience)
            has_ended = True
        except CallFailed as error:
            patience.wait(error)


def _looks(reader: Reader, run_id: str, patience: Patience) -> Iterator[Document]:
    due = threading.Event()
    is_first = True
    while True:
        began = time.monotonic()
        due.clear()
        run = reader.run(run_id)
        status = status_document(run, reader.agents(run), reader.latest_events(run))
        took_s = time.monotonic() - began
        patience.reached()
        yield status
        if status["phase"] == "ended":
            return
        if is_first:  # it ends with the channel
            threading.Thread(target=_wake, args=(reader, run, due), daemon=True).start()
            is_first = False
        time.sleep(LEAST_S)
        due.wait(max(0.0, took_s / SHARE - LEAST_S))


def _wake(reader: Reader, run: pb.Run, due: threading.Event) -> None:
    """Have the next look taken at each event. Of a failure the look itself will tell."""
    with suppress(grpc.RpcError, ValueError):  # the latter: the channel was closed before
        for _ in reader.watch(run, run.event_sequence):
            due.set()
    due.set()
