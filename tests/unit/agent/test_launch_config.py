"""What a program says of a job that it launches."""

from __future__ import annotations

import os
from typing import Any

import pytest

from drumbeat.agent.errors import InvalidConfiguration
from drumbeat.agent.launching.process import ending_signal
from drumbeat.agent.multiprocessing import DefaultLogsSpecs, Std
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.settings.launch_config import LaunchConfig
from drumbeat.agent.watchdog.core.model import AUTO
from drumbeat.command.settings import settings_of


def told_by(config: LaunchConfig) -> AgentConfig:
    return config.agent_config(Program("program", "x"), run_id="r", python="/py")


def test_a_job_of_one_host_needs_no_more_than_its_sizes() -> None:
    told = LaunchConfig(1, 1, 2).agent_config(
        Program("function", "train", ("w",)), run_id="r", python="/py", outcome_file="/o"
    )
    assert (told.is_standalone, told.nproc_per_node, told.max_restarts) == (True, 2, 3)
    assert (told.run_id, told.program.title, told.command[0]) == ("r", "train", "/py")
    assert told.outcome_file == "/o"
    assert told.event_handler == "null"
    assert told.validate() == []


def test_every_setting_reaches_the_agent() -> None:
    given: dict[str, Any] = {
        "coordinator": "head:1",
        "use_proxy": True,
        "run_id": "r",
        "name": "left",
        "role": "trainer",
        "max_restarts": 1,
        "local_addr": "a",
        "master_addr": "m",
        "master_port": 7,
        "join_timeout": 1,
        "last_call": 2,
        "exit_barrier_timeout": 3,
        "coordinator_grace": 4,
        "shutdown_timeout": 5,
        "virtual_local_rank": True,
        "numa_binding": "node",
        "gpu_memory_wait": 6,
        "preemption_signal": "SIGTERM",
        "preemption_grace": 7,
        "log_format": "json",
        "event_log_handler": "mine",
    }
    told = told_by(LaunchConfig(2, 4, 8, **given))
    assert (told.min_nodes, told.max_nodes, told.nproc_per_node) == (2, 4, 8)
    assert {name: getattr(told, name) for name in given} == given
    assert told.validate() == []


def test_a_program_can_say_what_a_command_line_can() -> None:
    """But signals that end it, which are the program's own."""
    agent_only = set(settings_of(AgentConfig)) - set(settings_of(LaunchConfig))
    assert agent_only == {"signals_to_handle"}


@pytest.mark.parametrize(
    ("preemption", "ending"), [(None, "SIGTERM"), ("SIGTERM", "SIGINT"), ("SIGUSR1", "SIGTERM")]
)
def test_the_end_of_the_program_ends_its_agent_without_notice(
    preemption: str | None, ending: str
) -> None:
    told = told_by(LaunchConfig(1, 1, 1, preemption_signal=preemption))
    assert ending_signal(told).name == ending


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"nproc_per_node": 0},
            "nproc_per_node: 0 is given, allowed is a whole number from 1 to 4096",
        ),
        (
            {"nproc_per_node": "2"},
            "nproc_per_node: '2' is given, allowed is a whole number from 1 to 4096",
        ),
        (
            {"max_restarts": True},
            "max_restarts: True is given, allowed is a whole number from 0 to 1000000",
        ),
        ({"join_timeout": "5m"}, "join_timeout: '5m' is given, allowed is 0.1 to 2592000 seconds"),
        ({"join_timeout": 0}, "join_timeout: 0 is given, allowed is 0.1 to 2592000 seconds"),
        (
            {"max_restarts": -1},
            "max_restarts: -1 is given, allowed is a whole number from 0 to 1000000",
        ),
        (
            {"max_nodes": 2},
            "max_nodes: '1:2' is given, allowed is 1:1, for a standalone agent is alone",
        ),
        (
            {"max_nodes": 2, "coordinator": "head:1"},
            (
                "run_id: '' is given, allowed is a name that all hosts of this job give, and those "
                "of no other"
            ),
        ),
        (
            {"coordinator": "head1,head2,head1"},
            (
                "coordinator: 'head1,head2,head1' is given, allowed is HOST:PORT, HOST or "
                "[IPV6]:PORT, with a port from 1 to 65535; of a cluster up to 16, separated by "
                "commas, each once"
            ),
        ),
        (
            {"start_method": "fork"},
            (
                "start_method: 'fork' is given, allowed is \"spawn\", for every worker is a new "
                "interpreter"
            ),
        ),
        (
            {"event_log_handler": "jsonl"},
            (
                "event_log_file: nothing is given, allowed is the path of a file, for the handler "
                "jsonl needs one"
            ),
        ),
    ],
)
def test_what_is_impossible_is_named(fields: dict[str, Any], text: str) -> None:
    given = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1} | fields
    with pytest.raises(InvalidConfiguration) as caught:
        LaunchConfig(**given)
    assert str(caught.value) == text
    assert isinstance(caught.value, ValueError), "what programs expect of an impossible argument"


