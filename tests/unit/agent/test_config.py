"""The agent's configuration and the rules that tie it together."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.settings.config import (
    SIGNALS_ALLOWED,
    AgentConfig,
    count_workers,
    parse_nnodes,
    worker_command,
)


def config_with(**changes: Any) -> AgentConfig:
    base: dict[str, Any] = {"coordinator": "head:29400", "run_id": "r1", "command": ("train",)}
    return AgentConfig(**{**base, **changes})


def fields_of(**changes: Any) -> list[str]:
    return [violation.field for violation in config_with(**changes).validate()]


def test_the_least_configuration_is_sound() -> None:
    assert fields_of() == []
    assert fields_of(coordinator=None, is_standalone=True) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"coordinator": None}, "coordinator"),
        ({"coordinator": ""}, "coordinator"),
        ({"is_standalone": True}, "coordinator"),
        ({"coordinator": None, "is_standalone": True, "agents_max": 2}, "agents_max"),
        ({"command": ()}, "command"),
        ({"command": ("",)}, "command"),
        ({"run_id": ""}, "run_id"),
        ({"run_id": "a/b"}, "run_id"),
        ({"run_id": "a\n"}, "run_id"),
        ({"run_id": "ä"}, "run_id"),
        ({"run_id": "x" * 129}, "run_id"),
        ({"agents_min": 0}, "agents_min"),
        ({"agents_min": 2}, "agents_min"),
        ({"agents_max": 1_000_001}, "agents_max"),
        ({"local_world_size": 0}, "local_world_size"),
        ({"local_world_size": 4097}, "local_world_size"),
        ({"restarts_max": -1}, "restarts_max"),
        ({"restarts_max": 1_000_001}, "restarts_max"),
        ({"role": ""}, "role"),
        ({"role": "a\n"}, "role"),
        ({"role": "x" * 129}, "role"),
        ({"local_addr": ""}, "local_addr"),
        ({"local_addr": "a b"}, "local_addr"),
        ({"master_addr": "x" * 254}, "master_addr"),
        ({"master_port": -1}, "master_port"),
        ({"master_port": 65536}, "master_port"),
        ({"join_timeout_s": 0.0}, "join_timeout_s"),
        ({"join_timeout_s": float("nan")}, "join_timeout_s"),
        ({"last_call_s": -1.0}, "last_call_s"),
        ({"exit_barrier_timeout_s": 0.0}, "exit_barrier_timeout_s"),
        ({"coordinator_grace_s": float("inf")}, "coordinator_grace_s"),
        ({"shutdown_timeout_s": 2_592_001.0}, "shutdown_timeout_s"),
        ({"log_dir": "logs"}, "log_dir"),
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
        {"agents_min": 2, "agents_max": 2},
        {"local_world_size": 4096},
        {"role": "parameter server"},
        {"local_addr": "fe80::1%eth0"},
        {"master_addr": "head.example.org", "master_port": 65535},
        {"last_call_s": 0.0, "coordinator_grace_s": 0.0, "shutdown_timeout_s": 0.0},
        {"exit_barrier_timeout_s": 0.1},
        {"log_dir": "/logs"},
        {"signals_to_handle": SIGNALS_ALLOWED},
    ],
)
def test_values_at_the_bounds_are_allowed(changes: dict[str, Any]) -> None:
    assert fields_of(**changes) == []


def test_all_violations_are_returned_at_once() -> None:
    assert fields_of(coordinator=None, agents_min=3, agents_max=2, run_id="", last_call_s=-1.0) == [
        "coordinator",
        "agents_min",
        "run_id",
        "last_call_s",
    ]


def test_configuration_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config_with().run_id = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "agents"), [("1", (1, 1)), ("4", (4, 4)), ("1:4", (1, 4)), (" 2:2 ", (2, 2))]
)
def test_nnodes_is_a_number_or_a_range(text: str, agents: tuple[int, int]) -> None:
    assert parse_nnodes(text) == agents


@pytest.mark.parametrize(
    "text", ["", "0", "0:2", "3:2", "1:", ":2", "1:2:3", "a", "-1", "1.5", "1000001", "9" * 5000]
)
def test_any_other_nnodes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed is N or MIN:MAX"):
        parse_nnodes(text)


@given(st.integers(1, 1_000_000), st.integers(1, 1_000_000))
def test_nnodes_keeps_every_sound_range(first: int, second: int) -> None:
    low, high = sorted((first, second))
    assert parse_nnodes(f"{low}:{high}") == (low, high)


@pytest.mark.parametrize(
    ("text", "gpus", "workers"),
    [
        ("3", 0, 3),
        ("4096", 8, 4096),
        ("cpu", 8, 16),
        ("gpu", 8, 8),
        ("auto", 8, 8),
        ("auto", 0, 16),
        ("GPU", 2, 2),
    ],
)
def test_workers_are_counted(text: str, gpus: int, workers: int) -> None:
    assert count_workers(text, cores=16, gpus=gpus) == workers


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "4097", "xpu", "two"])
def test_any_other_number_of_workers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a number from 1 to 4096, auto, gpu or cpu"):
        count_workers(text, cores=16, gpus=0)


def test_gpu_without_one_is_refused() -> None:
    with pytest.raises(ValueError, match="sees no GPU"):
        count_workers("gpu", cores=16, gpus=0)


def test_worker_command_depends_on_the_launch() -> None:
    arguments = ("--lr", "1")
    assert worker_command("a.py", arguments, launch="script", python="/py") == (
        ("/py", "-u", "a.py", "--lr", "1")
    )
    assert worker_command("a.b", arguments, launch="module", python="/py") == (
        ("/py", "-u", "-m", "a.b", "--lr", "1")
    )
    assert worker_command("a", arguments, launch="program", python="/py") == ("a", "--lr", "1")
