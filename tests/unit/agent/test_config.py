"""The agent's configuration and the rules that tie it together."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.settings.kinds import NNODES, SIGNALS_ALLOWED, WORKERS


def config_with(**changes: Any) -> AgentConfig:
    base: dict[str, Any] = {
        "coordinator": "head:29400",
        "run_id": "r1",
        "program": Program("script", "train.py"),
    }
    return AgentConfig(**{**base, **changes})


def fields_of(**changes: Any) -> list[str]:
    return [violation.field for violation in config_with(**changes).validate()]


def test_the_least_configuration_is_sound() -> None:
    assert fields_of() == []
    assert fields_of(coordinator=None) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"coordinator": ""}, "coordinator"),
        ({"coordinator": None, "max_nodes": 2}, "max_nodes"),
        ({"run_id": ""}, "run_id"),
        ({"run_id": "a/b"}, "run_id"),
        ({"metrics_port": "x"}, "metrics_port"),
        ({"metrics_port": 9, "metrics_cert": "c"}, "metrics_cert"),
        ({"metrics_port": 9, "metrics_key": "k"}, "metrics_key"),
        ({"metrics_token_file": "t"}, "metrics_token_file"),
        ({"run_id": "a\n"}, "run_id"),
        ({"run_id": "ä"}, "run_id"),
        ({"run_id": "x" * 129}, "run_id"),
        ({"min_nodes": 0}, "min_nodes"),
        ({"min_nodes": 2}, "min_nodes"),
        ({"max_nodes": 1_000_001}, "max_nodes"),
        ({"nproc_per_node": 0}, "nproc_per_node"),
        ({"nproc_per_node": 4097}, "nproc_per_node"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"max_restarts": 1_000_001}, "max_restarts"),
        ({"role": ""}, "role"),
        ({"role": "a\n"}, "role"),
        ({"role": "x" * 129}, "role"),
        ({"local_addr": ""}, "local_addr"),
        ({"local_addr": "a b"}, "local_addr"),
        ({"master_addr": "x" * 254}, "master_addr"),
        ({"master_port": -1}, "master_port"),
        ({"master_port": 65536}, "master_port"),
        ({"join_timeout": 0.0}, "join_timeout"),
        ({"join_timeout": float("nan")}, "join_timeout"),
        ({"last_call": -1.0}, "last_call"),
        ({"exit_barrier_timeout": 0.0}, "exit_barrier_timeout"),
        ({"coordinator_grace": float("inf")}, "coordinator_grace"),
        ({"shutdown_timeout": 2_592_001.0}, "shutdown_timeout"),
        ({"log_format": "xml"}, "log_format"),
        ({"signals_to_handle": ()}, "signals_to_handle"),
        ({"signals_to_handle": ("SIGTERM", "SIGKILL")}, "signals_to_handle"),
        ({"signals_to_handle": ("SIGCHLD",)}, "signals_to_handle"),
        ({"signals_to_handle": ("15",)}, "signals_to_handle"),
    ],
)
def test_a_broken_rule_names_its_field(changes: dict[str, Any], field: str) -> None:
    assert fields_of(**changes) == [field]


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": "Az09._-"},
        {"run_id": "x" * 128},
        {"min_nodes": 2, "max_nodes": 2},
        {"nproc_per_node": 4096},
        {"role": "parameter server"},
        {"local_addr": "fe80::1%eth0"},
        {"master_addr": "head.example.org", "master_port": 65535},
        {"last_call": 0.0, "coordinator_grace": 0.0, "shutdown_timeout": 0.0},
        {"exit_barrier_timeout": 0.1},
        {"log_dir": "/logs"},
        {"signals_to_handle": SIGNALS_ALLOWED},
    ],
)
def test_values_at_the_bounds_are_allowed(changes: dict[str, Any]) -> None:
    assert fields_of(**changes) == []


def test_all_violations_are_returned_at_once() -> None:
    assert fields_of(run_id="/", min_nodes=0, last_call=-1.0) == [
        "run_id",
        "min_nodes",
        "last_call",
    ]


def test_configuration_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config_with().run_id = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "agents"), [("1", (1, 1)), ("4", (4, 4)), ("1:4", (1, 4)), (" 2:2 ", (2, 2))]
)
def test_nnodes_is_a_number_or_a_range(text: str, agents: tuple[int, int]) -> None:
    assert NNODES.parse(text) == agents


@pytest.mark.parametrize(
    "text", ["", "0", "0:2", "3:2", "1:", ":2", "1:2:3", "a", "-1", "1.5", "1000001", "9" * 5000]
)
def test_any_other_nnodes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed is N or MIN:MAX"):
        NNODES.parse(text)


@given(st.integers(1, 1_000_000), st.integers(1, 1_000_000))
def test_nnodes_keeps_every_sound_range(first: int, second: int) -> None:
    low, high = sorted((first, second))
    assert NNODES.parse(f"{low}:{high}") == (low, high)


@pytest.mark.parametrize(
    ("text", "workers"),
    [("3", 3), ("4096", 4096), ("cpu", "cpu"), ("GPU", "gpu"), ("auto", "auto")],
)
def test_workers_are_a_number_or_a_word(text: str, workers: int | str) -> None:
    assert WORKERS.parse(text) == workers


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "4097", "x-pu", "2x"])
def test_any_other_number_of_workers_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match="a number from 1 to 4096, auto, gpu, cpu or a torch device"
    ):
        WORKERS.parse(text)


def test_the_command_of_a_worker_depends_on_how_its_program_is_launched() -> None:
    arguments = ("--lr", "1")
    for kind, start in (
        ("script", ("/py", "-u", "a")),
        ("module", ("/py", "-u", "-m", "a")),
        ("program", ("a",)),
    ):
        assert Program(kind, "a", arguments).command("/py") == (*start, *arguments)  # type: ignore[arg-type]
    assert Program("function", "f", ("a.worker",)).command("/py") == (
        ("/py", "-P", "-u", "-m", "a.worker")
    )


def test_a_title_is_what_was_launched_without_the_interpreter() -> None:
    assert Program("script", "a.py", ("-x",)).title == "a.py -x"
    assert Program("module", "a.b").title == "-m a.b"
    assert Program("program", "python", ("a.py",)).title == "python a.py"
    assert Program("function", "train", ("worker.py",)).title == "train"
