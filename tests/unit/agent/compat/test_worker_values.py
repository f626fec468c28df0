"""Workers as training code thinks of them."""

import functools
from typing import Any

import pytest

from drumbeat.agent.compat.worker_values import (
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
    worker_group,
    worker_spec,
)
from drumbeat.agent.errors import InvalidConfiguration
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.model import Assignment


def train() -> None:
    """Stands for a training function."""


def spec(**fields: Any) -> WorkerSpec:
    given: dict[str, Any] = {"role": "trainer", "local_world_size": 2, "entrypoint": "a/train.py"}
    return WorkerSpec(**(given | fields))


def config(**fields: Any) -> AgentConfig:
    given: dict[str, Any] = {
        "coordinator": "head:1",
        "run_id": "r",
        "program": Program("script", "a/train.py", ("--epochs", "3")),
    }
    return AgentConfig(**(given | fields))


def test_a_spec_has_the_defaults_of_the_original() -> None:
    made = spec()
    assert (made.args, made.max_restarts, made.monitor_interval) == ((), 3, 30.0)
    assert (made.master_port, made.master_addr, made.local_addr) == (None, None, None)


@pytest.mark.parametrize(
    ("entrypoint", "name"),
    [
        ("a/train.py", "train.py"),
        ("train.py", "train.py"),
        ("trainer.main", "trainer.main"),
        (train, "train"),
        (functools.partial(train), "partial"),
    ],
)
def test_the_name_of_an_entrypoint(entrypoint: Any, name: str) -> None:
    assert spec(entrypoint=entrypoint).get_entrypoint_name() == name


def test_fn_is_the_older_name_of_entrypoint() -> None:
    made = spec(entrypoint=None, fn=train)
    assert made.entrypoint is train
    assert made.get_entrypoint_name() == "train"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"role": ""}, "role"),
        ({"local_world_size": 0}, "local_world_size"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"monitor_interval": 0}, "monitor_interval"),
        ({"monitor_interval": float("nan")}, "monitor_interval"),
        ({"master_port": 65536}, "master_port"),
        ({"entrypoint": None}, "entrypoint"),
        ({"entrypoint": ""}, "entrypoint"),
        ({"fn": train}, "fn"),
    ],
)
def test_an_impossible_spec_names_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        spec(**fields)
    assert [violation.field for violation in caught.value.violations] == [field]


def test_all_that_is_impossible_is_named_at_once() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        spec(role="", local_world_size=0)
    assert len(caught.value.violations) == 2


def test_a_group_has_as_many_workers_as_its_spec_says_before_there_are_ranks() -> None:
    group = WorkerGroup(spec())
    assert group.workers == (Worker(0), Worker(1))
    assert group.workers[0].global_rank == -1
    assert (group.group_rank, group.group_world_size, group.state) == (None, None, WorkerState.INIT)


def test_a_result_is_failed_only_in_that_state() -> None:
    assert [state for state in WorkerState if RunResult(state).is_failed()] == [WorkerState.FAILED]


@pytest.mark.parametrize(
    ("program", "args"),
    [
        (Program("script", "a/t.py", ("-x",)), ("-x",)),
        (Program("module", "a.b", ("-u",)), ("-u",)),
        (Program("program", "/bin/prog", ("1",)), ("1",)),
        (Program("function", "train", ("worker.py",)), ()),
    ],
)
def test_the_spec_of_an_agents_workers(program: Program, args: tuple[str, ...]) -> None:
    made = worker_spec(config(program=program, role="x", max_restarts=7, nproc_per_node=4))
    assert (made.entrypoint, made.args) == (program.target, args)
    assert (made.role, made.max_restarts, made.local_world_size) == ("x", 7, 4)
    assert (made.master_addr, made.master_port) == (None, None)


def test_a_group_is_seated_as_its_assignment_says() -> None:
    assignment = Assignment(
        round_id=3,
        restart_count=1,
        group_rank=2,
        group_world_size=5,
        rank_first=16,
        world_size=40,
        role_rank_first=8,
        role_world_size=20,
        master_addr="m",
        master_port=1,
        reason="",
    )
    group = worker_group(config(nproc_per_node=2), assignment)
    assert group.workers == (Worker(0, 16, 8, 40, 20), Worker(1, 17, 9, 40, 20))
    assert (group.group_rank, group.group_world_size) == (2, 5)
