"""What ``--virtual-local-rank`` changes in a worker's environment."""

import pytest

from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.workers.manager import worker_environments
from drumbeat.model import Assignment

ASSIGNMENT = Assignment(
    round_id=0,
    restart_count=0,
    group_rank=1,
    group_world_size=2,
    rank_first=2,
    world_size=4,
    role_rank_first=2,
    role_world_size=4,
    master_addr="h",
    master_port=1,
    reason="",
)


def environments(visible_devices: str | None, *, is_virtual: bool) -> list[dict[str, str]]:
    config = AgentConfig(
        run_id="r",
        nproc_per_node=2,
        virtual_local_rank=is_virtual,
        program=Program("script", "train.py"),
    )
    return list(worker_environments(config, ASSIGNMENT, visible_devices).values())


@pytest.mark.parametrize(
    ("visible_devices", "devices"),
    [
        (None, ["0", "1"]),
        ("5, 3,1", ["5", "3"]),
        ("", ["", ""]),
    ],
)
def test_a_virtual_local_rank_is_zero_on_a_device_of_its_own(
    visible_devices: str | None, devices: list[str]
) -> None:
    found = environments(visible_devices, is_virtual=True)
    assert [env["CUDA_VISIBLE_DEVICES"] for env in found] == devices
    assert [env["LOCAL_RANK"] for env in found] == ["0", "0"]
    assert [env["RANK"] for env in found] == ["2", "3"]


def test_else_workers_see_what_the_agent_sees() -> None:
    found = environments("5", is_virtual=False)
    assert [env["LOCAL_RANK"] for env in found] == ["0", "1"]
    assert not any("CUDA_VISIBLE_DEVICES" in env for env in found)
