"""Patterns in the output of workers, with real threads, files and pipes."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from drumbeat.agent.core.watchdog.model import FatalLine, Snapshot, WorkerKey
from drumbeat.agent.model.hang import Purpose
from drumbeat.agent.settings.kinds import OutputPattern
from drumbeat.agent.workers.output import rules as module
from drumbeat.agent.workers.output.destination import PENDING_BYTES_MAX
from drumbeat.agent.workers.output.rules import FATAL_CHARACTERS_MAX, TIMEOUTS_MAX, OutputRules
from drumbeat.agent.workers.output.tail import Tail
from tests.support.waiting import MS, wait_until_sync

KEY, OTHER = WorkerKey(0, 0), WorkerKey(0, 1)
DEADLINE_S = 20_000 * MS
STEP, SAVED, ERROR = (
    OutputPattern(r"step \d+", 60.0),
    OutputPattern("saved", 600.0),
    OutputPattern("CUDA error"),
)
SLOW = OutputPattern(r"(a+)+$", 60.0)
HOSTILE = b"a" * 3000 + b"b\n"


@pytest.fixture
def make() -> Iterator[Callable[..., OutputRules]]:
    made: list[OutputRules] = []

    def make(*patterns: OutputPattern) -> OutputRules:
        made.append(OutputRules(patterns))
        return made[-1]

    yield make
    for rules in made:
        rules.close()


def read(rules: OutputRules, key: WorkerKey = KEY) -> Snapshot:
    return rules.added_to(None, key) or Snapshot()


def matched(rules: OutputRules, key: WorkerKey = KEY) -> dict[str, float]:
    """When each pattern has matched in the output of a worker."""
    return {slot.name: slot.since for slot in read(rules, key).slots}


def fatal(rules: OutputRules, key: WorkerKey = KEY) -> FatalLine | None:
    return read(rules, key).fatal_line


def until_matched(rules: OutputRules, name: str = STEP.regex) -> float:
    wait_until_sync(lambda: name in matched(rules), DEADLINE_S)
    return matched(rules)[name]


def test_a_match_is_known_from_the_moment_its_line_came(make: Callable[..., OutputRules]) -> None:
    rules = make(STEP, SAVED, ERROR)
    stdout, stderr = rules.add(KEY), rules.add(KEY)
    rules.add(OTHER)
    before = time.monotonic()
    stdout(b"loading\nste")
    assert read(rules) == Snapshot()
    stderr(b"saved\n")
    stdout(b"p 1\n")
    since = until_matched(rules)
    assert before <= since <= time.monotonic()
    slots = read(rules).slots
    assert [(slot.name, slot.limit_s) for slot in slots] == [("saved", 600.0), (r"step \d+", 60.0)]
    assert {slot.purpose for slot in slots} == {Purpose.OUTPUT}
    assert all(slot.deadline == slot.since + float(slot.limit_s or 0) for slot in slots)
    assert rules.added_to(None, OTHER) is None
    stdout(b"step 2\n")
    wait_until_sync(lambda: matched(rules)[STEP.regex] > since, DEADLINE_S)
    rules.begin()
    assert rules.added_to(None, KEY) is None


def test_a_board_keeps_what_it_says(make: Callable[..., OutputRules]) -> None:
    rules = make(STEP)
    board = Snapshot(owner_pid=7, step=3)
    assert rules.added_to(board, KEY) is board
    rules.add(KEY)(b"step 1\n")
    until_matched(rules)
    snapshot = rules.added_to(board, KEY)
    assert snapshot is not None
    assert (snapshot.owner_pid, snapshot.step, len(snapshot.slots)) == (7, 3, 1)


def test_the_first_fatal_line_is_told_once(make: Callable[..., OutputRules]) -> None:
    rules, told = make(STEP, ERROR), list[WorkerKey]()
    rules.on_fatal = told.append
    stream = rules.add(KEY)
    stream(b"fine\nCUDA error: first\nCUDA error: second\n")
    stream(b"CUDA error: third " + b"x" * 4000 + b"\nstep 1\n")
    until_matched(rules)
    line = fatal(rules)
    assert line is not None
    assert (line.pattern, line.line) == ("CUDA error", "CUDA error: first")
    assert told == [KEY]
    rules.add(OTHER)(b"CUDA error " + b"x" * 4000 + b"\n")
    wait_until_sync(lambda: told == [KEY, OTHER], DEADLINE_S)
    line = fatal(rules, OTHER)
    assert line is not None
    assert len(line.line) == FATAL_CHARACTERS_MAX


def test_a_pattern_that_takes_for_ever_holds_nothing_up(make: Callable[..., OutputRules]) -> None:
    """Neither this thread nor, for long, other patterns; after some such lines it is given up."""
    rules = make(SLOW, STEP)
    stream = rules.add(KEY)
    gaps, is_done = list[float](), threading.Event()

    def tick() -> None:
        latest = time.monotonic()
        while not is_done.wait(0.005):
            now = time.monotonic()
            gaps.append(now - latest)
            latest = now

    with capture_logs() as logs:
        ticking = threading.Thread(target=tick)
        ticking.start()
        try:
            stream(b"aaa\n")
            until_matched(rules, SLOW.regex)
            stream(HOSTILE * (2 * TIMEOUTS_MAX) + b"step 1\n")
            until_matched(rules)
        finally:
            is_done.set()
            ticking.join()
    assert max(gaps) < 500 * MS, "the thread of a search keeps the interpreter from others"
    assert [line["event"] for line in logs] == ["pattern is slow", "pattern given up"]
    assert matched(rules).keys() == {STEP.regex}, "no worker hangs by a pattern that was given up"


def test_a_line_that_took_too_long_may_have_matched(make: Callable[..., OutputRules]) -> None:
    rules = make(SLOW)
    stream = rules.add(KEY)
    stream(b"aaa\n")
    since = until_matched(rules, SLOW.regex)
    stream(HOSTILE)
    wait_until_sync(lambda: matched(rules)[SLOW.regex] > since, DEADLINE_S)


def test_a_flood_is_bounded_counted_and_is_no_hang(
    make: Callable[..., OutputRules], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUED_BYTES_MAX", 1000)
    rules = make(STEP, ERROR)
    stream = rules.add(KEY)
    stream(b"step 1\n")
    since = until_matched(rules)
    with capture_logs() as logs:
        stream(b"CUDA error\n" * 100)
        assert matched(rules)[STEP.regex] > since, "what was left out may have matched"
        stream(b" is the end of a line that is not whole, CUDA error\nCUDA is fine\n")
        wait_until_sync(lambda: bool(logs), DEADLINE_S)
    assert "100 lines were left out" in logs[0]["reason"]
    stream(b"step 2\n")
    wait_until_sync(lambda: not rules._queue, DEADLINE_S)
    assert fatal(rules) is None


def test_the_number_of_lines_left_out_is_logged_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "QUEUED_BYTES_MAX", 10)
    with capture_logs() as logs, closing(OutputRules([STEP])) as rules:
        stream = rules.add(KEY)
        stream(b"x\n" * 50)
        stream(b"x\n")
        wait_until_sync(lambda: len(logs) == 1, DEADLINE_S)
        stream(b"x\n" * 70)
    assert [line["reason"].split("; ")[1] for line in logs] == [
        "50 lines were left out",
        "70 lines were left out",
    ]


def test_what_waits_to_be_matched_may_match(make: Callable[..., OutputRules]) -> None:
    rules = make(SLOW, STEP)
    stream = rules.add(KEY)
    stream(b"step 1\n")
    since = until_matched(rules)
    rules.add(OTHER)(HOSTILE * (TIMEOUTS_MAX - 2))
    stream(b"something else\n")
    assert matched(rules)[STEP.regex] > since
    wait_until_sync(lambda: matched(rules)[STEP.regex] == since, DEADLINE_S)


def test_close_does_not_wait_for_what_is_queued() -> None:
    rules = OutputRules([OutputPattern("(a+)+$")])
    rules.add(KEY)(HOSTILE * 2000)
    began = time.monotonic()
    rules.close()
    assert time.monotonic() - began < 2_000 * MS


def test_a_file_is_read_from_now_on_and_with_no_console(
    make: Callable[..., OutputRules], tmp_path: Path
) -> None:
    rules, path = make(STEP, ERROR), tmp_path / "stdout.log"
    path.write_bytes(b"CUDA error of an earlier round\n")
    with closing(Tail()) as tail:
        tail.add_reader(str(path), rules.add(KEY))
        with path.open("ab", buffering=0) as file:
            file.write(b"\r 5%\r 10% step 1\r")
            since = until_matched(rules)
        path.write_bytes(b"step 2\n")  # emptied, as by logrotate
        wait_until_sync(lambda: matched(rules)[STEP.regex] > since, DEADLINE_S)
    assert fatal(rules) is None


def test_output_that_a_console_holds_up_is_no_hang(
    make: Callable[..., OutputRules], tmp_path: Path
) -> None:
    """Who stops a terminal with Ctrl-S has no training killed."""
    rules, (reader, console) = make(STEP), os.pipe()
    tail = Tail(stall_s=0.0)
    try:
        pipe = tail.add_pipe(str(tmp_path / "out"), console, is_shown=True)
        pipe.on_chunk = rules.add(KEY, pipe.has_unread)
        with Path(pipe.path).open("wb", buffering=0) as worker:
            worker.write(b"step 1\n")
            since = until_matched(rules)
            block = (b"x" * 999 + b"\n") * 64

            def write() -> None:
                worker.writelines([block] * (3 * PENDING_BYTES_MAX // len(block)))

            writing = threading.Thread(target=write)
            writing.start()
            (shown_at,) = pipe.destinations
            wait_until_sync(lambda: shown_at.is_full and pipe.has_unread(), DEADLINE_S)
            later = matched(rules)[STEP.regex]
            assert matched(rules)[STEP.regex] > later, "as long as something waits to be read"
            left = len(b"step 1\n") + 3 * PENDING_BYTES_MAX // len(block) * len(block)
            while left:
                left -= len(os.read(reader, 1 << 20))
            writing.join()
            wait_until_sync(lambda: matched(rules)[STEP.regex] == since, DEADLINE_S)
    finally:
        tail.close()
        os.close(reader)
        os.close(console)
