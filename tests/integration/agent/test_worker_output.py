"""Where an agent keeps the files of its workers, and what it keeps of their output."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.agent.model.messages import WorkerStart
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.workers.output import files
from drumbeat.agent.workers.output.files import PRIVATE_LOGS, ROUNDS_KEPT_MAX, WorkerOutput
from drumbeat.agent.workers.supervisor.spawner import opened_outputs
from worker_sdk.context import ERROR_FILE, RANK, ROUND, RUN_ID

Make = Callable[..., WorkerOutput]
ROUNDS = ROUNDS_KEPT_MAX + 3
LINES = b"".join(b"line %d\n" % number for number in range(60)) + b"last"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(**settings: Any) -> WorkerOutput:
            config = AgentConfig(run_id="run", program=Program("program", "true"), **settings)
            directory = stack.enter_context(closing(PrivateDirectory([str(tmp_path)])))
            return stack.enter_context(closing(WorkerOutput(config, directory)))

        yield make


def envs(round_id: int = 0, count: int = 1) -> dict[int, dict[str, str]]:
    return {rank: {RUN_ID: "run", ROUND: str(round_id), RANK: str(rank)} for rank in range(count)}


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("log_dir", [None, os.devnull, "own"])
def test_a_private_directory_keeps_the_latest_rounds_and_a_users_directory_all(
    make: Make, tmp_path: Path, log_dir: str | None
) -> None:
    path = str(tmp_path / log_dir) if log_dir == "own" else log_dir
    output = make(log_dir=path)
    for number in range(ROUNDS):
        output.prepare(number, envs(number))
    folder = output.directory.path / "errors"
    if log_dir != os.devnull:
        parent = tmp_path / "own" if log_dir else output.directory.path / PRIVATE_LOGS
        (folder,) = parent.iterdir()
    first = 0 if log_dir == "own" else ROUNDS - ROUNDS_KEPT_MAX
    name = "{}" if log_dir == os.devnull else "attempt_{}"
    assert names_in(folder) == {name.format(number) for number in range(first, ROUNDS)}


def test_a_place_for_stacks_is_made_and_kept_only_with_content(make: Make, tmp_path: Path) -> None:
    output, workers = make(nproc_per_node=2, log_dir=str(tmp_path)), envs(count=2)
    output.prepare(0, workers)
    stacks = [Path(f"{workers[rank][ERROR_FILE]}.faulthandler") for rank in (0, 1)]
    assert [path.read_text() for path in stacks] == ["", ""]
    stacks[1].write_text("Fatal Python error")
    output.prepare(1, envs(1, count=2))
    assert [path.exists() for path in stacks] == [False, True]


def test_a_stderr_that_cannot_be_captured_is_told_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "STDERR", 987)  # as if the agent's own was closed
    output = make(nproc_per_node=2)
    with capture_logs() as logs:
        for round_id in (0, 1):
            streams = output.prepare(round_id, envs(round_id, count=2))
            assert streams == {0: ("", ""), 1: ("", "")}
    assert [line["event"] for line in logs] == ["stderr not captured"]
    assert "of local rank 0: Bad file descriptor" in logs[0]["reason"]


@pytest.mark.parametrize(
    ("settings", "is_kept"),
    [
        ({}, True),
        ({"redirects": "3"}, True),
        ({"tee": "2"}, True),
        ({"local_ranks_filter": frozenset({7})}, True),
        ({"stderr_capture": False}, False),
    ],
    ids=["passed on", "redirected", "teed", "not shown", "not captured"],
)
def test_the_last_lines_of_stderr_are_known_wherever_it_goes(
    make: Make, settings: dict[str, Any], is_kept: bool
) -> None:
    output = make(**settings)
    ((_, path),) = output.prepare(0, envs()).values()
    if path:
        with opened_outputs(WorkerStart(local_rank=0, env={}, stderr=path)) as outputs:
            os.write(outputs[2], LINES)
    lines = [*(f"line {number}" for number in range(11, 60)), "last"]
    assert output.ended(0, 0)[2].splitlines() == (lines if is_kept else [])


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, []),
        ({"redirects": "3"}, ["stdout.log", "stderr.log"]),
        ({"tee": "2"}, ["stderr.log"]),
        ({"local_ranks_filter": frozenset({7})}, []),
    ],
    ids=["passed on", "redirected", "teed", "not shown"],
)
def test_files_that_have_all_output_are_named(
    make: Make, settings: dict[str, Any], names: list[str]
) -> None:
    output = make(**settings)
    output.prepare(0, envs())
    assert [Path(path).name for path in output.files_of(0, 0)] == names
    assert all(Path(path).is_absolute() for path in output.files_of(0, 0))
    assert output.files_of(1, 0) == ()
