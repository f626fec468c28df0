"""What a program says of a job that it launches."""

from __future__ import annotations

import os
from typing import Any

import pytest

from agent.errors import InvalidConfiguration
from agent.launching.config import LaunchConfig
from agent.multiprocessing import DefaultLogsSpecs, Std
from agent.settings.output_config import OutputConfig
from agent.watchdog.core.model import Auto


def test_a_job_of_one_host_needs_no_more_than_its_sizes() -> None:
    told = LaunchConfig(1, 1, 2).agent_config(("x",), run_id="r", name="train", outcome_file="/o")
    assert (told.is_standalone, told.local_world_size, told.restarts_max) == (True, 2, 3)
    assert (told.run_id, told.title, told.script) == ("r", "train", ("train",))
    assert told.outcome_file == "/o"
    assert told.event_log_handler == "null"


def test_every_setting_reaches_the_agent() -> None:
    config = LaunchConfig(
        2,
        4,
        8,
        coordinator="head:1",
        run_id="r",
        role="trainer",
        max_restarts=1,
        local_addr="a",
        master_addr="m",
        master_port=7,
        join_timeout=1,
        last_call=2,
        exit_barrier_timeout=3,
        coordinator_grace=4,
        shutdown_timeout=5,
        virtual_local_rank=True,
        numa_binding="node",
        gpu_memory_wait=6,
        log_format="json",
        event_log_handler="mine",
    )
    told = config.agent_config(("x",), run_id="r")
    assert not told.is_standalone
    assert (told.coordinator, told.role, told.local_addr) == ("head:1", "trainer", "a")
    assert (told.agents_min, told.agents_max, told.local_world_size) == (2, 4, 8)
    assert (told.master_addr, told.master_port, told.restarts_max) == ("m", 7, 1)
    assert (told.join_timeout_s, told.last_call_s, told.exit_barrier_timeout_s) == (1, 2, 3)
    assert (told.coordinator_grace_s, told.shutdown_timeout_s) == (4, 5)
    assert (told.gpu_memory_wait_s, told.is_local_rank_virtual) == (6, True)
    assert (told.numa_binding, told.log_format, told.event_log_handler) == ("node", "json", "mine")
    assert told.validate() == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"nproc_per_node": 0}, "nproc_per_node: 0 is given, allowed is 1 to 4096 workers"),
        ({"nproc_per_node": "2"}, "nproc_per_node: \"'2'\" is given, allowed is a whole number"),
        ({"max_restarts": True}, "max_restarts: 'True' is given, allowed is a whole number"),
        ({"join_timeout": "5m"}, "join_timeout: \"'5m'\" is given, allowed is a number of seconds"),
        ({"join_timeout": 0}, "join_timeout: 0 is given, allowed is 0.1 to 2592000 seconds"),
        ({"max_restarts": -1}, "max_restarts: -1 is given, allowed is 0 to 1000000 restarts"),
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
        duplicate_stderr_filters=("nan", "inf"),  # type: ignore[arg-type]  # as good as a list
        stderr_capture=False,
        logs_specs="mine",
    )
    assert config.agent_config(("x",), run_id="r").output == OutputConfig(
        redirects="3",
        tee="0:1,1:2",
        local_ranks_filter=frozenset({0}),
        line_prefix_template="${rank}|",
        stdout_filters=("loss",),
        stderr_filters=("nan", "inf"),
        logs_specs="mine",
        is_stderr_captured=False,
    )
    plain = LaunchConfig(1, 1, 2, redirects="3", tee={}, local_ranks_filter=set())
    assert plain.agent_config(("x",), run_id="r").output == OutputConfig(redirects="3")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"redirects": "4"}, "redirects: '4' is given, allowed is Std.OUT and the like"),
        ({"tee": {0: "x"}}, "tee: {0: 'x'} is given, allowed is Std.OUT and the like"),
        ({"tee": {-1: Std.OUT}}, "tee: {-1: "),
        ({"tee": None}, "tee: 'None' is given, allowed is Std.OUT and the like"),
        ({"local_ranks_filter": {"0"}}, "local_ranks_filter: {'0'} is given, allowed is local"),
        (
            {"duplicate_stdout_filters": "x"},
            "duplicate_stdout_filters: \"'x'\" is given, allowed is",
        ),
        ({"duplicate_stderr_filters": [1]}, "duplicate_stderr_filters: [1] is given, allowed is a"),
        ({"logs_specs": 5}, "logs_specs: 5 is given, allowed is logs specs, which have a method"),
        (
            {"logs_specs": DefaultLogsSpecs(os.devnull), "tee": Std.OUT},
            "tee: 1 is given, allowed is nothing beside logs_specs",
        ),
    ],
)
def test_impossible_output_is_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        LaunchConfig(1, 1, 1, **fields)
    assert text in str(caught.value)


def test_numa_modes_are_those_of_the_command_line() -> None:
    with pytest.raises(InvalidConfiguration, match="numa_binding: 'x' is given, allowed is None, "):
        LaunchConfig(1, 1, 1, numa_binding="x")


def test_an_event_log_file_chooses_its_handler() -> None:
    config = LaunchConfig(1, 1, 1, event_log_file="events")
    assert config.agent_config(("x",), run_id="r").event_log_handler == "jsonl"


def test_limits_on_hangs_reach_the_agent() -> None:
    config = LaunchConfig(1, 1, 2, progress_timeout="auto", runtime_timeout=None, hang_grace=1.0)
    policy = config.agent_config(("worker",), run_id="r").watchdog
    assert isinstance(policy.progress_timeout_s, Auto)
    assert (policy.runtime_timeout_s, policy.kill_grace_s) == (None, 1.0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"progress_timeout": "often"}, "progress_timeout"),
        ({"startup_timeout": 0.01}, "startup_timeout"),
        ({"hang_grace": -1.0}, "hang_grace"),
    ],
)
def test_an_impossible_limit_is_named_as_in_the_config(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidConfiguration, match=told):
        LaunchConfig(1, 1, 2, **options)
