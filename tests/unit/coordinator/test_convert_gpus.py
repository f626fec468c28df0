"""What the coordinator takes of an agent's GPUs: words for people, within bounds."""

import pytest
from msgspec.structs import replace

from drumbeat.agent.session.convert import GPU
from drumbeat.agent.workers.devices.gpus import Gpu
from drumbeat.coordinator.errors import InvalidRequest
from drumbeat.coordinator.wire.failure import NAME_CHARACTERS_MAX
from drumbeat.coordinator.wire.session import GPUS_MAX, gpu_summary, session_opened
from drumbeat.v1 import common_pb2, session_pb2


def a_gpu(index: int, name: str = "NVIDIA H200") -> Gpu:
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        name=name,
        memory_bytes=1 << 37,
        memory_used_bytes=5,
        pci_address="0000:3b:00.0",
    )


def a_hello(*gpus: session_pb2.GpuInfo) -> session_pb2.AgentReport:
    spec = common_pb2.RunSpec(agents_min=1, agents_max=1)
    for name in ("join_timeout", "last_call", "shutdown_timeout", "coordinator_grace"):
        getattr(spec, name).FromSeconds(10)
    return session_pb2.AgentReport(
        fence=common_pb2.Fence(run_id="r", incarnation="i"),
        hello=session_pb2.Hello(
            run=session_pb2.RunPurpose(run_id="r", spec=spec),
            host="h",
            address="a",
            role="x",
            local_world_size=1,
            beat=session_pb2.Beat(state=session_pb2.GROUP_STATE_IDLE),
            gpus=gpus,
        ),
    )


def test_a_gpu_is_told_as_it_is() -> None:
    assert GPU.write(a_gpu(3)) == session_pb2.GpuInfo(
        index=3, uuid="GPU-3", name="NVIDIA H200", memory_bytes=1 << 37
    )


def test_the_core_is_told_of_gpus_in_short_and_for_readers_only() -> None:
    plain = session_opened(a_hello(), session_id="s")
    gpus = [GPU.write(a_gpu(index)) for index in range(8)]
    opened = session_opened(a_hello(*gpus), session_id="s")
    assert opened == replace(plain, devices="8 NVIDIA H200")
    odd = [GPU.write(a_gpu(index, f"{index}" * 200)) for index in range(8)]
    assert len(session_opened(a_hello(*odd), session_id="s").devices) <= NAME_CHARACTERS_MAX


def test_gpus_are_summed_up_for_people() -> None:
    gpus = [GPU.write(a_gpu(i, "A" if i else "B\x1b[31m\n")) for i in range(3)]
    assert gpu_summary(a_hello(*gpus)) == "1 B[31m, 2 A"
    assert gpu_summary(a_hello()) == ""


def test_more_gpus_than_any_host_has_are_refused() -> None:
    gpus = [session_pb2.GpuInfo(index=index) for index in range(GPUS_MAX + 1)]
    session_opened(a_hello(*gpus[:-1]), session_id="s")
    with pytest.raises(InvalidRequest, match=r"hello\.gpus"):
        session_opened(a_hello(*gpus), session_id="s")
