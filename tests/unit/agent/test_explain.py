"""Each way a worker can end badly, and the sentence about it."""

from __future__ import annotations

from signal import Signals
from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.agent.workers.failures.exit_status import (
    EXPLANATION_CHARACTERS_MAX,
    FULL_BYTES,
    FULL_INODES,
    Evidence,
    KernelLine,
    MemoryGroup,
    Space,
    describe_exit,
    describe_full,
    explain,
    out_of_memory,
    signal_within,
)
from drumbeat.agent.workers.memory.growth import LastMemory
from worker_sdk.interpreter.signal_numbers import INTERRUPTING

MIB = 1024 * 1024
PID = 77


def saw(**fields: Any) -> Evidence:
    return Evidence(exit_code=0, **fields)


def said(exit_code: int, evidence: Evidence | None = None, **fields: Any) -> str:
    return explain(replace(evidence or saw(), exit_code=exit_code, pid=PID, **fields))


def a_group(oom_kills: int | None, limit_hits: int | None = None) -> MemoryGroup:
    limit = 2048 * MIB
    return MemoryGroup(name="/job_7", oom_kills=oom_kills, limit_hits=limit_hits, limit_bytes=limit)


def a_kill(pid: int) -> KernelLine:
    text = f"Memory cgroup out of memory: Killed process {pid} (python)"
    return KernelLine(pid=pid, text=text, is_oom_kill=True)


def test_a_good_end_needs_no_word() -> None:
    assert said(0) == ""


def test_the_kernel_log_names_the_very_process() -> None:
    text = said(-9, saw(kernel_lines=(a_kill(5), a_kill(PID))))
    assert text.startswith("the kernel's out-of-memory killer ended it: ")
    assert "Killed process 77" in text


def test_a_risen_counter_of_the_cgroup_is_very_likely_it() -> None:
    assert said(-9, saw(memory=a_group(1))) == (
        "very likely the kernel's out-of-memory killer: it ended 1 process of cgroup /job_7 "
        "with its limit of 2.0 GiB since the round began"
    )
    # The log of the host numbers the processes of a container in its own way.
    text = said(-9, saw(memory=a_group(2), kernel_lines=(a_kill(90_001),)))
    assert "2 processes of cgroup" in text
    assert "Killed process 90001" in text


@pytest.mark.parametrize(
    "evidence",
    [
        saw(memory=a_group(0), host_oom_kills=3),
        saw(host_oom_kills=3, kernel_lines=()),
        saw(kernel_lines=(a_kill(1), a_kill(2), a_kill(3))),
    ],
)
def test_a_kill_elsewhere_on_the_host_is_perhaps_it(evidence: Evidence) -> None:
    text = said(-9, evidence)
    assert text.startswith("perhaps the kernel's out-of-memory killer: it ended 3 processes of")


def test_a_kill_tells_what_the_process_and_its_cgroup_used_last() -> None:
    last = LastMemory(
        resident_bytes=900 * MIB,
        ago_s=0.42,
        used_bytes=2000 * MIB,
        limit_bytes=2048 * MIB,
        is_cgroup=True,
    )
    seen = saw(memory=a_group(1), last_memory=last)
    assert said(-9, seen).endswith(
        "; 0.4 s before, its process used 900.0 MiB, and its cgroup 2.0 GiB of 2.0 GiB"
    )
    headline = "very likely ended by the kernel's out-of-memory killer, with 900.0 MiB of memory"
    assert out_of_memory(replace(seen, exit_code=-9, pid=PID)) == headline
    logged = replace(seen, exit_code=-9, pid=PID, kernel_lines=(a_kill(PID),))
    assert out_of_memory(logged) == headline.removeprefix("very likely ")


@pytest.mark.parametrize(
    "evidence",
    [
        saw(memory=a_group(0)),
        saw(host_oom_kills=3),
        saw(memory=a_group(1), is_stopped=True),
    ],
)
def test_a_kill_that_may_have_another_reason_is_not_called_out_of_memory(
    evidence: Evidence,
) -> None:
    assert out_of_memory(replace(evidence, exit_code=-9, pid=PID)) == ""


def test_an_old_kernel_only_tells_that_the_limit_was_hit() -> None:
    text = said(-9, saw(memory=a_group(None, limit_hits=40), host_oom_kills=0))
    assert text.startswith("perhaps the kernel's out-of-memory killer: cgroup /job_7")
    assert "hit its memory limit 40 times" in text


@pytest.mark.parametrize(
    "evidence",
    [
        saw(memory=a_group(0)),
        saw(memory=a_group(0, limit_hits=12)),  # reclaim goes on below every limit
        saw(host_oom_kills=0),
        saw(kernel_lines=()),
    ],
)
def test_no_sign_of_it_is_said_too(evidence: Evidence) -> None:
    text = said(-9, evidence)
    assert text.startswith("no sign of the kernel's out-of-memory killer: something else")


def test_what_could_not_be_looked_for_is_not_denied() -> None:
    text = said(-9)
    assert "no sign" not in text
    assert "does not let the agent see which" in text


