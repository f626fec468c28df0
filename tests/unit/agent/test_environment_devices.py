"""What ``--virtual-local-rank`` changes in a worker's environment."""

import pytest

from agent.core.model import Assignment
from agent.workers.environment import Host, worker_environments

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
FILES = {0: "/e/0", 1: "/e/1"}


def environments(visible_devices: str | None, *, is_virtual: bool) -> list[dict[str, str]]:
    host = Host(
        run_id="r", role="x", local_world_size=2, restarts_max=0, is_local_rank_virtual=is_virtual
    )
    found = worker_environments(host, ASSIGNMENT, FILES, visible_devices=visible_devices)
    return [env for _, env in found]


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
    assert [env["TORCHELASTIC_ERROR_FILE"] for env in found] == ["/e/0", "/e/1"]


def test_else_workers_see_what_the_agent_sees() -> None:
    found = environments("5", is_virtual=False)
    assert [env["LOCAL_RANK"] for env in found] == ["0", "1"]
    assert not any("CUDA_VISIBLE_DEVICES" in env for env in found)
