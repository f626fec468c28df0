"""Rules that tie settings together, and what follows from them."""

import dataclasses
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from drumbeat.agent.core.watchdog.model import AUTO, REPORT, WatchdogPolicy
from drumbeat.agent.errors import InvalidConfiguration
from drumbeat.agent.launching.process import ending_signal
from drumbeat.agent.multiprocessing import DefaultLogsSpecs, Std
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.settings.kinds import FILTERS, METRICS_PORT, NNODES, RANKS, WORKERS
from drumbeat.agent.settings.launch_config import LaunchConfig
from drumbeat.agent.workers.manager import watchdog_policy

LIMITS = (
    "startup_timeout",
    "progress_timeout",
    "runtime_timeout",
    "exit_timeout",
    "collective_timeout",
)
HEAD = {"coordinator": "head:1", "run_id": "r"}


def broken(**fields: Any) -> list[str]:
    """Return the fields that break rules."""
    config = AgentConfig(program=Program("script", "train.py"), **{"run_id": "r"} | fields)
    return [violation.field for violation in config.validate()]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, []),
        ({"max_nodes": 2}, ["max_nodes"]),
        (HEAD | {"max_nodes": 1_000_000}, []),
        (HEAD | {"min_nodes": 2}, ["min_nodes"]),
        (HEAD | {"min_nodes": 2, "max_nodes": 2}, []),
        ({"run_id": ""}, ["run_id"]),
        ({"run_id": "/", "min_nodes": 0, "last_call": -1.0}, ["run_id", "min_nodes", "last_call"]),
        ({"metrics_port": 9, "metrics_cert": "c"}, ["metrics_cert"]),
        ({"metrics_port": 9, "metrics_key": "k"}, ["metrics_key"]),
        ({"metrics_token_file": "t"}, ["metrics_token_file"]),
        (HEAD | {"replica_group": (0, 4), "min_groups": 4}, []),
        (HEAD | {"replica_group": (0, 4), "min_groups": 5}, ["min_groups"]),
        (HEAD | {"min_groups": 2}, ["min_groups"]),
        ({"replica_group": (0, 4)}, ["replica_group"]),
        (HEAD | {"replica_group": (10, 11), "run_id": "x" * 125}, []),
        (HEAD | {"replica_group": (10, 11), "run_id": "x" * 126}, ["run_id"]),
    ],
)
def test_a_broken_rule_names_its_field(fields: dict[str, Any], names: list[str]) -> None:
    assert broken(**fields) == names


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"nproc_per_node": "2"},
            "nproc_per_node: '2' is given, allowed is a whole number from 1 to 4096",
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
        (
            {"logs_specs": DefaultLogsSpecs(os.devnull), "tee": Std.OUT},
            "tee: '1' is given, allowed is nothing beside logs_specs, which decide on the files",
        ),
    ],
)
def test_what_a_program_cannot_mean_is_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        LaunchConfig(**{"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1} | fields)
    assert str(caught.value) == text


def test_a_job_of_one_host_needs_no_more_than_its_sizes() -> None:
    told = LaunchConfig(1, 1, 2).agent_config(
        Program("function", "train", ("w",)), run_id="r", python="/py", outcome_file="/o"
    )
    assert (told.is_standalone, told.nproc_per_node, told.max_restarts) == (True, 2, 3)
    assert (told.run_id, told.program.title, told.command[0]) == ("r", "train", "/py")
    assert (told.outcome_file, told.event_handler) == ("/o", "null")
    assert told.validate() == []
    with pytest.raises(dataclasses.FrozenInstanceError):
        told.run_id = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("preemption", "ending"), [(None, "SIGTERM"), ("SIGTERM", "SIGINT"), ("SIGUSR1", "SIGTERM")]
)
def test_the_end_of_the_program_ends_its_agent_without_notice(
    preemption: str | None, ending: str
) -> None:
    config = LaunchConfig(1, 1, 1, preemption_signal=preemption)
    told = config.agent_config(Program("program", "x"), run_id="r")
    assert ending_signal(told).name == ending


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({}, WatchdogPolicy()),
        (
            dict(zip((*LIMITS, "hang_grace"), (120.0, 90.0, 30.0, 0.5, 600.0, 0.0), strict=True)),
            WatchdogPolicy(
                startup_timeout_s=120.0,
                progress_timeout_s=90.0,
                runtime_timeout_s=30.0,
                exit_timeout_s=0.5,
                collective_timeout_s=600.0,
                kill_grace_s=0.0,
            ),
        ),
        (
            dict.fromkeys(LIMITS),
            WatchdogPolicy(
                runtime_timeout_s=None,
                progress_timeout_s=None,
                exit_timeout_s=None,
                collective_timeout_s=None,
            ),
        ),
        (
            {"progress_timeout": "auto", "exit_timeout": "report"},
            WatchdogPolicy(progress_timeout_s=AUTO, exit_timeout_s=REPORT),
        ),
    ],
)
def test_limits_on_hangs_are_the_policy_of_the_watchdog(
    fields: dict[str, Any], policy: WatchdogPolicy
) -> None:
    config = AgentConfig(program=Program("program", "x"), **fields)
    assert watchdog_policy(config) == replace(policy, observes_workers=True)


