"""What the GPUs of a host do, as beats tell it."""

import asyncio
from types import SimpleNamespace

import pytest

from drumbeat.agent.workers.devices.gpus import Gpu
from drumbeat.agent.workers.devices.usage import INTERVAL_S, GpuUsage
from drumbeat.model import GpuUse
from tests.support.nvml import GIB, FakeGpu, FakeNvml


class BusyNvml(FakeNvml):
    def nvmlDeviceGetUtilizationRates(self, _handle: FakeGpu) -> SimpleNamespace:  # noqa: N802
        self._enter("nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=75)

    def nvmlDeviceGetPowerUsage(self, _handle: FakeGpu) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetPowerUsage")
        return 350_000


def usage(nvml: BusyNvml) -> GpuUsage:
    gpus = tuple(
        Gpu(
            index=index,
            uuid=gpu.uuid,
            name=gpu.name,
            memory_bytes=gpu.total,
            memory_used_bytes=0,
            pci_address="",
        )
        for index, gpu in enumerate(nvml.gpus)
    )
    return GpuUsage(gpus, nvml)


async def reading(gpus: GpuUsage, *, now: float) -> GpuUse | None:
    """Return what the next beat after a reading tells."""
    assert gpus.news(now=now) is None, "nothing waits for a reading"
    assert gpus._reading is not None
    async with asyncio.timeout(10):
        await asyncio.wait({gpus._reading})
    return gpus.news(now=now)


async def test_a_beat_tells_a_reading_once_and_the_next_is_taken_later() -> None:
    gpus = usage(BusyNvml([FakeGpu(uuid="a", used=7 * GIB), FakeGpu(uuid="b")]))
    use = await reading(gpus, now=100.0)
    assert use == GpuUse(
        utilization=(0.75, 0.75),
        memory_used_bytes=(7 * GIB, 0),
        memory_bytes=(139 * GIB, 139 * GIB),
        power_watts=(350.0, 350.0),
    )
    assert gpus.news(now=100.0 + INTERVAL_S / 2) is None
    assert gpus._reading is None
    assert await reading(gpus, now=100.0 + INTERVAL_S) == use
    gpus.close()


@pytest.mark.parametrize("failing", ["nvmlInit", "nvmlDeviceGetUtilizationRates"])
async def test_a_driver_that_fails_tells_nothing(failing: str) -> None:
    nvml = BusyNvml([FakeGpu(uuid="a")])
    nvml.failing.add(failing)
    gpus = usage(nvml)
    assert await reading(gpus, now=1.0) is None
    nvml.failing.clear()
    assert await reading(gpus, now=1.0 + INTERVAL_S) is not None
    gpus.close()


async def test_power_that_is_not_told_is_none() -> None:
    nvml = BusyNvml([FakeGpu(uuid="a")])
    nvml.failing.add("nvmlDeviceGetPowerUsage")
    gpus = usage(nvml)
    use = await reading(gpus, now=1.0)
    assert use is not None
    assert use.power_watts == (0.0,)
    gpus.close()


async def test_a_host_without_gpus_asks_no_driver() -> None:
    assert GpuUsage((), FakeNvml()).news(now=1.0) is None
