"""Commands of an operator beside a fleet that goes on beating in this process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.harness import ENVIRONMENT, LOOPBACK, STEP_S, BenchmarkError, Scene

RUN = "bench"


async def started(scene: Scene, *arguments: str) -> asyncio.subprocess.Process:
    """Start ``python -m <arguments>`` as the user of this host, with pipes to it."""
    return await asyncio.create_subprocess_exec(
        *scene.way.command(*arguments),
        cwd=scene.way.tree,
        env=ENVIRONMENT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@asynccontextmanager
async def looking(scene: Scene, module: str, *arguments: str) -> AsyncIterator[None]:
    """Have a program look while the context is open, from when it says that it is ready."""
    process = await started(scene, module, *arguments)
    assert process.stdout is not None, "it is a pipe"
    assert process.stderr is not None, "it is a pipe"
    try:
        async with asyncio.timeout(STEP_S):
            if await process.stdout.readline() != b"ready\n":
                raise BenchmarkError((await process.stderr.read()).decode()[-1_500:])
        yield
        if process.returncode is not None:
            raise BenchmarkError(f"{module} ended on the way")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def time_of(scene: Scene, port: int, *verb: str) -> float:
    """Run a verb of ``coordinator`` as a user does; return the seconds that it took.

    Raises:
        BenchmarkError: It failed, with what it said.
    """
    began = time.monotonic()
    at = ("--coordinator", f"{LOOPBACK}:{port}", *scene.way.options)
    process = await started(scene, "coordinator", *verb, *at)
    async with asyncio.timeout(STEP_S):
        _, said = await process.communicate()
    if process.returncode != 0:
        raise BenchmarkError(f"coordinator {' '.join(verb)}: {said.decode()[-500:]}")
    return time.monotonic() - began


class Probed(NamedTuple):
    """A coordinator that knows how long its event loop was held up."""

    process: psutil.Popen
    told: Path

    async def longest_stop_ms(self) -> float:
        """Return the longest since the last time.

        Raises:
            BenchmarkError: The coordinator does not tell it.
        """
        return await asyncio.to_thread(self._longest_stop_ms)

    def _longest_stop_ms(self) -> float:
        self.told.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + STEP_S
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                return float(self.told.read_text())
            time.sleep(0.01)
        raise BenchmarkError("the coordinator does not tell for how long it stopped")


# A fleet of 10,000 that beats from one process takes all of the two cores that it may have at the
# usual pace; with this one it leaves room for what is measured.
SLOW_PACE = ("--heartbeat-interval", "20s", "--lease", "60s")


def probed(scene: Scene, *options: str) -> tuple[Probed, int]:
    """Start our coordinator with a probe; return it and its port."""
    told = scene.directory / "longest-stop"
    ENVIRONMENT["PROBE_FILE"] = str(told)
    process, port = scene.start_coordinator(0, *options, module="bench.programs.probed_coordinator")
    return Probed(process, told), port
