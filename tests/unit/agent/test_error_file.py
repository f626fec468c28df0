"""What an agent makes of its workers' error files, whoever wrote them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from drumbeat.agent.workers.failures.error_file import (
    MESSAGE_BYTES_MAX,
    TRACEBACK_BYTES_MAX,
    read_error_file,
    read_faults,
    with_stacks,
)
from drumbeat.agent.workers.supervisor.messages import WorkerError
from drumbeat.coordinator.limits import Limits
from worker_sdk.errors import FILE_BYTES_MAX

RECORD_BYTES_MAX = Limits().failure_record_bytes_max * 0.9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "error.json"


def faults_of(path: Path, text: str) -> None:
    Path(f"{path}.faulthandler").write_text(text)


def test_no_file_and_an_empty_one_say_nothing(path: Path) -> None:
    assert read_error_file(path) is None
    path.touch()
    faults_of(path, "")
    assert read_error_file(path) is None


def test_all_of_torchs_fields_are_read(path: Path) -> None:
    extra = {"py_callstack": "Traceback", "timestamp": "1700000000"}
    message = {"message": "ValueError: boom", "errorCode": -11, "extraInfo": extra}
    path.write_text(json.dumps({"message": message}))
    assert read_error_file(path) == WorkerError(
        message="ValueError: boom",
        traceback="Traceback",
        error_code=-11,
    )


def test_a_plain_message_is_read_with_its_timestamp(path: Path) -> None:
    path.write_text(json.dumps({"message": "plain", "timestamp": 7}))
    assert read_error_file(path) == WorkerError(message="plain")


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("{", "(error file unreadable: it is not JSON)"),
        ('{"message": {"message": "cut o', "(error file unreadable: it is not JSON)"),
        ("\udcff", "(error file unreadable: it is not JSON)"),
        ("[" * 100_000, "(error file unreadable: it is not JSON)"),
        ("1" * 10_000, "(error file unreadable: it is not JSON)"),
        ("[]", "(error file unreadable: it is no JSON object)"),
        ("null", "(error file unreadable: it is no JSON object)"),
        ("{}", "(error file unreadable: it has no message)"),
        ('{"message": 1}', "(error file unreadable: it has no message)"),
        ('{"message": {"message": ["a"]}}', "(error file unreadable: it has no message)"),
        (
            "x" * (FILE_BYTES_MAX + 1),
            f"(error file unreadable: longer than {FILE_BYTES_MAX} bytes)",
        ),
    ],
)
def test_what_is_no_error_becomes_a_note(text: str, note: str, path: Path) -> None:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_error_file(path) == WorkerError(message=note)


def test_a_directory_and_a_pipe_become_notes(path: Path) -> None:
    os.mkfifo(path)
    assert read_error_file(path) == WorkerError(
        message="(error file unreadable: not a regular file)"
    )
    error = read_error_file(path.parent)
    assert error is not None
    assert error.message.startswith("(error file unreadable: ")


@pytest.mark.parametrize("value", [None, True, 1.5, "x", [], "9" * 30, 2**40, -(2**40)])
def test_numbers_that_are_none_are_left_out(value: object, path: Path) -> None:
    extra = {"py_callstack": 1, "timestamp": value}
    message = {"message": "m", "errorCode": value, "extraInfo": extra}
    path.write_text(json.dumps({"message": message}))
    assert read_error_file(path) == WorkerError(message="m")


def test_a_long_text_keeps_its_ends_without_lone_surrogates(path: Path) -> None:
    path.write_text(json.dumps({"message": "<\ud800" + "x" * 100_000 + ">"}))
    error = read_error_file(path)
    assert error is not None
    assert error.message.startswith("<\\ud800x")
    assert error.message.endswith("x>")
    assert len(error.message) < MESSAGE_BYTES_MAX + 100


CRASH = "Fatal Python error: Segmentation fault\n\n{threads}\n\nExtension modules: a (total: 1)\n"
OTHER = 'Thread 0x01 (most recent call first):\n  File "a.py", line 1 in wait'
CURRENT = 'Current thread 0x02 (most recent call first):\n  File "b.py", line 2 in crash'


def test_the_stacks_of_a_crash_are_the_traceback(path: Path) -> None:
    faults_of(path, CRASH.format(threads=f"{OTHER}\n\n{CURRENT}"))
    stacks = CRASH.format(threads=f"{CURRENT}\n\n{OTHER}").strip()
    assert with_stacks(read_error_file(path), read_faults(path)) == WorkerError(
        message="Fatal Python error: Segmentation fault", traceback=stacks
    )


def test_a_crash_after_an_error_is_told_after_it(path: Path) -> None:
    message = {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback\n"}}
    path.write_text(json.dumps({"message": message}))
    faults_of(path, "Fatal Python error: Aborted\n")
    assert with_stacks(read_error_file(path), read_faults(path)) == WorkerError(
        message="ValueError: boom", traceback="Traceback\n\nFatal Python error: Aborted"
    )


def test_an_error_and_a_crash_together_fit_into_a_failure_record(path: Path) -> None:
    extra = {"py_callstack": "<" + "é" * 40_000 + ">"}
    path.write_text(json.dumps({"message": {"message": "🥁" * 40_000, "extraInfo": extra}}))
    faults_of(path, "[" + "🥁" * 100_000 + "]")
    error = with_stacks(read_error_file(path), read_faults(path))
    assert error is not None
    assert error.traceback.startswith("<é")
    assert error.traceback.endswith("🥁]")
    assert len((error.message + error.traceback).encode()) < RECORD_BYTES_MAX


def test_the_stacks_of_many_threads_are_cut_and_the_crashed_one_kept(path: Path) -> None:
    threads = "\n\n".join([OTHER] * 20_000 + [CURRENT])
    faults_of(path, CRASH.format(threads=threads)[: FILE_BYTES_MAX * 2])
    assert len(read_faults(path)) < TRACEBACK_BYTES_MAX + 100
    middle = "\n\n".join([OTHER] * 500 + [CURRENT] + [OTHER] * 500)
    faults_of(path, CRASH.format(threads=middle))
    assert CURRENT in read_faults(path)


def test_stacks_that_are_no_text_or_no_file_do_no_harm(path: Path) -> None:
    faults = Path(f"{path}.faulthandler")
    faults.write_bytes(b"\xff\x00")
    assert read_faults(path) == "\ufffd\x00"
    faults.unlink()
    os.mkfifo(faults)
    assert read_faults(path) == ""
