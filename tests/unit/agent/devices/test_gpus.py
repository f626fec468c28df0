"""What is asked of the driver, and what becomes of its failures."""

import sys
import warnings
from pathlib import Path

import pytest

from drumbeat.agent.workers.devices.gpus import Gpu
from drumbeat.agent.workers.devices.nvml import count_gpus, load_nvml, read_gpus
from tests.support.nvml import GIB, FakeGpu, FakeNvml


def two_gpus() -> FakeNvml:
    return FakeNvml(
        [
            FakeGpu(uuid="GPU-a", used=3 * GIB),
            FakeGpu(uuid="GPU-b", name="Other", total=GIB, bus_id="00000001:DC:00.0"),
        ]
    )


def test_the_inventory_tells_what_the_driver_does() -> None:
    nvml = two_gpus()
    assert read_gpus(nvml) == (
        Gpu(
            index=0,
            uuid="GPU-a",
            name="Fake H200",
            memory_bytes=139 * GIB,
            memory_used_bytes=3 * GIB,
            pci_address="0000:3b:00.0",
        ),
        Gpu(
            index=1,
            uuid="GPU-b",
            name="Other",
            memory_bytes=GIB,
            memory_used_bytes=0,
            pci_address="0001:dc:00.0",
        ),
    )
    assert nvml.users == 0


@pytest.mark.parametrize(
    "call",
    [
        "nvmlInit",
        "nvmlDeviceGetCount",
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetName",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetPciInfo",
    ],
)
def test_a_driver_that_fails_has_no_gpus(call: str) -> None:
    nvml = two_gpus()
    nvml.failing.add(call)
    assert read_gpus(nvml) == ()
    assert nvml.users == 0


def test_a_driver_that_does_not_shut_down_has_told_all() -> None:
    nvml = two_gpus()
    nvml.failing.add("nvmlShutdown")
    assert len(read_gpus(nvml)) == 2


def test_without_the_module_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert load_nvml() is None


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    nvml = two_gpus()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_gpus_are_counted_by_the_driver(installed: FakeNvml, tmp_path: Path) -> None:
    """A job may be denied devices whose files it sees."""
    for name in ("nvidia0", "nvidia1", "nvidia2"):
        (tmp_path / name).touch()
    assert count_gpus(None, device_dir=tmp_path) == 2
    assert count_gpus("GPU-b", device_dir=tmp_path) == 1
    installed.failing.add("nvmlInit")
    assert count_gpus(None, device_dir=tmp_path) == 3


def test_slices_of_gpus_are_counted_by_their_names(installed: FakeNvml, tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    assert count_gpus("MIG-1,MIG-2,MIG-3", device_dir=tmp_path) == 3
    assert installed.users == 0


def test_a_package_that_warns_of_itself_troubles_no_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text(
        "import warnings\nwarnings.warn('deprecated', FutureWarning)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert load_nvml() is not None
    del sys.modules["pynvml"]  # by hand: what is undone would come back
    assert caught == []