def test_a_bus_error_tells_of_shared_memory() -> None:
    text = said(-7, saw(shared_memory=(64 * MIB, MIB)))
    assert "/dev/shm is full (64.0 MiB, of which 1.0 MiB are free now)" in text
    assert "that is small: give the container more with --shm-size" in text
    large = said(-7, saw(shared_memory=(2**36, 0)))
    assert "64.0 GiB" in large
    assert "small" not in large
    assert "--shm-size" in said(-7)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGBUS", "SIGTRAP"])
def test_a_crash_points_to_its_stacks_or_tells_how_to_get_them(name: str) -> None:
    code = -Signals[name]
    assert "stacks of that moment are in the traceback" in said(code, has_stacks=True)
    assert "put @record of worker_sdk" in said(code)
    assert "PYTHONFAULTHANDLER=1" in said(code)


def test_a_crash_comes_with_what_the_kernel_says_of_it() -> None:
    words = (
        KernelLine(pid=5, text="python[5]: segfault at 1", is_oom_kill=False),
        KernelLine(pid=PID, text="python[77]: segfault at 0", is_oom_kill=False),
    )
    text = said(-11, saw(kernel_lines=words))
    assert "the kernel says: 'python[77]: segfault at 0'" in text
    assert "[5]" not in text


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_that_was_not_ours_of_others_is_told_as_such(name: str) -> None:
    text = said(-Signals[name])
    assert text.startswith(f"something else sent {name}; it was not this agent")


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (-Signals.SIGPIPE, "pipe or socket that has no reader"),
        (-Signals.SIGXCPU, "ulimit -t"),
        (-Signals.SIGXFSZ, "ulimit -f"),
        (-Signals.SIGUSR1, "batch system's warning"),
        (-Signals.SIGSYS, "seccomp"),
        (-Signals.SIGALRM, "timer"),
        (-200, "signal 200 has no name"),
        (126, "could not run it"),
        (127, "did not find a command"),
        (255, "exit(-1)"),
        (1, "recorded none"),
        (2, "command line"),
        (42, "exit code 42 itself"),
        (200, "exit code 200 itself"),
    ],
)
def test_other_ends(exit_code: int, words: str) -> None:
    assert words in said(exit_code)


def test_a_code_that_a_shell_made_of_a_signal_is_explained_as_that_signal() -> None:
    killed = said(137, saw(memory=a_group(1)))
    assert killed.startswith("a shell or launcher in between tells of SIGKILL with exit code 137")
    assert "out-of-memory killer" in killed
    assert "SIGSEGV with exit code 139" in said(139)
    assert [signal_within(code) for code in (137, -9, 1, 128, 200)] == [9, 9, None, None, None]


def test_a_recorded_exception_needs_no_guess() -> None:
    assert said(1, has_error=True) == "the program raised an exception, see message"
    assert "@record" in said(1)


def test_a_script_that_is_gone_is_named() -> None:
    text = said(2, saw(missing_script="/job/train.py"))
    assert text.startswith("Python could not open /job/train.py: it is not there")
    assert "/job/train.py" not in said(1, saw(missing_script="/job/train.py"))


@pytest.mark.parametrize("exit_code", [-15, -9, 1, 143])
def test_a_victim_was_being_stopped(exit_code: int) -> None:
    evidence = saw(memory=a_group(1), missing_script="x")
    text = said(exit_code, evidence, is_stopped=True)
    assert text.startswith("its agent was stopping it")
    assert ("--shutdown-timeout" in text) == (exit_code == -9)


def test_every_explanation_is_one_bounded_line() -> None:
    word = KernelLine(pid=PID, text="x" * 10_000, is_oom_kill=True)
    evidence = saw(kernel_lines=(word,), missing_script="y" * 10_000)
    for code in range(-64, 256):
        text = said(code, evidence)
        assert bool(text) == (code != 0)
        assert len(text) <= EXPLANATION_CHARACTERS_MAX
        assert "\n" not in text


@pytest.mark.parametrize(
    ("free_bytes", "inodes", "is_full"),
    [
        (FULL_BYTES, FULL_INODES, False),
        (FULL_BYTES, None, False),
        (FULL_BYTES - 1, None, True),
        (2**40, FULL_INODES - 1, True),
    ],
)
def test_a_file_system_is_full_without_bytes_or_without_inodes(
    free_bytes: int, inodes: int | None, *, is_full: bool
) -> None:
    assert Space("/logs", free_bytes, inodes).is_full == is_full


def test_of_a_full_file_system_it_is_told_what_is_left() -> None:
    assert describe_full(Space("/logs", 0, 17)) == (
        "the file system of the log directory /logs is full: 0 bytes and 17 inodes free"
    )
    assert describe_full(Space("/logs", 1)).endswith("1 byte free")


@pytest.mark.parametrize("number", [INTERRUPTING[0], INTERRUPTING[-1]])
def test_a_signal_of_our_own_is_told_as_such(number: int) -> None:
    assert describe_exit(-number) == f"signal {number} of drumbeat"
    assert "drumbeat ended it" in said(-number)


def test_another_real_time_signal_is_not_ours() -> None:
    assert describe_exit(-(INTERRUPTING[-1] + 1)) == f"signal {INTERRUPTING[-1] + 1}"
    assert "something else sent it" in said(-(INTERRUPTING[-1] + 1))
