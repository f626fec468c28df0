"""The environment of a worker: the contract that unmodified scripts rely on."""

from dataclasses import replace

import pytest

from drumbeat.agent.host.environment import inherited_environment
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.workers.manager import (
    OWN_VARIABLES,
    common_environment,
    group_environment,
    worker_environments,
)
from tests.support.agents import an_assignment

CONFIG = AgentConfig(
    run_id="job",
    role="trainer",
    nproc_per_node=2,
    max_restarts=3,
    program=Program("script", "train.py"),
)
ASSIGNMENT = an_assignment(7, restart_count=1, role_rank_first=0, role_world_size=2)


def test_what_workers_are_told_of_a_round() -> None:
    common = {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "trainer",
        "ROLE_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "DRUMBEAT_RUN_ID": "job",
        "DRUMBEAT_ROUND": "7",
    }
    assert worker_environments(CONFIG, ASSIGNMENT) == {
        0: {**common, "LOCAL_RANK": "0", "RANK": "2", "ROLE_RANK": "0"},
        1: {**common, "LOCAL_RANK": "1", "RANK": "3", "ROLE_RANK": "1"},
    }


def test_workers_of_a_replica_group_are_told_which_it_is() -> None:
    config = replace(CONFIG, coordinator="head:1", run_id="ft", replica_group=(1, 4))
    told = {"REPLICA_GROUP_ID": "1", "NUM_REPLICA_GROUPS": "4"}
    assert group_environment(config.group) == told
    assert group_environment(CONFIG.group) == {}
    # Read when a module is imported, they are the same in every round.
    assert not told.keys() & set(OWN_VARIABLES)


def test_what_the_user_has_set_stays() -> None:
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1"}
    assert common_environment({"PATH": "/bin"}, 2) == {"PATH": "/bin", **defaults}
    base = {"OMP_NUM_THREADS": "8", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    assert common_environment(base, 2) == base


@pytest.mark.parametrize(
    ("base", "workers", "threads"),
    [({}, 2, "1"), ({}, 1, None), ({"OMP_NUM_THREADS": ""}, 2, "")],
)
def test_threads_are_limited_where_workers_share_cores(
    base: dict[str, str], workers: int, threads: str | None
) -> None:
    assert common_environment(base, workers).get("OMP_NUM_THREADS") == threads


def test_the_agents_own_options_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"DRUMBEAT_COORDINATOR": "h:1", "DRUMBEATS": "x", "A": "b"}
    monkeypatch.setattr("os.environ", given)
    assert inherited_environment() == {"DRUMBEATS": "x", "A": "b"}


def test_every_variable_of_a_worker_is_known_to_preloading_as_its_own() -> None:
    """Else a module that reads one makes a first round cold before it is left out."""
    [names, *others] = map(set, worker_environments(CONFIG, ASSIGNMENT).values())
    assert others == [names]
    assert names < set(OWN_VARIABLES)
