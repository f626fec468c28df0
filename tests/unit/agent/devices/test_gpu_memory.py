"""Waiting for GPU memory, with a driver that frees it when told to."""

import asyncio
import sys
import threading
from collections.abc import Iterator

import pytest
import structlog

from drumbeat.agent.workers.devices.host import HostDevices, find_devices
from drumbeat.agent.workers.devices.nvml import TOLERANCE_BYTES, read_gpus
from tests.support.nvml import GIB, FakeGpu, FakeNvml

LONG_S = 60.0
"""Never waited for but by a failing test."""

SOON_S = 0.05


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two GPUs; another program uses one of them."""
    made = FakeNvml([FakeGpu(uuid="GPU-a", used=7 * GIB), FakeGpu(uuid="GPU-b")])
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


@pytest.fixture(autouse=True)
def _no_thread_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """They are daemons, which the general check lets pass."""
    monkeypatch.setattr("drumbeat.agent.workers.devices.nvml.LOOK_AGAIN_S", 0.005)
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("gpu-"):
            thread.join(LONG_S)
            assert not thread.is_alive()


def waiter_of(nvml: FakeNvml) -> HostDevices:
    return HostDevices(read_gpus(nvml), nvml=nvml)


async def test_free_memory_is_not_waited_for(nvml: FakeNvml) -> None:
    """What was there before, and a little more, counts as free."""
    waiter = waiter_of(nvml)
    nvml.looks = 0
    nvml.gpus[1].used = TOLERANCE_BYTES
    assert await waiter.wait_for_memory(LONG_S) == ""
    assert nvml.looks == 2


async def test_the_wait_ends_when_the_memory_is_free(nvml: FakeNvml) -> None:
    waiter = waiter_of(nvml)
    nvml.gpus[1].used = 10 * GIB
    nvml.on_look.clear()
    waiting = asyncio.create_task(waiter.wait_for_memory(LONG_S))
    assert await asyncio.to_thread(nvml.on_look.wait, LONG_S)
    assert not waiting.done()
    nvml.gpus[1].used = 0
    assert await waiting == ""


async def test_the_wait_is_bounded_and_says_what_is_held(nvml: FakeNvml) -> None:
    waiter = waiter_of(nvml)
    nvml.gpus[1].used = 10 * GIB
    assert await waiter.wait_for_memory(SOON_S) == (
        "GPU 1 holds 10240 MiB more than before the first round, even after 50 ms"
    )


async def test_what_was_waited_for_in_vain_is_not_waited_for_again(nvml: FakeNvml) -> None:
    waiter = waiter_of(nvml)
    nvml.gpus[1].used = 10 * GIB
    assert await waiter.wait_for_memory(SOON_S)
    assert await waiter.wait_for_memory(LONG_S) == ""


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
async def test_a_driver_that_fails_is_not_waited_for(nvml: FakeNvml, call: str) -> None:
    waiter = waiter_of(nvml)
    nvml.gpus[1].used = 10 * GIB
    nvml.failing.add(call)
    assert await waiter.wait_for_memory(LONG_S) == ""


async def test_a_gpu_that_does_not_answer_is_left_out(nvml: FakeNvml) -> None:
    waiter = waiter_of(nvml)
    nvml.gpus[1].used = 10 * GIB
    del nvml.gpus[0]  # it fell off the bus
    assert "GPU 1 holds" in await waiter.wait_for_memory(SOON_S)


async def test_a_driver_that_hangs_is_left_alone(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drumbeat.agent.workers.devices.host.DRIVER_TIMEOUT_S", SOON_S)
    waiter = waiter_of(nvml)
    nvml.gate = threading.Event()
    try:
        assert await waiter.wait_for_memory(SOON_S) == "the GPU driver did not answer within 100 ms"
    finally:
        nvml.gate.set()


async def test_a_wait_that_is_given_up_ends_its_watch(nvml: FakeNvml) -> None:
    waiter = waiter_of(nvml)
    nvml.gpus[1].used = 10 * GIB
    nvml.on_look.clear()
    waiting = asyncio.create_task(waiter.wait_for_memory(LONG_S))
    assert await asyncio.to_thread(nvml.on_look.wait, LONG_S)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting  # the fixture checks the thread


async def test_devices_are_those_that_workers_see(nvml: FakeNvml) -> None:
    devices = await find_devices("1", numa_mode=None, is_memory_awaited=True)
    assert [gpu.uuid for gpu in devices.gpus] == ["GPU-b"]
    assert devices.is_memory_awaited
    nvml.gpus[0].used = 100 * GIB  # not ours
    assert await devices.wait_for_memory(LONG_S) == ""


@pytest.mark.usefixtures("nvml")
async def test_without_gpus_or_when_told_so_nothing_is_waited_for() -> None:
    told = await find_devices(None, numa_mode=None, is_memory_awaited=False)
    assert (len(told.gpus), told.is_memory_awaited) == (2, False)
    none = await find_devices("", numa_mode=None, is_memory_awaited=True)
    assert (none.gpus, none.is_memory_awaited) == ((), False)


async def test_a_driver_that_hangs_at_the_start_counts_as_none(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drumbeat.agent.workers.devices.host.DRIVER_TIMEOUT_S", SOON_S)
    monkeypatch.setattr("drumbeat.agent.workers.devices.host.DRIVER_TOLD_AFTER_S", 0.0)
    nvml.gate = threading.Event()
    try:
        with structlog.testing.capture_logs() as said:
            devices = await find_devices(None, numa_mode=None, is_memory_awaited=True)
        assert (devices.gpus, devices.is_memory_awaited) == ((), False)
        assert [line["event"] for line in said] == ["waiting", "GPUs not found"]
    finally:
        nvml.gate.set()
