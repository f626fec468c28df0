"""Shell. All metrics of an agent, as any thread may ask for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import groupby

from drumbeat.agent.core import events as ev
from drumbeat.agent.telemetry import Item
from drumbeat.agent.telemetry.metrics import declared as the
from drumbeat.agent.telemetry.metrics.host import Host
from drumbeat.agent.telemetry.metrics.tally import Look, Tally
from drumbeat.command.exposition import Library
from drumbeat.command.metrics import END, Sample, written

# How long one answer serves all who ask, and how long the agent may take to say how it is.
FRESH_S, ANSWER_S = 0.5, 2.0

LookNow = Callable[[], Look]  # called on the agent's loop


class Metrics:
    """Counts what an agent does, and writes it all down."""

    def __init__(self, tally: Tally) -> None:
        self._tally, self._library = tally, Library(the.METRICS)
        self._host: Host | None = None
        for stage in the.STAGES:
            self._library.expect(the.STAGE, stage)
        self._look: LookNow | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._kept: tuple[float, list[Sample]] = (0.0, [])

    def follow(self, look: LookNow, host: Host) -> None:
        """Ask ``look`` how the agent is from now on, in the loop that runs."""
        self._look, self._host, self._loop = look, host, asyncio.get_running_loop()

    def saw(self, event: ev.Event | None, items: Iterable[Item]) -> None:
        """Take in what happened, and what telemetry says of it."""
        self._library.observe_all(self._tally.saw(event, items))

    def text(self, *, is_open: bool) -> str:
        """Return everything. For any thread but the loop's. Raises ``TimeoutError``."""
        with self._lock:
            fresh_until, samples = self._kept
            if time.monotonic() >= fresh_until:
                assert self._host is not None, "followed before it is served"
                samples = [*self._asked(), *self._host.samples()]
                self._kept = time.monotonic() + FRESH_S, samples
        ours = groupby(samples, key=lambda sample: sample[0])
        texts = [
            written(metric, ((labels, value) for _, labels, value in found), is_open=is_open)
            for metric, found in ours
        ]
        return "".join((*texts, *self._library.pieces(is_open=is_open), END * is_open))

    def _asked(self) -> list[Sample]:
        assert self._loop is not None, "followed before it is served"
        found: Future[list[Sample]] = Future()

        def answer() -> None:
            assert self._look is not None, "followed"
            try:
                epoch_s = time.time() - time.monotonic()
                found.set_result(_grouped(self._tally.samples(self._look(), epoch_s=epoch_s)))
            except Exception as error:  # noqa: BLE001 - metrics end no agent
                found.set_exception(error)

        self._loop.call_soon_threadsafe(answer)
        return found.result(ANSWER_S)


def _grouped(samples: Iterable[Sample]) -> list[Sample]:
    """Put samples of one metric beside each other."""
    return sorted(samples, key=lambda sample: the.METRICS.index(sample[0]))
