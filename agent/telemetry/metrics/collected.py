"""Shell. All metrics of an agent and its machine, as any thread may ask for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from importlib import metadata

import psutil

from drumbeat.agent.telemetry.facts import Fact, StageEnded
from drumbeat.agent.telemetry.metrics import declared
from drumbeat.agent.telemetry.metrics.declared import METRICS, STAGE, STAGES
from drumbeat.agent.telemetry.metrics.tally import AgentSnapshot, samples_of
from drumbeat.agent.workers.devices.gpus import Gpu
from drumbeat.agent.workers.devices.nvml import load_nvml, read_gpus
from drumbeat.command.exposition import Library
from drumbeat.command.metrics import BUILD, END, Metric, Sample, written


def all_gpus() -> Sequence[Gpu]:
    """Ask the driver; blocks for as long as that takes."""
    nvml = load_nvml()
    return () if nvml is None else read_gpus(nvml)


class Host:
    """Reads CPUs, memory and GPUs of the machine. GPUs are those that were known at the start.

    A driver may take seconds, or hang for good, so it is asked by a thread, for the scrape to
    come; while it does not answer it is asked nothing else.
    """

    def __init__(self, gpus: Sequence[Gpu], read: Callable[[], Sequence[Gpu]] = all_gpus) -> None:
        self._indices, self._read = frozenset(gpu.index for gpu in gpus), read
        self._gpus = tuple(gpus)
        self._asking: threading.Thread | None = None

    def samples(self) -> Iterator[Sample]:
        """Yield what there is to tell."""
        gpus = self._gpus
        if self._indices and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._ask, name="metrics-gpus", daemon=True)
            self._asking.start()
        times = psutil.cpu_times()
        times_s = {mode: getattr(times, mode, 0.0) for mode in declared.CPU_MODES[:-1]}
        # Time of guests is within that of users.
        counted = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        times_s["other"] = max(0.0, counted - sum(times_s.values()))
        for mode, spent_s in times_s.items():
            yield declared.CPU, (mode,), round(spent_s, 2)
        memory = psutil.virtual_memory()
        yield declared.MEMORY, (), float(memory.total)
        yield declared.MEMORY_AVAILABLE, (), float(memory.available)
        for gpu in gpus:
            yield declared.GPU_MEMORY, (str(gpu.index),), float(gpu.memory_bytes)
            yield declared.GPU_MEMORY_USED, (str(gpu.index),), float(gpu.memory_used_bytes)

    def _ask(self) -> None:
        gpus = tuple(gpu for gpu in self._read() if gpu.index in self._indices)
        self._gpus = gpus or self._gpus


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
