"""What an agent leaves for a launcher that it runs under, and where it keeps its workers' files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from drumbeat.agent.core.effects import Finish
from drumbeat.agent.core.model import Exit
from drumbeat.agent.runtime.driver import cause_of, tell_launcher
from drumbeat.agent.runtime.private_directory import PrivateDirectory
from drumbeat.agent.session.session import desired_from
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.workers.failures.error_file import read_error_file
from drumbeat.agent.workers.output import files
from drumbeat.agent.workers.output.files import WorkerOutput
from drumbeat.agent.workers.supervisor.messages import WorkerError
from drumbeat.v1 import failure_pb2, session_pb2
from worker_sdk.context import ERROR_FILE, RANK, ROUND, RUN_ID

CAUSE = WorkerError(message="ValueError: boom", traceback="Traceback", error_code=-11)


def test_the_cause_is_left_as_a_worker_would(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    tell_launcher(str(path), CAUSE)
    message = json.loads(path.read_text())["message"]
    assert list(message) == ["message", "errorCode", "extraInfo"]
    error = read_error_file(path)
    assert error is not None
    assert (error.message, error.traceback, error.error_code) == (
        CAUSE.message,
        CAUSE.traceback,
        CAUSE.error_code,
    )
    tell_launcher(str(path), WorkerError(message="no code"))
    assert "errorCode" not in json.loads(path.read_text())["message"]


def test_nobody_to_tell_and_no_place_for_it_change_nothing(tmp_path: Path) -> None:
    tell_launcher(None, CAUSE)
    (tmp_path / "file").touch()
    tell_launcher(str(tmp_path / "file" / "such"), CAUSE)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def told(*causes: failure_pb2.FailureRecord, is_success: bool = False) -> WorkerError | None:
    report = failure_pb2.FailureReport(root_causes=causes)
    verdict = failure_pb2.Verdict(is_success=is_success, reason="r", report=report)
    message = session_pb2.DesiredState(exit=session_pb2.Exit(verdict=verdict))
    desired = desired_from(message)
    assert desired is not None
    assert isinstance(desired, Exit)
    return cause_of(Finish(exit_code=1, report=desired.report))


def test_a_failed_verdict_brings_its_first_root_cause() -> None:
    worker = failure_pb2.WorkerRanks(rank=4)
    first = failure_pb2.FailureRecord(
        host="node7", worker=worker, exit_code=-11, message=CAUSE.message, traceback="Traceback"
    )
    other = failure_pb2.FailureRecord(host="node8", exit_code=1, message="other")
    assert told(first, other) == CAUSE
    first.ClearField("message")
    first.ClearField("traceback")
    silent = WorkerError(message="rank 4 on node7 recorded no error", error_code=-11)
    assert told(first) == silent
    assert told() is None
    assert told(first, is_success=True) is None


def test_a_place_for_stacks_is_made_and_kept_only_with_content(tmp_path: Path) -> None:
    config = AgentConfig(
        run_id="run",
        nproc_per_node=2,
        log_dir=str(tmp_path),
        program=Program("program", "true"),
    )
    directory = PrivateDirectory([str(tmp_path)])
    output = WorkerOutput(config, directory)
    envs = {rank: {RUN_ID: "run", ROUND: "0", RANK: str(rank)} for rank in (0, 1)}
    output.prepare(0, envs)
    stacks = [Path(f"{envs[rank][ERROR_FILE]}.faulthandler") for rank in (0, 1)]
    assert [path.read_text() for path in stacks] == ["", ""]
    stacks[1].write_text("Fatal Python error")
    output.close()
    directory.close()
    assert [path.exists() for path in stacks] == [False, True]


def test_a_stderr_that_cannot_be_captured_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "STDERR", 987)  # as if the agent's own was closed
    config = AgentConfig(run_id="run", nproc_per_node=2, program=Program("program", "true"))
    directory = PrivateDirectory([str(tmp_path)])
    output = WorkerOutput(config, directory)
    with capture_logs() as logs:
        for round_id in (0, 1):
            envs = {rank: {RUN_ID: "run", RANK: str(rank)} for rank in (0, 1)}
            streams = output.prepare(round_id, envs)
            assert streams == {0: ("", ""), 1: ("", "")}
    output.close()
    directory.close()
    assert [line["event"] for line in logs] == ["stderr not captured"]
    assert "of local rank 0: Bad file descriptor" in logs[0]["reason"]
