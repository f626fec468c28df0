"""Shell. Waits until dead workers' GPU memory is free, so that the next ones find room.

A process is gone for the kernel before its driver has given all memory back; a
worker that starts in between can fail with "out of memory".
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from agent.devices.background import run_in_background
from agent.devices.gpus import Nvml, memory_readings
from agent.devices.model import Gpu
from drumbeat.durations import format_duration

TOLERANCE_BYTES = 512 * 1024**2
"""What may be left of dead workers: a driver's own bookkeeping; NVRx's value."""

LOOK_AGAIN_S = 0.2
"""Between two looks: short beside the seconds that a worker's start takes."""

_MIB = 1024**2


class GpuMemoryWaiter:
    """Compares what GPUs hold now with what they held before the first worker.

    So it does not wait for what others keep there. One wait at a time.

    Args:
        nvml: The driver's module.
        gpus: Those whose memory counts, looked at before the first worker started.
        look_again_s: Seconds between two looks at the driver.
    """

    def __init__(
        self, nvml: Nvml, gpus: Sequence[Gpu], *, look_again_s: float = LOOK_AGAIN_S
    ) -> None:
        self._nvml = nvml
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._before = {gpu.uuid: gpu.memory_used_bytes for gpu in gpus}
        self._look_again_s = look_again_s
        self._seen: dict[str, int] | None = None

    async def wait(self, timeout_s: float) -> str:
        """Return when the memory is free, or with a note on what is not after ``timeout_s``."""
        end = threading.Event()
        self._seen = None
        try:
            async with asyncio.timeout(timeout_s):
                await run_in_background(lambda: self._watch(end), fallback=None, name="gpu-memory")
        except TimeoutError:
            return self._give_up(timeout_s)
        finally:
            end.set()
        return ""

    def _watch(self, end: threading.Event) -> None:
        """Look until the memory is free or nobody waits any more; blocks."""
        with memory_readings(self._nvml, self._gpus) as readings:
            for used in readings:
                self._seen = used
                # The driver tells nobody when memory becomes free, so this has to ask, again and
                # again: the one loop of that kind here, and only between two rounds on a GPU.
                if not self._excess(used) or end.wait(self._look_again_s):
                    return

    def _excess(self, used: dict[str, int]) -> dict[str, int]:
        """Return the bytes above what was there before, of GPUs that are not free."""
        more = {uuid: held - self._before[uuid] for uuid, held in used.items()}
        return {uuid: excess for uuid, excess in more.items() if excess > TOLERANCE_BYTES}

    def _give_up(self, timeout_s: float) -> str:
        seen, waited = self._seen, format_duration(timeout_s)
        if seen is None:
            return f"the GPU driver did not answer within {waited}"
        excess = self._excess(seen)
        # Whoever holds it is not one of ours; the next round shall not wait for it again.
        self._before.update({uuid: seen[uuid] for uuid in excess})
        held = ", ".join(
            f"GPU {self._gpus[uuid].index} holds {excess[uuid] // _MIB} MiB more" for uuid in excess
        )
        return f"{held} than before the first round, even after {waited}" if held else ""
