"""Options of ``agent join`` about GPUs and CPUs."""

import os
import sys
from pathlib import Path

import pytest

from drumbeat.agent.runtime import preflight
from drumbeat.agent.workers.devices.accelerators import has_other_accelerators
from drumbeat.agent.workers.devices.nvml import count_gpus
from tests.support.command_line import join, refused
from tests.support.nvml import FakeGpu, FakeNvml


@pytest.mark.parametrize("named", ["0,1,2", "0", "GPU-a, GPU-b"])
def test_fewer_named_devices_than_workers_are_refused_where_each_needs_one(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    error = refused("--virtual-local-rank", "--nproc-per-node", "4")
    assert f"4 workers need a GPU each, but CUDA_VISIBLE_DEVICES is {named!r}" in error
    assert join("--nproc-per-node", "4").nproc_per_node == 4


@pytest.mark.parametrize("named", [None, "", "0,1", "5,6,7"])
def test_enough_devices_or_none_are_accepted(
    named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert join("--virtual-local-rank", "--nproc-per-node", "2").virtual_local_rank


def test_gpu_counts_what_the_driver_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml([FakeGpu(uuid=f"GPU-{i}") for i in range(3)])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    for word in ("gpu", "auto", "GPU"):
        assert join("--nproc-per-node", word).nproc_per_node == 3


def test_an_empty_list_hides_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cores = len(os.sched_getaffinity(0))
    assert [join("--nproc-per-node", word).nproc_per_node for word in ("auto", "cpu")] == [
        cores
    ] * 2
    assert "sees no GPU" in refused("--nproc-per-node", "gpu")


def test_a_number_of_workers_asks_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml([FakeGpu(uuid="GPU-a")])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    for word in ("2", "cpu"):
        assert join("--nproc-per-node", word).nproc_per_node > 0
    assert nvml.looks == 0
    assert count_gpus(None) == 1
    assert nvml.looks == 1


FAKE_TORCH = """
class Device:
    def __init__(self, number):
        self.number = number

    def is_available(self):
        return self.number > 0

    def device_count(self):
        return self.number


accelerator, xpu, cuda, mtia = Device(5), Device(3), Device(0), Device(0)
"""


@pytest.fixture
def _fake_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A torch that sees three devices of Intel, on a host without NVIDIA's driver."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "torch.py").write_text(FAKE_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    monkeypatch.setattr(preflight, "count_gpus", lambda _: 0)


@pytest.mark.usefixtures("_fake_torch")
@pytest.mark.parametrize(("has_files", "auto"), [(True, 5), (False, len(os.sched_getaffinity(0)))])
def test_devices_of_other_types_are_those_that_torch_sees(
    monkeypatch: pytest.MonkeyPatch, *, has_files: bool, auto: int
) -> None:
    monkeypatch.setattr(preflight, "has_other_accelerators", lambda: has_files)
    found = [join("--nproc-per-node", word).nproc_per_node for word in ("xpu", "auto")]
    assert found == [3, auto]


@pytest.mark.usefixtures("_fake_torch")
@pytest.mark.parametrize("word", ["mtia", "nothing"])
def test_a_type_of_which_torch_sees_none_is_named(
    word: str,
) -> None:
    said = refused("--nproc-per-node", word)
    assert f"--nproc-per-node: '{word}' is given, but torch sees none; allowed here is" in said


def test_without_torch_it_is_told_why_it_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = refused("--nproc-per-node", "xpu")
    assert "torch cannot be asked: ModuleNotFoundError: No module" in said


@pytest.mark.parametrize("file", ["kfd", "dri/renderD128", "accel/accel0", "davinci0"])
def test_other_accelerators_are_known_by_their_files(tmp_path: Path, file: str) -> None:
    devices = tmp_path / "dev"
    devices.mkdir()
    assert not has_other_accelerators(devices)
    (devices / file).parent.mkdir(exist_ok=True)
    (devices / file).touch()
    assert has_other_accelerators(devices)
