"""What training code records of its own end, and what it never does to training."""

from __future__ import annotations

import json
import logging
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

import worker_sdk
from drumbeat.agent.failures.error_file import read_error_file
from worker_sdk import errors, record
from worker_sdk.errors import (
    FILE_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    STACK_BYTES_MAX,
    ErrorHandler,
    get_error_handler,
)


class QuietHandler(ErrorHandler):
    """The default handler, without the fault handler, which here is pytest's."""

    def initialize(self) -> None:
        """Do nothing."""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    monkeypatch.setattr(errors, "_owners", {})
    return path


def inner(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    assert list(content) == ["message"]
    message: dict[str, Any] = content["message"]
    return message


def recorded(error: BaseException, path: Path) -> dict[str, Any]:
    """Record ``error`` as an entry point would that raises it."""

    @record(QuietHandler())
    def main() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        main()
    assert raised.value is error
    return inner(path)


def test_the_result_passes_through_and_nothing_is_written(path: Path) -> None:
    @record
    def plain(a: int, *, b: int) -> int:
        """Add."""
        return a + b

    plain_handler = QuietHandler()
    assert record(lambda: 1, plain_handler)() == 1
    assert record(error_handler=plain_handler)(lambda: 2)() == 2
    assert record(plain_handler)(lambda: 3)() == 3
    assert (plain.__name__, plain.__doc__) == ("plain", "Add.")
    assert not path.exists()


def test_an_error_is_recorded_in_torchs_format_and_raised_on(path: Path) -> None:
    message = recorded(ValueError("boom"), path)
    assert list(message) == ["message", "extraInfo"]
    assert message["message"] == "ValueError: boom"
    extra = message["extraInfo"]
    assert list(extra) == ["py_callstack", "timestamp"]
    assert extra["py_callstack"].startswith("Traceback (most recent call last):\n")
    assert extra["py_callstack"].endswith("\nValueError: boom\n")
    assert "in main" in extra["py_callstack"]
    assert isinstance(extra["timestamp"], str)
    assert abs(int(extra["timestamp"]) - path.stat().st_mtime) <= 2
    assert [file.name for file in path.parent.iterdir()] == ["error.json"]


@pytest.mark.parametrize("code", [0, False])
def test_an_exit_with_0_becomes_a_result(code: int, path: Path) -> None:
    @record(QuietHandler())
    def main() -> None:
        raise SystemExit(code)

    assert main() is None
    assert not path.exists()


@pytest.mark.parametrize(
    "error", [SystemExit(), SystemExit(3), SystemExit("why"), KeyboardInterrupt()]
)
def test_another_exit_and_an_interrupt_pass_unrecorded(error: BaseException, path: Path) -> None:
    """As with torch."""

    @record(QuietHandler())
    def main() -> None:
        raise error

    with pytest.raises(type(error)):
        main()
    assert not path.exists()


def test_an_exit_does_not_hide_the_error_before_it(path: Path) -> None:
    recorded(ValueError("why"), path)
    assert recorded(SystemExit(1), path)["message"] == "ValueError: why"
    assert recorded(OSError("later"), path)["message"] == "OSError: later"


class Hostile(Exception):
    def __init__(self, problem: BaseException) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        raise self.problem


@pytest.mark.parametrize("problem", [ZeroDivisionError(), RecursionError(), SystemExit(4)])
def test_a_message_that_raises_is_named(problem: BaseException, path: Path) -> None:
    message = recorded(Hostile(problem), path)
    name = type(problem).__name__
    assert message["message"] == f"Hostile: (its message is not available: {name})"
    assert "in main" in message["extraInfo"]["py_callstack"]


@pytest.mark.parametrize("text", ["x", "\x00", "é", "🥁", "\udcff"])
def test_a_huge_message_keeps_its_ends_and_the_agent_can_read_it(text: str, path: Path) -> None:
    message = recorded(ValueError("<" + text * 3_000_000 + ">"), path)
    assert message["message"].startswith("ValueError: <")
    assert message["message"].endswith(">")
    assert "(left out)" in message["message"]
    assert len(message["message"].encode()) <= MESSAGE_BYTES_MAX
    assert len(message["extraInfo"]["py_callstack"].encode()) <= STACK_BYTES_MAX
    assert "in main" in message["extraInfo"]["py_callstack"]
    assert path.stat().st_size <= FILE_BYTES_MAX
    error = read_error_file(path)
    assert error is not None
    assert error.message.startswith("ValueError: <")


def test_lone_surrogates_are_written_out(path: Path) -> None:
    assert recorded(ValueError("a\udc80b"), path)["message"] == "ValueError: a\\udc80b"


def test_a_recursion_error_is_recorded(path: Path) -> None:
    def deeper(n: int) -> int:
        return other(n + 1)

    def other(n: int) -> int:
        return deeper(n + 1)

    @record(QuietHandler())
    def main() -> int:
        return deeper(0)

    with pytest.raises(RecursionError):
        main()
    message = inner(path)
    assert message["message"].startswith("RecursionError: maximum recursion depth")
    assert len(message["extraInfo"]["py_callstack"].encode()) <= STACK_BYTES_MAX


def test_a_group_and_a_cause_are_recorded_whole(path: Path) -> None:
    group = ExceptionGroup("several", [ValueError("one"), TypeError("two")])
    group.__cause__ = OSError("the disk")
    message = recorded(group, path)
    assert message["message"] == "ExceptionGroup: several (2 sub-exceptions)"
    for text in ("ValueError: one", "TypeError: two", "OSError: the disk"):
        assert text in message["extraInfo"]["py_callstack"]


def test_an_error_of_another_thread_is_recorded(path: Path) -> None:
    @record(QuietHandler())
    def main() -> None:
        raise ValueError("in a thread")

    def body() -> None:
        with pytest.raises(ValueError, match="in a thread"):
            main()

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert inner(path)["message"] == "ValueError: in a thread"


def test_without_an_error_file_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    get_error_handler().record_exception(ValueError("boom"))


def test_a_directory_that_a_cleaner_removed_is_made_again_for_this_user_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error_file = path.parent / "gone" / "0" / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(error_file))

    @record(QuietHandler())
    def main() -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        main()
    assert "boom" in error_file.read_text()
    modes = [folder.stat().st_mode & 0o777 for folder in error_file.parents[:2]]
    assert modes == [0o700, 0o700]


