"""Shell. Waits until dead workers' GPU memory is free, so that the next ones find room.

A process is gone for the kernel before its driver has given all memory back; a
worker that starts in between can fail with "out of memory".
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

from agent.workers.devices.background import run_in_background
from agent.workers.devices.gpus import Nvml, memory_readings
from agent.workers.devices.model import Gpu
from drumbeat.durations import format_duration

TOLERANCE_BYTES = 512 * 1024**2
"""What may be left of dead workers: a driver's own bookkeeping; NVRx's value."""

LOOK_AGAIN_S = 0.2
"""Between two looks: short beside the seconds that a worker's start takes."""

ANSWER_TIMEOUT_S = 10.0
"""What the driver may take to answer at all, on top of a wait; a broken GPU hangs it for good."""

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

    async def wait(self, timeout_s: float) -> str:
        """Return when the memory is free, or with a note on what is not after ``timeout_s``."""
        end = threading.Event()
        try:
            async with asyncio.timeout(timeout_s + ANSWER_TIMEOUT_S):
                used = await run_in_background(
                    lambda: self._watch(timeout_s, end),
                    fallback=dict[str, int](),
                    name="gpu-memory",
                )
        except TimeoutError:
            limit = format_duration(timeout_s + ANSWER_TIMEOUT_S)
            return f"the GPU driver did not answer within {limit}"
        finally:
            end.set()
        return self._take_note(used, timeout_s)

    def _watch(self, timeout_s: float, end: threading.Event) -> dict[str, int]:
        """Look until the memory is free, the time over or ``end`` set; return what was seen last.

        Blocks; looks once at least.
        """
        deadline = time.monotonic() + timeout_s
        with memory_readings(self._nvml, self._gpus) as readings:
            while True:
                used = next(readings)
                left_s = deadline - time.monotonic()
                # The driver tells nobody when memory becomes free, so this has to ask, again and
                # again: the one loop of that kind here, and only between two rounds on a GPU.
                if (
                    not self._excess(used)
                    or left_s <= 0
                    or end.wait(min(self._look_again_s, left_s))
                ):
                    return used

    def _excess(self, used: dict[str, int]) -> dict[str, int]:
        """Return the bytes above what was there before, of GPUs that are not free."""
        more = {uuid: held - self._before[uuid] for uuid, held in used.items()}
        return {uuid: excess for uuid, excess in more.items() if excess > TOLERANCE_BYTES}

    def _take_note(self, used: dict[str, int], timeout_s: float) -> str:
        excess = self._excess(used)
        # Whoever holds it is not one of ours; the next round shall not wait for it again.
        self._before.update({uuid: used[uuid] for uuid in excess})
        held = ", ".join(
            f"GPU {self._gpus[uuid].index} holds {more // _MIB} MiB more"
            for uuid, more in excess.items()
        )
        waited = format_duration(timeout_s)
        return f"{held} than before the first round, even after {waited}" if held else ""