def test_programs_have_commands_and_titles() -> None:
    for kind, start in (
        ("script", ("/py", "-u", "a")),
        ("module", ("/py", "-u", "-m", "a")),
        ("program", ("a",)),
    ):
        assert Program(kind, "a", ("--lr", "1")).command("/py") == (*start, "--lr", "1")  # type: ignore[arg-type]
    function = Program("function", "train", ("a.worker",))
    assert function.command("/py") == ("/py", "-P", "-u", "-m", "a.worker")
    assert function.title == "train"
    assert Program("script", "a.py", ("-x",)).title == "a.py -x"
    assert Program("module", "a.b").title == "-m a.b"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (NNODES, "4", (4, 4)),
        (NNODES, " 2:3 ", (2, 3)),
        (WORKERS, "cpu", "cpu"),
        (WORKERS, "GPU", "gpu"),
        (FILTERS, "", ()),
        (FILTERS, "apple,orange", ("apple", "orange")),
        (FILTERS, "a,,,b", ("a,", "b")),
        (FILTERS, ",a,", ("a",)),
        (FILTERS, " a , b", (" a ", " b")),
        (METRICS_PORT, "29490", "127.0.0.1:29490"),
        (METRICS_PORT, " 0 ", "127.0.0.1:0"),
        (METRICS_PORT, "node-1:0", "node-1:0"),
        (RANKS, "", None),
        (RANKS, "0,2,0", {0, 2}),
    ],
)
def test_texts_are_read(kind: Any, text: str, value: object) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "allowed", "texts"),
    [
        (NNODES, "N or MIN:MAX", ("", "0:2", ":2", "1:2:3", "a", "-1", "1.5", "9" * 5000)),
        (WORKERS, "from 1 to 4096, auto, gpu, cpu or a torch device", ("", "-1", "1.5", "x-pu")),
        (METRICS_PORT, "port", ("", "-1", "host:", "::1:9", "a b:9", "host:9:9")),
        (RANKS, "separated by commas: 0,2", ("a", "0,", ",", "-1", "0:1", "1.5", "٣")),
    ],
)
def test_other_texts_are_refused_with_what_is_allowed(
    kind: Any, allowed: str, texts: tuple[str, ...]
) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=allowed):
            kind.parse(text)


@given(st.integers(1, 1_000_000), st.integers(1, 1_000_000))
def test_nnodes_keeps_every_sound_range(first: int, second: int) -> None:
    low, high = sorted((first, second))
    assert NNODES.parse(f"{low}:{high}") == (low, high)