def test_where_output_goes_reaches_the_agent() -> None:
    config = LaunchConfig(
        1,
        1,
        2,
        redirects=Std.ALL,
        tee={0: Std.OUT, 1: Std.ERR},
        local_ranks_filter={0},
        log_line_prefix_template="${rank}|",
        duplicate_stdout_filters=["loss"],
        duplicate_stderr_filters=("nan", "inf"),
        stderr_capture=False,
        logs_specs="mine",
    )
    told = told_by(config)
    assert (told.redirects, told.tee, told.local_ranks_filter) == ("3", "0:1,1:2", {0})
    assert told.log_line_prefix_template == "${rank}|"
    assert told.duplicate_stdout_filters == ("loss",)
    assert told.duplicate_stderr_filters == ("nan", "inf")
    assert (told.stderr_capture, told.logs_specs) == (False, "mine")
    plain = told_by(LaunchConfig(1, 1, 2, redirects="3", tee={}, local_ranks_filter=set()))
    assert (plain.redirects, plain.tee, plain.local_ranks_filter) == ("3", "0", None)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"redirects": "4"}, "redirects: '4' is given, allowed is Std.OUT and the like"),
        ({"tee": {0: "x"}}, "tee: {0: 'x'} is given, allowed is Std.OUT and the like"),
        ({"tee": {-1: Std.OUT}}, "tee: {-1: "),
        ({"tee": None}, "tee: nothing is given, allowed is Std.OUT and the like"),
        ({"local_ranks_filter": {"0"}}, "local_ranks_filter: {'0'} is given, allowed is local"),
        (
            {"duplicate_stdout_filters": "x"},
            "duplicate_stdout_filters: 'x' is given, allowed is",
        ),
        ({"duplicate_stderr_filters": [1]}, "duplicate_stderr_filters: [1] is given, allowed is a"),
        ({"logs_specs": 5}, "logs_specs: 5 is given, allowed is logs specs, which have a method"),
        (
            {"logs_specs": DefaultLogsSpecs(os.devnull), "tee": Std.OUT},
            "tee: '1' is given, allowed is nothing beside logs_specs",
        ),
    ],
)
def test_impossible_output_is_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        LaunchConfig(1, 1, 1, **fields)
    assert text in str(caught.value)


def test_numa_modes_are_those_of_the_command_line() -> None:
    with pytest.raises(
        InvalidConfiguration, match="numa_binding: 'x' is given, allowed is one of node, "
    ):
        LaunchConfig(1, 1, 1, numa_binding="x")


def test_an_event_log_file_chooses_its_handler() -> None:
    config = LaunchConfig(1, 1, 1, event_log_file="events")
    assert told_by(config).event_handler == "jsonl"


def test_limits_on_hangs_reach_the_agent() -> None:
    config = LaunchConfig(1, 1, 2, progress_timeout="auto", runtime_timeout=None, hang_grace=1.0)
    policy = told_by(config).watchdog
    assert policy.progress_timeout_s == AUTO
    assert (policy.runtime_timeout_s, policy.kill_grace_s) == (None, 1.0)


def test_zero_is_no_limit_as_on_the_command_line() -> None:
    limits = ("startup_timeout", "progress_timeout", "runtime_timeout", "exit_timeout")
    off: dict[str, Any] = dict.fromkeys(limits, 0)
    config = LaunchConfig(1, 1, 2, **off)
    assert [getattr(told_by(config), name) for name in limits] == [None] * 4


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"progress_timeout": "often"}, "progress_timeout"),
        ({"startup_timeout": 0.01}, "startup_timeout"),
        ({"startup_timeout": False}, "startup_timeout"),
        ({"hang_grace": -1.0}, "hang_grace"),
    ],
)
def test_an_impossible_limit_is_named_as_in_the_config(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidConfiguration, match=told):
        LaunchConfig(1, 1, 2, **options)
