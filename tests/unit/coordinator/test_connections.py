"""What is bounded before it is known who is there."""

import os
import resource
import subprocess
import sys

import pytest

from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.transport.connections import (
    DESCRIPTORS_RESERVED,
    connections_max,
    server_options,
)
from tests.support.layering import ROOT

LIMITS = Limits(connections_max=1000)


@pytest.mark.parametrize(
    ("files", "connections"),
    [
        (resource.RLIM_INFINITY, 1000),
        (1_000_000, 1000),
        (1000 + DESCRIPTORS_RESERVED, 1000),
        (300 + DESCRIPTORS_RESERVED, 300),
        (DESCRIPTORS_RESERVED, 1),
    ],
)
def test_there_are_as_many_connections_as_the_process_may_open_files(
    files: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert connections_max(LIMITS) == connections


def test_each_bound_of_a_connection_is_a_named_limit() -> None:
    limits = Limits(handshake_timeout_s=1.5, idle_timeout_s=2.5, calls_per_connection_max=7)
    options = dict(server_options(CoordinatorConfig(limits=limits)))
    assert options["grpc.server_handshake_timeout_ms"] == 1_500
    assert options["grpc.max_connection_idle_ms"] == 2_500
    assert options["grpc.max_concurrent_streams"] == 7
    assert options["grpc.max_receive_message_length"] == limits.message_bytes_max


@pytest.mark.parametrize(
    ("hard", "wanted", "told"),
    [(2_000, 1000, ""), (5_000, 20_000, "debug"), (300, 1000, "warning")],
    ids=["room for all", "room for many", "room for few"],
)
def test_the_limit_of_open_files_is_raised_and_one_that_is_too_low_is_told(
    hard: int, wanted: int, told: str
) -> None:
    program = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))\n"
        "from drumbeat.coordinator.limits import Limits\n"
        "from drumbeat.coordinator.shell.transport.connections import prepare_process\n"
        f"prepare_process(Limits(connections_max={wanted}))\n"
        "print('soft', resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if "LimitNOFILE=" in line]
    assert len(lines) == bool(told), done.stdout
    assert all(f"[{told}" in line for line in lines), done.stdout
    assert f"soft {min(hard, wanted + DESCRIPTORS_RESERVED)}\n" in done.stdout


@pytest.mark.parametrize("given", [None, "DEBUG"])
def test_what_the_process_starts_inherits_no_verbosity_of_grpc(given: str | None) -> None:
    program = (
        "import os\n"
        "from drumbeat.command.loading import load_grpc_quietly\n"
        "load_grpc_quietly()\n"
        "print(os.environ.get('GRPC_VERBOSITY'))\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    if given is not None:
        env["GRPC_VERBOSITY"] = given
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{given}\n"
