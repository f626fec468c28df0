"""What an agent leaves for a launcher that it runs under."""

import json
from pathlib import Path

from drumbeat.agent.core.effects import Finish
from drumbeat.agent.core.model import Exit
from drumbeat.agent.failures.error_file import read_error_file
from drumbeat.agent.model.messages import WorkerError
from drumbeat.agent.runtime.driver import cause_of, tell_launcher
from drumbeat.agent.session.session import desired_from
from drumbeat.v1 import failure_pb2, session_pb2

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


def error_of(*causes: failure_pb2.FailureRecord, is_success: bool = False) -> WorkerError | None:
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
    assert error_of(first, other) == CAUSE
    first.ClearField("message")
    first.ClearField("traceback")
    silent = WorkerError(message="rank 4 on node7 recorded no error", error_code=-11)
    assert error_of(first) == silent
    assert error_of() is None
    assert error_of(first, is_success=True) is None
