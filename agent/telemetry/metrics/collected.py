"""Shell. All metrics of an agent, as any thread may ask for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from importlib import metadata

from drumbeat.agent.telemetry.facts import Fact, StageEnded
from drumbeat.agent.telemetry.metrics.declared import METRICS, STAGE, STAGES
from drumbeat.agent.telemetry.metrics.host import Host
from drumbeat.agent.telemetry.metrics.tally import AgentSnapshot, samples_of
from drumbeat.command.exposition import Library
from drumbeat.command.metrics import BUILD, END, Metric, Sample, written

# How long one answer serves all who ask, and how long the agent may take to say how it is.
FRESH_S, ANSWER_S = 0.5, 2.0

LookNow = Callable[[], AgentSnapshot]  # called on the agent's loop


class Metrics:
    """Measures how long stages take from the start of an agent, and asks it for the rest.

    Made in the agent's loop. ``look`` says how the agent is.
    """

    def __init__(self, look: LookNow, host: Host) -> None:
        self._look, self._host, self._loop = look, host, asyncio.get_running_loop()
        self._build = BUILD, (metadata.version("drumbeat"), "agent"), 1.0
        self._library = Library(METRICS)
        for stage in STAGES:
            self._library.expect(STAGE, stage)
        self._lock = threading.Lock()
        self._fresh_until = 0.0
        self._samples: dict[Metric, list[Sample]] = {}

    def take(self, fact: Fact) -> None:
        """Note how long a stage took."""
        if isinstance(fact, StageEnded):
            self._library.observe(STAGE, fact.took_s, fact.stage)

    def text(self, *, is_open: bool) -> str:
        """Return everything. For any thread but the loop's. Raises ``TimeoutError``."""
        with self._lock:
            if time.monotonic() >= self._fresh_until:
                samples: dict[Metric, list[Sample]] = {}
                for sample in (self._build, *self._asked(), *self._host.samples()):
                    samples.setdefault(sample[0], []).append(sample)
                self._samples, self._fresh_until = samples, time.monotonic() + FRESH_S
            samples = self._samples
        texts = [
            written(metric, ((labels, value) for _, labels, value in known), is_open=is_open)
            for metric, known in samples.items()
        ]
        return "".join((*texts, *self._library.pieces(is_open=is_open), END * is_open))

    def _asked(self) -> list[Sample]:
        answered: Future[list[Sample]] = Future()

        def answer() -> None:
            try:
                epoch_s = time.time() - time.monotonic()
                answered.set_result([*samples_of(self._look(), epoch_s=epoch_s)])
            except Exception as error:  # noqa: BLE001 - metrics end no agent
                answered.set_exception(error)

        self._loop.call_soon_threadsafe(answer)
        return answered.result(ANSWER_S)
