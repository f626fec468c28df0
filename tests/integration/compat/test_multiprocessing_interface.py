"""What the package takes and refuses, beside what torch's takes."""

import inspect
import multiprocessing
import operator
import os
import signal
import subprocess
import sys
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest

from drumbeat.agent.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    RunProcsResult,
    Std,
    SubprocessContext,
    start_processes,
)
from tests.support import entrypoints
from tests.support.waiting import MS, wait_until_sync

DEADLINE_S = 30_000 * MS
"""Far longer than anything here takes."""


@pytest.fixture(scope="module", autouse=True)
def _shared_processes() -> None:
    """Start what the standard library shares among all tests, lest one of them be blamed."""
    resource_tracker.ensure_running()


def test_incomplete_maps_and_odd_values_are_refused(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path))
    with pytest.raises(RuntimeError, match=r"args: local ranks are \[1\], must be \[0\]"):
        start_processes("w", "true", {1: ()}, {1: {}}, specs)
    with pytest.raises(RuntimeError, match=r"envs: local ranks are \[0\], must be \[0, 1\]"):
        start_processes("w", "true", {0: (), 1: ()}, {0: {}}, specs)
    with pytest.raises(TypeError, match=r"envs\[0\]\['A'\]: is 1, must be a string"):
        start_processes("w", "true", {0: ()}, {0: {"A": 1}}, specs)  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="cannot find context for 'thread'"):
        start_processes("w", print, {0: ()}, {0: {}}, specs, start_method="thread")
    with pytest.raises(ValueError, match="numa_options: 'node' is not supported"):
        start_processes("w", "true", {0: ()}, {0: {}}, specs, numa_options="node")  # type: ignore[arg-type]


def test_no_workers_are_done_at_once(tmp_path: Path) -> None:
    for entrypoint in ("true", entrypoints.nothing):
        context = start_processes("w", entrypoint, {}, {}, DefaultLogsSpecs(str(tmp_path)))
        assert context.wait(DEADLINE_S) == RunProcsResult()
        assert context.pids() == {}


@pytest.mark.torch
@pytest.mark.parametrize(
    "name",
    [
        "start_processes",
        "SubprocessContext",
        "MultiprocessContext",
        "RunProcsResult",
        "SignalException",
        "DefaultLogsSpecs",
        "LogsDest",
        "to_map",
        "PContext.wait",
        "PContext.close",
        "PContext.pids",
        "PContext.start",
        "Std.from_str",
        "LogsSpecs.reify",
    ],
)
def test_arguments_are_those_of_torch(name: str) -> None:
    """Names, order and defaults, so that only the import has to be changed."""
    theirs = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    ours = sys.modules["drumbeat.agent.multiprocessing"]

    def arguments(package: Any) -> list[tuple[str, object]]:
        signature = inspect.signature(operator.attrgetter(name)(package))
        return [(each.name, each.default) for each in signature.parameters.values()]

    if name in ("LogsDest", "RunProcsResult"):
        assert [each for each, _ in arguments(ours)] == [each for each, _ in arguments(theirs)]
    else:
        assert str(arguments(ours)) == str(arguments(theirs))


@pytest.mark.slow
@pytest.mark.parametrize("batches", [int(os.environ.get("DRUMBEAT_LAUNCHERS", "8")) // 8])
def test_launchers_that_are_signalled_as_they_begin_to_wait_all_react(batches: int) -> None:
    spawn = multiprocessing.get_context("spawn")
    for _ in range(batches):
        queues = [spawn.Queue() for _ in range(8)]
        processes = [spawn.Process(target=entrypoints.launch_and_wait, args=(q,)) for q in queues]
        for process in processes:
            process.start()
        for process, queue in zip(processes, queues, strict=True):
            pids = queue.get(timeout=DEADLINE_S)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGTERM)
            process.join(DEADLINE_S)
            assert process.exitcode == 128 + signal.SIGTERM
            assert not any(map(psutil.pid_exists, pids.values()))
            queue.close()
            process.close()


def test_the_files_of_selected_lines_are_attributes(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path), tee=Std.ALL)
    args, envs = {0: ("-c", "echo yes; echo no")}, dict[int, dict[str, str]]({0: {}})
    context = start_processes("w", "sh", args, envs, specs, duplicate_stdout_filters=["yes"])
    assert context.filtered_stderr is None
    file = context.filtered_stdout
    assert file is not None
    assert not file.closed
    context.wait()
    assert file.closed
    assert Path(file.name).read_text() == "[w0]:yes\n"
    unused = SubprocessContext("w", "sh", args, envs, specs, duplicate_stderr_filters=["no"])
    assert unused.filtered_stderr is not None
    unused.close()
    assert unused.filtered_stderr.closed


def commands(tmp_path: Path, *scripts: str) -> SubprocessContext:
    args = {rank: ("-c", script) for rank, script in enumerate(scripts)}
    specs = DefaultLogsSpecs(str(tmp_path), redirects=Std.ALL)
    context = start_processes("w", "sh", args, {rank: {} for rank in args}, specs)
    assert isinstance(context, SubprocessContext)
    return context


def exit_codes(context: PContext) -> dict[int, int]:
    """Return how those that have failed did."""
    result = context.wait(DEADLINE_S)
    assert result is not None
    return {rank: failure.exitcode for rank, failure in result.failures.items()}


def test_commands_have_handlers_as_torchs(tmp_path: Path) -> None:
    script = "trap 'exit 5' USR1; echo; while :; do sleep 0.01; done"
    context = commands(tmp_path, "exit 0", script)
    handlers = context.subprocess_handlers
    assert {rank: each.proc.pid for rank, each in handlers.items()} == context.pids()
    assert [each.local_rank_id for each in handlers.values()] == [0, 1]
    assert handlers[0].proc.wait(DEADLINE_S) == 0
    process = handlers[1].proc
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1 * MS)
    assert process.poll() is process.returncode is None
    wait_until_sync(lambda: Path(context.stdouts[1]).read_text(), DEADLINE_S)
    process.send_signal(signal.SIGUSR1)
    assert process.wait() == 5
    assert exit_codes(context) == {1: 5}
    for handler in handlers.values():
        handler.proc.kill()
        handler.close()


def test_a_handler_ends_the_group_of_its_worker(tmp_path: Path) -> None:
    context = commands(tmp_path, "exec sleep 600", "exec sleep 600")
    context.subprocess_handlers[0].close(signal.SIGINT)
    context.subprocess_handlers[1].proc.wait(DEADLINE_S)
    assert exit_codes(context) == {0: -signal.SIGINT}


def test_an_endless_timeout_is_refused(tmp_path: Path) -> None:
    context = commands(tmp_path, "exec sleep 600")
    with pytest.raises(ValueError, match="not a finite duration"):
        context.close(timeout=float("inf"))
    context.close()
    assert exit_codes(context) == {0: -signal.SIGTERM}
