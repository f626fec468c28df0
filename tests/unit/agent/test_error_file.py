"""What an agent makes of its workers' error files, whoever wrote them."""

import json
import os
from pathlib import Path

import pytest

from drumbeat.agent.failures.error_file import (
    MESSAGE_BYTES_MAX,
    TRACEBACK_BYTES_MAX,
    read_error_file,
    read_faults,
    with_stacks,
)
from drumbeat.agent.model.messages import WorkerError
from drumbeat.coordinator.limits import Limits
from worker_sdk.errors import FILE_BYTES_MAX

RECORD_BYTES_MAX = Limits().failure_record_bytes_max * 0.9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "error.json"


def faults_of(path: Path, text: str) -> None:
    Path(f"{path}.faulthandler").write_text(text)


NOT_JSON = "it is not JSON"
NO_MESSAGE = "it has no message"


def read(path: Path) -> WorkerError:
    error = read_error_file(path)
    assert error is not None
    return error


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


@pytest.mark.torch
def test_what_torch_itself_writes_is_understood(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))

    @handlers.record  # type: ignore[untyped-decorator]
    def train() -> None:
        raise ValueError("the loss is not a number")

    with pytest.raises(ValueError, match="the loss"):
        train()
    error = read(path)
    assert "the loss is not a number" in error.message
    assert "in train" in error.traceback


def test_a_plain_message_is_read_with_its_timestamp(path: Path) -> None:
    path.write_text(json.dumps({"message": "plain", "timestamp": 7}))
    assert read(path) == WorkerError(message="plain")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", NOT_JSON),
        (b'{"message": {"message": "cut o', NOT_JSON),
        (b"\x00\xff\xfe binary \x80", NOT_JSON),
        (b"[" * 500_000, NOT_JSON),
        (b'{"message":' * 50_000, NOT_JSON),
        (b"1" * 10_000, NOT_JSON),
        (b"[]", "it is no JSON object"),
        (b"null", "it is no JSON object"),
        (b'"text"', "it is no JSON object"),
        (b"{}", NO_MESSAGE),
        (b'{"message": 1}', NO_MESSAGE),
        (b'{"message": {"message": ["a"]}}', NO_MESSAGE),
        (b"x" * (FILE_BYTES_MAX + 1), f"longer than {FILE_BYTES_MAX} bytes"),
    ],
)
def test_what_is_no_error_becomes_a_note(content: bytes, why: str, path: Path) -> None:
    path.write_bytes(content)
    assert read(path) == WorkerError(message=f"(error file unreadable: {why})")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["fifo", "directory", "loop", "device", "dangling", "terabyte"])
def test_what_is_no_file_of_a_worker_neither_blocks_nor_breaks(path: Path, kind: str) -> None:
    match kind:
        case "fifo":
            os.mkfifo(path)  # a plain open would wait for a writer for ever
        case "directory":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "device":
            path.symlink_to("/dev/zero")  # never ends
        case "dangling":
            path.symlink_to(path.with_name("nowhere"))
        case "terabyte":
            path.touch()
            os.truncate(path, 1 << 40)  # sparse: it takes no room
    if kind == "dangling":
        assert read_error_file(path) is None
    else:
        assert read(path).message.startswith("(error file unreadable: ")


@pytest.mark.parametrize("value", [None, True, 1.5, "x", [], {}, "9" * 30, 2**40, -(2**40)])
def test_numbers_that_are_none_are_left_out(value: object, path: Path) -> None:
    extra = {"py_callstack": 7 if isinstance(value, str) else value, "timestamp": value}
    message = {"message": "m", "errorCode": value, "extraInfo": extra}
    path.write_text(json.dumps({"message": message}))
    assert read_error_file(path) == WorkerError(message="m")


def test_long_texts_keep_their_ends_without_lone_surrogates(path: Path) -> None:
    extra = {"py_callstack": "(" + "y" * 300_000 + ")"}
    message = {"message": "<\ud800" + "x" * 100_000 + ">", "extraInfo": extra}
    path.write_text(json.dumps({"message": message}))
    error = read(path)
    assert error.message.startswith("<\\ud800x")
    assert error.message.endswith("x>")
    assert "left out" in error.message
    assert (error.traceback[0], error.traceback[-1]) == ("(", ")")
    room = 100  # for the words in the middle
    assert len(error.message) <= MESSAGE_BYTES_MAX + room
    assert len(error.traceback) <= TRACEBACK_BYTES_MAX + room


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
