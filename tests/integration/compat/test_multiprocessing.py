"""Contexts with real workers: what they return, how they fail, and that nothing is left."""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest

from drumbeat.agent.multiprocessing import (
    DefaultLogsSpecs,
    MultiprocessContext,
    PContext,
    RunProcsResult,
    SignalException,
    Std,
    SubprocessContext,
    start_processes,
)
from tests.support import entrypoints
from tests.support.waiting import MS, wait_until_sync

METHODS = ["spawn", "fork", "forkserver"]
DEADLINE_S = 30_000 * MS
"""Far longer than anything here takes."""


@pytest.fixture(scope="module", autouse=True)
def _shared_processes() -> None:
    """Start what the standard library shares among all tests, lest one of them be blamed."""
    resource_tracker.ensure_running()
    forkserver.ensure_running()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., PContext]]:
    """Return `start_processes` for as many workers as there are arguments."""
    contexts: list[PContext] = []

    def begin(
        entrypoint: Callable[..., Any] | str,
        *args: tuple[Any, ...],
        redirects: Std | dict[int, Std] = Std.ALL,
        tee: Std = Std.NONE,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> PContext:
        context = start_processes(
            "worker",
            entrypoint,
            dict(enumerate(args)),
            {rank: dict(env or {}) for rank in range(len(args))},
            DefaultLogsSpecs(str(tmp_path / "logs"), redirects=redirects, tee=tee),
            **options,
        )
        contexts.append(context)
        return context

    yield begin
    for context in contexts:
        context.close(timeout=0)


def ended(context: PContext) -> RunProcsResult:
    result = context.wait(DEADLINE_S)
    assert result is not None, "not ended in time"
    return result


def sh(script: str) -> tuple[str, str]:
    return ("-c", script)


def read_pid(path: Path) -> int:
    return wait_until_sync(lambda: path.exists() and int(path.read_text() or 0), DEADLINE_S)


def is_gone(pid: int) -> bool:
    """Return whether it is dead; who inherits a zombie may take its time to reap it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def all_gone(pids: Iterable[int]) -> bool:
    return all(map(is_gone, pids))


@contextmanager
def launcher(body: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a launcher of its own, whose main module is a file as anybody's."""
    script = tmp_path / "launcher.py"
    imports = (
        "from drumbeat.agent.multiprocessing import *\nfrom tests.support import entrypoints\n"
    )
    script.write_text(
        f"import os, sys\nsys.path.insert(0, {str(Path.cwd())!r})\n{imports}"
        f"def main():\n    {body}\nif __name__ == '__main__':\n    main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        with process:
            yield process
    finally:
        process.kill()


@pytest.mark.parametrize("method", METHODS)
def test_functions_return_values_from_sessions_of_their_own(
    start: Callable[..., PContext], method: str
) -> None:
    context = start(
        entrypoints.describe, ("a",), ("b",), env={"DRUMBEAT_TEST": "set"}, start_method=method
    )
    assert isinstance(context, MultiprocessContext)
    pids = context.pids()
    result = ended(context)
    assert not result.is_failed()
    assert result.return_values == {
        rank: {
            "word": word,
            "pid": pids[rank],
            "session": pids[rank],
            "variable": "set",
            "sigterm": True,
        }
        for rank, word in enumerate("ab")
    }
    for rank, word in enumerate("ab"):
        assert Path(result.stdouts[rank]).read_text() == f"out of {word}\nchild of {word}\n"
        assert Path(result.stderrs[rank]).read_text() == f"err of {word}\n"
    assert all_gone(pids.values())
    assert "DRUMBEAT_TEST" not in os.environ


@pytest.mark.parametrize("method", METHODS)
def test_a_function_that_raises_stops_the_others(
    start: Callable[..., PContext], method: str
) -> None:
    context = start(entrypoints.fail_or_sleep, (False,), (True,), start_method=method)
    result = ended(context)
    assert list(result.failures) == [1]
    assert result.return_values == {}
    failure = result.failures[1]
    assert (failure.local_rank, failure.exitcode) == (1, 1)
    assert failure.pid == context.pids()[1]
    assert "as asked" in Path(failure.error_file).read_text()
    assert "ValueError: as asked" in Path(result.stderrs[1]).read_text()
    assert all_gone(context.pids().values())


def test_large_values_and_none_are_returned(start: Callable[..., PContext]) -> None:
    result = ended(start(entrypoints.make_bytes, (50_000_000,), (0,), start_method="fork"))
    assert {rank: len(value) for rank, value in result.return_values.items()} == {
        0: 50_000_000,
        1: 0,
    }
    assert ended(start(entrypoints.nothing, (), start_method="fork")).return_values == {0: None}


@pytest.mark.parametrize(
    ("function", "args", "exit_code", "words"),
    [
        (entrypoints.make_function, (), 1, "the return value, a function, cannot be pickled"),
        (entrypoints.take_awkward, (entrypoints.Awkward(),), 1, "not here"),
        (entrypoints.leave, (7,), 7, ""),
        (entrypoints.die, (signal.SIGKILL,), -signal.SIGKILL, ""),
        (entrypoints.die, (signal.SIGTERM,), -signal.SIGTERM, ""),
    ],
)
def test_a_function_can_fail_in_many_ways(
    start: Callable[..., PContext],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    exit_code: int,
    words: str,
) -> None:
    result = ended(start(function, args, start_method="forkserver"))
    assert result.failures[0].exitcode == exit_code
    if words:
        assert words in Path(result.failures[0].error_file).read_text()


def test_a_value_that_cannot_be_read_is_a_failure(start: Callable[..., PContext]) -> None:
    result = ended(start(entrypoints.make_awkward, (), start_method="fork"))
    assert list(result.failures) == [0]
    assert result.return_values == {}


def test_an_early_exit_with_0_is_a_success(start: Callable[..., PContext]) -> None:
    assert ended(start(entrypoints.leave, (0,), start_method="fork")).return_values == {0: None}


def test_what_cannot_be_sent_to_another_process_is_refused(start: Callable[..., PContext]) -> None:
    with pytest.raises(AttributeError, match="local object"):
        start(entrypoints.make_function(), (), start_method="spawn")


@pytest.mark.parametrize("method", METHODS)
def test_queues_can_be_handed_over(start: Callable[..., PContext], method: str) -> None:
    queue = multiprocessing.get_context(method).SimpleQueue()
    context = start(entrypoints.put, (queue, 1), (queue, 2), start_method=method)
    assert not ended(context).is_failed()
    assert {queue.get(), queue.get()} == {1, 2}
    queue.close()


def test_a_function_may_start_processes(start: Callable[..., PContext], tmp_path: Path) -> None:
    path = tmp_path / "done"
    assert not ended(
        start(entrypoints.start_process, (str(path),), start_method="spawn")
    ).is_failed()
    assert path.read_text() == "done"


@pytest.mark.parametrize("method", METHODS)
def test_a_function_may_be_a_launcher_itself(start: Callable[..., PContext], method: str) -> None:
    result = ended(start(entrypoints.run_nested, (), start_method=method))
    assert result.return_values == {0: "SIGTERM"}


@pytest.mark.parametrize("is_command", [False, True])
def test_what_ignores_sigterm_is_killed_after_the_timeout(
    start: Callable[..., PContext], tmp_path: Path, is_command: bool
) -> None:
    path = tmp_path / "pid"
    context = (
        start("sh", sh(entrypoints.IGNORES_SIGTERM.format(path=path)))
        if is_command
        else start(entrypoints.ignore_sigterm, (str(path),), start_method="fork")
    )
    pid = read_pid(path)
    assert context.pids() == {0: pid}
    began = time.monotonic()
    context.close(timeout=0.2)
    assert time.monotonic() - began >= 0.2
    assert is_gone(pid)
    assert ended(context).failures[0].exitcode == -signal.SIGKILL


@pytest.mark.parametrize("is_command", [False, True])
def test_what_a_worker_has_left_elsewhere_ends_with_the_context(
    start: Callable[..., PContext], tmp_path: Path, is_command: bool
) -> None:
    path = tmp_path / "pid"
    script = entrypoints.SLEEP_ELSEWHERE.format(path=path)
    context = (
        start("sh", sh(f"{script} while [ ! -e {path} ]; do sleep 0.01; done"))
        if is_command
        else start(entrypoints.leave_something, (str(path),), start_method="fork")
    )
    assert not ended(context).is_failed()
    assert is_gone(read_pid(path))


def test_commands_get_their_own_arguments_and_environment(start: Callable[..., PContext]) -> None:
    context = start(
        "sh", sh("echo $DRUMBEAT_TEST 0"), ("-c", "echo $0", [1, 2]), env={"DRUMBEAT_TEST": "x"}
    )
    assert isinstance(context, SubprocessContext)
    result = ended(context)
    assert result.return_values == {0: None, 1: None}
    assert [Path(result.stdouts[rank]).read_text() for rank in range(2)] == ["x 0\n", "[1, 2]\n"]


def test_those_that_were_stopped_because_of_a_command_have_not_failed(
    start: Callable[..., PContext],
) -> None:
    context = start("sh", sh("sleep 600"), sh("exit 3"))
    result = ended(context)
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {1: 3}
    assert result.return_values == {}
    assert context.wait(0) is result


def test_a_missing_program_is_named(start: Callable[..., PContext]) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program: there is no such program on P"):
        start("no-such-program", (), ())


def test_lines_are_shown_with_prefixes_and_selected(
    start: Callable[..., PContext], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    context = start(
        "sh",
        sh("echo loss 1; echo other; printf last >&2"),
        sh("echo loss 2"),
        tee=Std.ALL,
        log_line_prefixes={1: "one> "},
        duplicate_stdout_filters=["loss"],
    )
    assert not ended(context).is_failed()
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[worker0]:loss 1", "[worker0]:other", "one> loss 2"]
    assert err == "[worker0]:last\n"
    (filtered,) = (tmp_path / "logs").rglob("filtered_stdout.log")
    assert sorted(filtered.read_text().splitlines()) == ["[worker0]:loss 1", "one> loss 2"]
    assert not list((tmp_path / "logs").rglob("filtered_stderr.log"))


def test_a_stream_without_a_descriptor_is_written_to(
    start: Callable[..., PContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the standard output of a notebook may be."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    assert not ended(start("echo", ("hi",), tee=Std.OUT)).is_failed()
    assert stream.getvalue() == "[worker0]:hi\n"


def test_a_full_console_does_not_hold_up_the_result(
    start: Callable[..., PContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_fd, write_fd = os.pipe()
    with os.fdopen(write_fd, "w") as stream, os.fdopen(read_fd):  # the end of which ends all waits
        monkeypatch.setattr(sys, "stdout", stream)
        context = start("sh", sh("yes | head -c 1000000"), tee=Std.OUT)
        context._tail.stall_s = 0.1
        result = ended(context)
        monkeypatch.undo()
    assert Path(result.stdouts[0]).stat().st_size == 1_000_000


def test_a_signal_to_end_does_not_wait_for_a_full_console(
    start: Callable[..., PContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_fd, write_fd = os.pipe()
    with os.fdopen(write_fd, "w") as stream, os.fdopen(read_fd):  # the end of which ends all waits
        monkeypatch.setattr(sys, "stdout", stream)
        context = start("sh", sh("yes | head -c 1000000"), tee=Std.OUT)
        context._tail.stall_s = 100 * DEADLINE_S

        def end_launcher() -> None:
            wait_until_sync(lambda: context._tail._is_closing, DEADLINE_S)
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

        thread = threading.Thread(target=end_launcher)
        thread.start()
        with pytest.raises(SignalException):
            context.wait()
        thread.join()
        monkeypatch.undo()
    assert not ended(context).is_failed()


def test_waiting_ends_with_its_timeout(start: Callable[..., PContext], tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    context = start("cat", (str(go),))
    assert context.wait(0) is None
    assert context.wait(0.05) is None
    go.write_text("")
    assert not ended(context).is_failed()


def test_closing_twice_and_before_the_start_is_harmless(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path))
    context = SubprocessContext("worker", "sleep", {0: (600,)}, {0: {}}, specs)
    with pytest.raises(RuntimeError, match="not started"):
        context.wait(0)
    context.close()
    context.start()
    with pytest.raises(ValueError, match="started already"):
        context.start()
    context.close()
    context.close(signal.SIGKILL, 0)
    assert ended(context).failures[0].exitcode == -signal.SIGTERM


def test_the_given_signal_is_sent(start: Callable[..., PContext]) -> None:
    context = start("sleep", (600,))
    context.close(signal.SIGINT)
    assert ended(context).failures[0].exitcode == -signal.SIGINT


def test_closing_wakes_who_waits_in_another_thread(start: Callable[..., PContext]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    context = start("sleep", (600,), (600,))
    results: list[RunProcsResult | None] = []
    waiters = [threading.Thread(target=lambda: results.append(context.wait())) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    wait_until_sync(lambda: len(context._wakeups) == 3, DEADLINE_S)
    context.close()
    for waiter in waiters:
        waiter.join()
    assert len(results) == 3
    assert len({id(result) for result in results}) == 1
    assert signal.getsignal(signal.SIGTERM) == before  # whichever thread came first


@pytest.mark.slow
def test_a_launcher_may_have_many_threads(start: Callable[..., PContext]) -> None:
    values: dict[int, object] = {}

    def launch(number: int) -> None:
        method = METHODS[number % 3]
        context = start(entrypoints.make_bytes, (number,), (1,), start_method=method)
        values[number] = len(ended(context).return_values[0])
        values[number + 100] = ended(start("true", (), ())).return_values

    threads = [threading.Thread(target=launch, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {number: number for number in range(6)} | {
        number + 100: {0: None, 1: None} for number in range(6)
    }


def test_a_signal_to_end_becomes_an_exception(start: Callable[..., PContext]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    context, other = start("sleep", (600,)), start("sleep", (600,))
    assert signal.getsignal(signal.SIGTERM) != before

    def end_launcher() -> None:
        wait_until_sync(lambda: context._wakeups, DEADLINE_S)
        os.kill(os.getpid(), signal.SIGTERM)

    killer = threading.Thread(target=end_launcher)
    killer.start()
    with pytest.raises(SignalException, match="got SIGTERM") as caught:
        context.wait()
    killer.join()
    assert caught.value.sigval is signal.SIGTERM
    context.close(caught.value.sigval)
    assert ended(context).failures[0].exitcode == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) != before
    other.close()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_another_thread_takes_is_not_lost(start: Callable[..., PContext]) -> None:
    context = start("sleep", (600,))

    def end_launcher() -> None:
        wait_until_sync(lambda: context._wakeups, DEADLINE_S)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    killer = threading.Thread(target=end_launcher)
    began = time.monotonic()
    killer.start()
    with pytest.raises(SignalException, match="got SIGTERM"):
        context.wait(DEADLINE_S)
    killer.join()
    assert time.monotonic() - began < DEADLINE_S / 2


def test_a_dead_supervisor_takes_its_workers_with_it(start: Callable[..., PContext]) -> None:
    context = start("sleep", (600,), (600,))
    pids = context.pids()
    supervisor = psutil.Process(pids[0]).parent()
    assert supervisor is not None
    supervisor.kill()
    result = ended(context)
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {
        0: -signal.SIGKILL,
        1: -signal.SIGKILL,
    }
    wait_until_sync(lambda: all_gone(pids.values()), DEADLINE_S)


@pytest.mark.parametrize(
    "arguments",
    [
        "'sleep', {0: (600,)}, {0: {}}, specs",
        "entrypoints.fail_or_sleep, {0: [0], 1: [0]}, {0: {}, 1: {}}, specs, start_method='fork'",
        "entrypoints.fail_or_sleep, {0: [0]}, {0: {}}, specs",
    ],
)
@pytest.mark.parametrize("is_killed", [True, False])
def test_no_worker_outlives_its_launcher(tmp_path: Path, arguments: str, is_killed: bool) -> None:
    body = (
        f"specs = DefaultLogsSpecs(os.devnull); c = start_processes('w', {arguments}); "
        f"print(*c.pids().values(), flush=True); {'input()' if is_killed else ''}"
    )
    with launcher(body, tmp_path) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert pids
        if is_killed:
            process.kill()
        process.wait(DEADLINE_S)
    wait_until_sync(lambda: all_gone(pids), DEADLINE_S)