def test_a_file_that_cannot_be_written_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path.touch()
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path / "no" / "such"))

    @record(QuietHandler())
    def main() -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"), caplog.at_level(logging.WARNING):
        main()
    assert "could not be written" in caplog.text


def test_a_pipe_that_nobody_reads_holds_nothing_up(path: Path) -> None:
    os.mkfifo(path)
    get_error_handler().record_exception(ValueError("boom"))
    assert path.is_fifo()


def test_a_file_that_cannot_be_replaced_is_overwritten(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("what was there, and longer " * 100)

    def refuse(*_: object) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr("os.replace", refuse)
    get_error_handler().record_exception(ValueError("boom"))
    assert inner(path)["message"] == "ValueError: boom"
    assert [file.name for file in path.parent.iterdir()] == ["error.json"]


def test_a_link_stays_a_link(path: Path) -> None:
    path.symlink_to("elsewhere.json")
    get_error_handler().record_exception(ValueError("boom"))
    assert path.is_symlink()
    assert inner(path)["message"] == "ValueError: boom"


def test_a_handler_of_ones_own_is_asked_and_cannot_hide_the_error(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[object] = []

    class Own(ErrorHandler):
        def initialize(self) -> None:
            seen.append("initialize")

        def record_exception(self, e: BaseException) -> None:
            seen.append(e)
            raise RuntimeError("in the handler")

    @record(Own())
    def main() -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom") as raised:
        main()
    assert seen == ["initialize", raised.value]
    assert not path.exists()
    assert "could not be recorded" in caplog.text


def test_a_forked_child_leaves_the_file_to_its_parent(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the table that a child inherits names another process."""
    monkeypatch.setattr(errors, "_owners", {str(path): os.getppid()})
    get_error_handler().record_exception(ValueError("of a child"))
    assert not path.exists()
    own = path.with_name("own.json")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(own))
    get_error_handler().record_exception(ValueError("with a file of its own"))
    assert own.exists()


def test_a_launchers_error_is_replaced_by_its_childs(path: Path) -> None:
    child = path.with_name("child.json")
    child.write_text(json.dumps({"message": {"message": "ValueError: child", "extraInfo": {}}}))
    message = recorded(ChildFailed(child, exitcode=-11), path)
    assert message == {"message": "ValueError: child", "extraInfo": {}, "errorCode": -11}


class ChildFailed(Exception):
    """What is like torch's ``ChildFailedError``, and not of our making."""

    def __init__(self, path: Path | str, exitcode: int) -> None:
        super().__init__("trainer FAILED")
        self.error_file = str(path)
        self.exitcode = exitcode
        self.error_file_data: object = None

    def get_first_failure(self) -> tuple[int, ChildFailed]:
        return 0, self


def test_a_child_whose_error_file_is_elsewhere_is_recorded_all_the_same(path: Path) -> None:
    error = ChildFailed("<N/A>", exitcode=7)
    error.error_file_data = {"message": {"message": "ValueError: far away", "extraInfo": {}}}
    message = recorded(error, path)
    assert message == {"message": "ValueError: far away", "extraInfo": {}, "errorCode": 7}
    error.error_file_data = {"message": "<NONE>"}
    assert recorded(error, path)["message"] == "ChildFailed: trainer FAILED"


def test_the_innermost_exit_code_stays(path: Path) -> None:
    child = path.with_name("child.json")
    child.write_text(json.dumps({"message": {"message": "m", "errorCode": 3, "extraInfo": {}}}))
    assert recorded(ChildFailed(child, exitcode=1), path)["errorCode"] == 3


def test_a_child_without_an_error_file_leaves_its_exit_code(path: Path) -> None:
    message = recorded(ChildFailed("<N/A>", exitcode=-9), path)
    assert message["message"] == "ChildFailed: trainer FAILED"
    assert message["errorCode"] == -9


@pytest.mark.parametrize("text", [None, "", "{", "[]", "x" * (FILE_BYTES_MAX + 1), "[" * 100_000])
def test_a_childs_unreadable_error_file_becomes_a_note(text: str | None, path: Path) -> None:
    child = path.with_name("child.json")
    if text is not None:
        child.write_text(text)
    message = recorded(ChildFailed(child, exitcode=5), path)
    assert message["message"].startswith(f"(the error file {child} cannot be read: ")
    assert message["errorCode"] == 5


@pytest.mark.parametrize("content", [{"message": "plain", "timestamp": 1}, {"other": 1}])
def test_a_content_without_a_place_for_the_code_is_copied_as_it_is(
    content: dict[str, object], path: Path
) -> None:
    child = path.with_name("child.json")
    child.write_text(json.dumps(content))
    get_error_handler().dump_error_file(str(child), 5)
    assert json.loads(path.read_text()) == content


def test_nowhere_to_copy_is_logged(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    path.write_text("{}")
    get_error_handler().dump_error_file(str(path))
    assert "nowhere to copy" in caplog.text
    assert path.read_text() == "{}"


def test_the_code_in_a_root_causes_data_is_overridden() -> None:
    content: dict[str, Any] = {"message": {"message": "m", "errorCode": 1}}
    get_error_handler().override_error_code_in_rootcause_data("file", content, 2)
    assert content == {"message": {"message": "m", "errorCode": 2}}


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = worker_sdk.nothing_like_it  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(worker_sdk.record)) is record


def test_no_standard_error_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    errors.enable_faults(None)
    assert "no stacks will be written" in caplog.text
