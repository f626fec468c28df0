"""What CUDA_VISIBLE_DEVICES makes visible."""

import pytest

from drumbeat.agent.workers.devices.gpus import Gpu, device_of, visible

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")
GPUS = tuple(
    Gpu(index=i, uuid=uuid, name="G", memory_bytes=1, memory_used_bytes=0, pci_address="")
    for i, uuid in enumerate(UUIDS)
)


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("  ", []),
        ("2,0", [2, 0]),
        (" 3 , 1 ", [3, 1]),
        ("0,4,1", [0]),
        ("0,-1,1", [0]),
        ("0,,1", [0]),
        ("GPU-bb33,0", [2, 0]),
        ("gpu-BB", [2]),
        ("GPU-aa,1", []),  # two begin like that
        ("GPU-ff", []),
        ("NoDevFiles", []),
        ("MIG-1234", []),
        ("0,MIG-GPU-aa11/1/0", []),
    ],
)
def test_gpus_are_those_that_cuda_would_show(setting: str | None, indices: list[int]) -> None:
    assert [gpu.index for gpu in visible(GPUS, setting)] == indices


@pytest.mark.parametrize(
    ("setting", "devices"),
    [
        (None, ["0", "1"]),
        ("3,2", ["3", "2"]),
        (" GPU-bb , MIG-1 ", ["GPU-bb", "MIG-1"]),
        ("", ["", ""]),
    ],
)
def test_each_worker_gets_its_own_device(setting: str | None, devices: list[str]) -> None:
    assert [device_of(rank, setting) for rank in range(2)] == devices
