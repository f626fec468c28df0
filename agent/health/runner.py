"""Shell. Runs the health checks of a host: ours at once, then the commands of the user in order."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drumbeat.access.redactor import Redactor
from drumbeat.agent.core.effects import ChecksEffect, RunChecks
from drumbeat.agent.core.events import ChecksEnded, Event
from drumbeat.agent.health.command import run_command
from drumbeat.agent.health.probes import (
    SHARED_MEMORY,
    DiskProbe,
    GpuProbe,
    MemoryProbe,
    NicProbe,
    Probe,
)
from drumbeat.agent.host.file_thread import FilesStalled, FileThread
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.settings.kinds import health_path
from drumbeat.agent.workers.devices.gpus import Gpu
from drumbeat.agent.workers.devices.nvml import load_nvml
from drumbeat.text.format import one_line

PROBE_TIMEOUT_S = 10.0
PROBLEM_CHARACTERS_MAX = 300  # of all that is wrong, together

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


def probes_of(config: AgentConfig, gpus: Sequence[Gpu]) -> Iterator[Probe]:
    """Yield the probes that a configuration asks for and this host has something for."""
    names = config.health_checks
    if "gpu" in names and gpus and (nvml := load_nvml()) is not None:
        yield GpuProbe(nvml, gpus)
    if "nic" in names:
        yield NicProbe()
    if "disk" in names:
        paths: dict[str, int | None] = {tempfile.gettempdir(): None}
        if config.log_dir is not None:
            paths[config.log_dir] = None
        paths |= map(health_path, config.health_path)
        yield from (DiskProbe(Path(path), least) for path, least in paths.items())
        if SHARED_MEMORY.exists():
            yield DiskProbe(SHARED_MEMORY, writes=False)
    if "memory" in names:
        yield MemoryProbe()


class HealthRunner:
    """Carries out what the core wants of the checks. ``submit`` takes the answers.

    Each probe has one thread for as long as the agent lives: one that hangs is not asked again.
    """

    def __init__(
        self, config: AgentConfig, probes: Iterable[Probe], submit: Callable[[Event], None]
    ) -> None:
        self._probes = [(probe, FileThread("health")) for probe in probes]
        self._commands, self._timeout_s = config.health_check, config.health_check_timeout
        self._submit = submit
        self._task: asyncio.Task[None] | None = None

    @property
    def has_checks(self) -> bool:
        """Whether there is anything to check."""
        return bool(self._probes or self._commands)

    def execute(self, effect: ChecksEffect, environment: Mapping[str, str], spawn: Spawn) -> None:
        """Run the checks, or end those that run. Commands get the ``environment``."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if isinstance(effect, RunChecks):
            self._task = spawn(self._run(effect.number, environment))

    def close(self) -> None:
        """End the threads that do not hang."""
        for _, thread in self._probes:
            thread.close()

    async def _run(self, number: int, environment: Mapping[str, str]) -> None:
        looks = [self._look(probe, thread) for probe, thread in self._probes]
        problems = await asyncio.gather(*looks)
        problem = "; ".join(filter(None, problems))
        for command in self._commands:
            problem = problem or await run_command(command, environment, self._timeout_s)
        shown = Redactor(environment, os.path.exists)(problem)
        self._submit(ChecksEnded(number=number, problem=one_line(shown, PROBLEM_CHARACTERS_MAX)))

    async def _look(self, probe: Probe, thread: FileThread) -> str:
        if thread.is_stalled:
            return f"{probe.title}: still no answer"
        try:
            problem = await thread.run(probe.look, timeout_s=PROBE_TIMEOUT_S)
        except FilesStalled:
            return f"{probe.title}: no answer within {PROBE_TIMEOUT_S:g} s"
        except OSError as error:
            problem = error.strerror or str(error)
        return f"{probe.title}: {problem}" if problem else ""
