"""The failure types of the Python API: torch's names, fields and text."""

import json
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drumbeat.agent.errors import AgentError, ChildFailedError, ProcessFailure
from worker_sdk.errors import ErrorHandler, record


def error_file(path: Path, *, timestamp: int, stack: str = "Traceback\n  line") -> str:
    extra = {"py_callstack": stack, "timestamp": str(timestamp)}
    path.write_text(json.dumps({"message": {"message": "ValueError: boom", "extraInfo": extra}}))
    return str(path)


def failure(path: str = "/no/such/file", *, exitcode: int = 1, pid: int = 7) -> ProcessFailure:
    return ProcessFailure(local_rank=1, pid=pid, exitcode=exitcode, error_file=path)


def test_the_error_file_is_read(tmp_path: Path) -> None:
    path = error_file(tmp_path / "e.json", timestamp=1_700_000_000)
    found = failure(path)
    assert found.error_file == path
    assert found.error_file_data == json.loads(Path(path).read_text())
    assert found.message == found.error_file_data["message"]
    assert found.timestamp == 1_700_000_000
    assert re.fullmatch(r"2023-11-1[45]_\d\d:\d\d:20", found.timestamp_isoformat())
    assert found.signal_name() == "<N/A>"


def test_a_plain_message_and_its_timestamp_are_read(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_text('{"message": "plain", "timestamp": 7}')
    found = failure(str(path))
    assert (found.message, found.timestamp) == ("plain", 7)


@pytest.mark.parametrize(
    ("exitcode", "name", "message"),
    [
        (-11, "SIGSEGV", "Signal 11 (SIGSEGV) received by PID 7"),
        (-200, "signal 200", "Signal 200 (signal 200) received by PID 7"),
        (1, "<N/A>", "none was recorded; put @record of worker_sdk on"),
    ],
)
def test_without_an_error_file_the_ending_is_told(exitcode: int, name: str, message: str) -> None:
    before = int(time.time())
    found = failure(exitcode=exitcode)
    assert found.error_file == "<N/A>"
    assert found.error_file_data == {"message": "<NONE>"}
    assert isinstance(found.message, str)
    assert found.message.startswith(message)
    assert found.signal_name() == name
    assert before <= found.timestamp <= time.time()


def test_the_stacks_of_a_crash_are_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    Path(f"{path}.faulthandler").write_text("Fatal Python error: Segmentation fault\n")
    assert failure(str(path), exitcode=-11).message == (
        "Signal 11 (SIGSEGV) received by PID 7\nFatal Python error: Segmentation fault"
    )


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"message": 1}',
        '{"message": {"extraInfo": {"timestamp": "9e99"}}}',
        '{"message": {"extraInfo": {"timestamp": "99999999999999"}}}',
        '{"message": {"extraInfo": 1}}',
    ],
)
def test_a_broken_error_file_still_makes_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_text(text)
    before = int(time.time())
    found = failure(str(path))
    assert before <= found.timestamp <= time.time()
    assert "trainer FAILED" in str(ChildFailedError("trainer", {0: found}))


def test_the_text_has_torchs_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    first = error_file(tmp_path / "1.json", timestamp=1_700_000_000)
    later = error_file(tmp_path / "2.json", timestamp=1_700_000_001, stack="Traceback two")
    error = ChildFailedError("train.py", {4: failure(later), 5: failure(first, exitcode=-11)})
    times = [found.timestamp_isoformat() for found in error.failures.values()]
    border, section = "=" * 60, "-" * 60
    assert (
        str(error)
        == f"""
{border}
train.py FAILED
{section}
Failures:
[0]:
  time      : {times[0]}
  host      : node7
  rank      : 4 (local_rank: 1)
  exitcode  : 1 (pid: 7)
  error_file: {later}
  traceback : Traceback two
{section}
Root Cause (first observed failure):
[1]:
  time      : {times[1]}
  host      : node7
  rank      : 5 (local_rank: 1)
  exitcode  : -11 (pid: 7) (SIGSEGV)
  error_file: {first}
  traceback : Traceback
    line
{border}"""
    )
    assert error.get_first_failure() == (5, error.failures[5])
    assert (error.name, list(error.failures)) == ("train.py", [4, 5])
    assert error.format_msg("#", "~").startswith(f"\n{'#' * 60}\ntrain.py FAILED\n{'~' * 60}\n")


def test_a_single_failure_has_no_others() -> None:
    text = str(ChildFailedError("a", {0: failure()}))
    assert "Failures:\n  <NO_OTHER_FAILURES>\n---" in text


def test_an_error_without_failures_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="needs one"):
        ChildFailedError("a", {})


def test_it_is_an_error_of_the_agent_and_survives_a_copy() -> None:
    error = ChildFailedError("a", {0: failure()})
    assert isinstance(error, AgentError)
    assert error.exit_code == 1
    copied = pickle.loads(pickle.dumps(error))
    assert str(copied) == str(error)
    assert copied.failures == error.failures


def test_the_errors_of_the_agent_are_loaded_without_it() -> None:
    code = (
        "import sys, drumbeat.agent.errors; "
        "assert 'drumbeat.agent.failures.process_failure' not in sys.modules; "
        "from drumbeat.agent.errors import ChildFailedError; "
        "assert 'google.protobuf' not in sys.modules and 'grpc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(ImportError):
        from drumbeat.agent.errors import Nothing  # type: ignore[attr-defined]  # noqa: F401


def test_record_hands_the_root_cause_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(own))
    first = error_file(tmp_path / "1.json", timestamp=1)
    later = error_file(tmp_path / "2.json", timestamp=2, stack="later")

    class Quiet(ErrorHandler):
        def initialize(self) -> None:
            """Leave pytest's fault handler alone."""

    @record(Quiet())
    def launch() -> None:
        failures = {0: failure(later), 1: failure(first, exitcode=-11)}
        raise ChildFailedError("train.py", failures)

    with pytest.raises(ChildFailedError):
        launch()
    expected = json.loads(Path(first).read_text())
    expected["message"]["errorCode"] = -11
    assert json.loads(own.read_text()) == expected
