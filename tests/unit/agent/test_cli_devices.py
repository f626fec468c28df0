"""Options of ``agent join`` about GPUs and CPUs."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from drumbeat.agent.runtime import preflight
from drumbeat.agent.settings import cli
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.settings.kinds import NumaMode
from drumbeat.agent.workers.devices.accelerators import has_other_accelerators
from drumbeat.agent.workers.devices.nvml import count_gpus
from tests.support.nvml import FakeGpu, FakeNvml


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A directory with one script, no settings from outside, and logging as it was."""
    for name in list(os.environ):
        if name.startswith("DRUMBEAT_") or name == "CUDA_VISIBLE_DEVICES":
            monkeypatch.delenv(name)
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    yield
    structlog.reset_defaults()


def join(*argv: str) -> AgentConfig | None:
    configs: list[AgentConfig] = []

    def run(config: AgentConfig) -> int:
        configs.append(config)
        return 0

    cli.main(["join", "--standalone", *argv, "train.py"], run=run)
    return configs[0] if configs else None


def test_by_default_workers_are_not_bound_and_see_all_gpus() -> None:
    config = join()
    assert config is not None
    assert (config.numa_binding, config.virtual_local_rank) == (None, False)
    assert config.gpu_memory_wait == 50.0


@pytest.mark.parametrize("mode", NumaMode)
def test_the_modes_are_those_of_torchrun(mode: NumaMode) -> None:
    config = join("--numa-binding", mode.value)
    assert config is not None
    assert config.numa_binding == mode


def test_another_mode_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert join("--numa_binding", "nearby") is None
    error = capsys.readouterr().err
    assert "--numa-binding" in error
    assert "'nearby' is given, allowed is one of node, socket, exclusive, core-complex" in error


def test_the_environment_sets_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMBEAT_GPU_MEMORY_WAIT", "2m")
    monkeypatch.setenv("DRUMBEAT_VIRTUAL_LOCAL_RANK", "1")
    monkeypatch.setenv("DRUMBEAT_NUMA_BINDING", "socket")
    config = join()
    assert config is not None
    assert config.gpu_memory_wait == 120.0
    assert config.virtual_local_rank
    assert config.numa_binding == NumaMode.SOCKET
    config = join("--gpu-memory-wait", "0")
    assert config is not None
    assert config.gpu_memory_wait == 0.0


def test_a_wait_out_of_bounds_breaks_a_rule() -> None:
    config = AgentConfig(run_id="r", program=Program("program", "x"), gpu_memory_wait=-1.0)
    assert [violation.field for violation in config.validate()] == ["gpu_memory_wait"]


@pytest.mark.parametrize("named", ["0,1,2", "0", "GPU-a, GPU-b"])
def test_fewer_named_devices_than_workers_are_refused_where_each_needs_one(
    named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert join("--virtual-local-rank", "--nproc-per-node", "4") is None
    error = capsys.readouterr().err
    assert f"4 workers need a GPU each, but CUDA_VISIBLE_DEVICES is {named!r}" in error
    assert join("--nproc-per-node", "4") is not None


@pytest.mark.parametrize("named", [None, "", "0,1", "5,6,7"])
def test_enough_devices_or_none_are_accepted(
    named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert join("--virtual-local-rank", "--nproc-per-node", "2") is not None


def test_gpu_counts_what_the_driver_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml([FakeGpu(uuid=f"GPU-{i}") for i in range(3)])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    for word in ("gpu", "auto", "GPU"):
        config = join("--nproc-per-node", word)
        assert config is not None
        assert config.nproc_per_node == 3


def test_a_number_of_workers_asks_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml([FakeGpu(uuid="GPU-a")])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    for word in ("2", "cpu"):
        assert join("--nproc-per-node", word) is not None
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
    found = [join("--nproc-per-node", word) for word in ("xpu", "auto")]
    assert [config and config.nproc_per_node for config in found] == [3, auto]


@pytest.mark.usefixtures("_fake_torch")
@pytest.mark.parametrize("word", ["mtia", "nothing"])
def test_a_type_of_which_torch_sees_none_is_named(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert join("--nproc-per-node", word) is None
    told = capsys.readouterr().err
    assert f"--nproc-per-node: '{word}' is given, but torch sees none; allowed here is" in told


def test_without_torch_it_is_told_why_it_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert join("--nproc-per-node", "xpu") is None
    assert "torch cannot be asked: ModuleNotFoundError: No module" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["kfd", "dri/renderD128", "accel/accel0", "davinci0"])
def test_other_accelerators_are_known_by_their_files(tmp_path: Path, file: str) -> None:
    devices = tmp_path / "dev"
    devices.mkdir()
    assert not has_other_accelerators(devices)
    (devices / file).parent.mkdir(exist_ok=True)
    (devices / file).touch()
    assert has_other_accelerators(devices)
