"""What a worker may leave in its error file, and what the agent makes of it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from drumbeat.agent.workers.failures.error_file import (
    MESSAGE_BYTES_MAX,
    TRACEBACK_BYTES_MAX,
    read_error_file,
)
from drumbeat.agent.workers.supervisor.messages import WorkerError
from worker_sdk.errors import FILE_BYTES_MAX

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "error.json"


def torch_error(message: str, stack: object = "Traceback: boom") -> dict[str, object]:
    extra = {"py_callstack": stack, "timestamp": "1690000000"}
    return {"message": {"message": message, "errorCode": 1, "extraInfo": extra}}


def test_a_worker_that_left_nothing_has_no_error(path: Path) -> None:
    assert read_error_file(path) is None
    path.write_bytes(b"")
    assert read_error_file(path) is None


def test_the_format_of_torch_is_understood(path: Path) -> None:
    path.write_text(json.dumps(torch_error("ValueError: no \u2603 today")))
    assert read_error_file(path) == WorkerError(
        message="ValueError: no \u2603 today",
        traceback="Traceback: boom",
        error_code=1,
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
    error = read_error_file(path)
    assert error is not None
    assert "the loss is not a number" in error.message
    assert "in train" in error.traceback


def test_a_plain_message_is_taken_as_it_is(path: Path) -> None:
    path.write_text('{"message": "out of memory"}')
    assert read_error_file(path) == WorkerError(message="out of memory")


@pytest.mark.parametrize("stack", [None, 7, ["a"], {}])
def test_a_call_stack_of_another_kind_is_left_out(path: Path, stack: object) -> None:
    path.write_text(json.dumps(torch_error("boom", stack)))
    assert read_error_file(path) == WorkerError(message="boom", error_code=1)


@pytest.mark.parametrize(
    "content",
    ["7", "null", "[]", '"text"', "{}", '{"message": 7}', '{"message": {"message": null}}'],
)
def test_json_without_a_message_becomes_a_note(path: Path, content: str) -> None:
    path.write_text(content)
    error = read_error_file(path)
    assert error is not None
    assert error.message.startswith("(error file unreadable: it ")


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(torch_error("boom")).encode()[:-5],  # the worker was killed while it wrote
        b"{",
        b"\x00\xff\xfe binary \x80",
        b"\xff" * 10_000,
        b"[" * 500_000,  # deeper than any parser goes
        b'{"message":' * 50_000,
    ],
    ids=["truncated", "begun", "binary", "not UTF-8", "deep list", "deep object"],
)
def test_what_is_not_json_becomes_a_note(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read_error_file(path) == WorkerError(message="(error file unreadable: it is not JSON)")


def test_a_huge_file_is_not_read(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: a terabyte that takes no room
    error = read_error_file(path)
    assert error is not None
    assert f"longer than {FILE_BYTES_MAX} bytes" in error.message


def test_long_texts_keep_their_beginning_and_their_end(path: Path) -> None:
    path.write_text(json.dumps(torch_error("<" + "x" * 300_000 + ">", "(" + "y" * 300_000 + ")")))
    error = read_error_file(path)
    assert error is not None
    assert (error.message[0], error.message[-1]) == ("<", ">")
    assert (error.traceback[0], error.traceback[-1]) == ("(", ")")
    assert "left out" in error.message
    room = 100  # for the words in the middle
    assert len(error.message) <= MESSAGE_BYTES_MAX + room
    assert len(error.traceback) <= TRACEBACK_BYTES_MAX + room


def test_half_a_character_can_still_be_sent(path: Path) -> None:
    path.write_text('{"message": "half \\ud800 of one"}')
    error = read_error_file(path)
    assert error is not None
    assert error.message.encode("utf-8").startswith(b"half ")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["fifo", "directory", "loop", "device", "dangling"])
def test_what_is_no_file_neither_blocks_nor_breaks(path: Path, kind: str) -> None:
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
    error = read_error_file(path)
    if kind == "dangling":
        assert error is None
    else:
        assert error is not None
        assert error.message.startswith("(error file unreadable: ")
