"""Each way a worker can end badly, and the sentence about it.

The sentences are in ``explanations.txt``; the option ``--rewrite`` writes them anew.
"""

from collections.abc import Iterator
from pathlib import Path
from signal import Signals
from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.agent.failures.exit_status import (
    EXPLANATION_CHARACTERS_MAX,
    FULL_BYTES,
    FULL_INODES,
    ExitEvidence,
    KernelLine,
    Space,
    describe_exit,
    describe_full,
    explain,
    out_of_memory,
    signal_within,
)
from drumbeat.agent.host.memory.growth import LastMemory, MemoryGroup
from worker_sdk.interpreter.signal_numbers import INTERRUPTING

MIB = 1024 * 1024
PID = 77
SENTENCES = Path(__file__).parent / "explanations.txt"


def ended(exit_code: int, **fields: Any) -> ExitEvidence:
    return ExitEvidence(exit_code=exit_code, pid=PID, **fields)


def a_group(oom_kills: int | None, limit_hits: int | None = None) -> MemoryGroup:
    limit = 2048 * MIB
    return MemoryGroup(name="/job_7", oom_kills=oom_kills, limit_hits=limit_hits, limit_bytes=limit)


def a_kill(pid: int) -> KernelLine:
    text = f"Memory cgroup out of memory: Killed process {pid} (python)"
    return KernelLine(pid=pid, text=text, is_oom_kill=True)


LAST = LastMemory(
    resident_bytes=900 * MIB, ago_s=0.42, used_bytes=2000 * MIB, limit_bytes=2048 * MIB,
    is_cgroup=True,
)  # fmt: skip
FAULTS = tuple(
    KernelLine(pid=pid, text=f"python[{pid}]: segfault at 0", is_oom_kill=False) for pid in (5, PID)
)
CASES: dict[str, ExitEvidence] = {
    "a good end": ended(0),
    "the kernel log names the very process": ended(-9, kernel_lines=(a_kill(5), a_kill(PID))),
    "the counter of the cgroup has risen": ended(-9, memory=a_group(1)),
    "a container has other numbers than the log": ended(
        -9, memory=a_group(2), kernel_lines=(a_kill(90_001),)
    ),
    "kills on the host, none in the cgroup": ended(-9, memory=a_group(0), host_oom_kills=3),
    "kills on the host": ended(-9, host_oom_kills=3, kernel_lines=()),
    "kills of others in the log": ended(-9, kernel_lines=(a_kill(1), a_kill(2), a_kill(3))),
    "memory was looked at before": ended(-9, memory=a_group(1), last_memory=LAST),
    "the same, and the log has it": ended(
        -9, memory=a_group(1), last_memory=LAST, kernel_lines=(a_kill(PID),)
    ),
    "an old kernel counts hits of the limit": ended(
        -9, memory=a_group(None, limit_hits=40), host_oom_kills=0
    ),
    "no kill in the cgroup": ended(-9, memory=a_group(0)),
    "no kill, but memory was reclaimed": ended(-9, memory=a_group(0, limit_hits=12)),
    "no kill on the host": ended(-9, host_oom_kills=0),
    "no kill in the log": ended(-9, kernel_lines=()),
    "nothing can be looked at": ended(-9),
    "small shared memory": ended(-7, shared_memory=(64 * MIB, MIB)),
    "large shared memory": ended(-7, shared_memory=(2**36, 0)),
    "a crash with the kernel's word": ended(-11, kernel_lines=FAULTS),
    "a crash with stacks": ended(-11, has_stacks=True),
    "a signal of another's": ended(-Signals.SIGTERM),
    "a signal of drumbeat": ended(-INTERRUPTING[0]),
    "the last signal of drumbeat": ended(-INTERRUPTING[-1]),
    "another real-time signal": ended(-INTERRUPTING[-1] - 1),
    "a shell folded SIGKILL": ended(137, memory=a_group(1)),
    "a shell folded SIGSEGV": ended(139),
    "it recorded an exception": ended(1, has_error=True),
    "its script is gone": ended(2, missing_script="/job/train.py"),
    "its script is gone, but that is not why": ended(1, missing_script="/job/train.py"),
    **{
        f"its agent was stopping it, exit code {code}": ended(
            code, memory=a_group(1), missing_script="x", is_stopped=True
        )
        for code in (-15, -9, 1, 143)
    },
    **{
        Signals(number).name: ended(-number)
        for number in (4, 5, 6, 7, 8, 10, 11, 13, 14, 24, 25, 31)
    },
    **{f"exit code {code}": ended(code) for code in (-200, 1, 2, 42, 126, 127, 200, 255)},
}


def sentences() -> Iterator[str]:
    for title, evidence in CASES.items():
        yield f"{title} ({describe_exit(evidence.exit_code)}): {explain(evidence) or '-'}"
        if headline := out_of_memory(evidence):
            yield f"    headline: {headline}"
    yield describe_full(Space("/logs", 0, 17))
    yield describe_full(Space("/logs", 1))


def test_every_end_has_its_sentence(request: pytest.FixtureRequest) -> None:
    text = "".join(f"{line}\n" for line in sentences())
    if request.config.getoption("--rewrite"):
        SENTENCES.write_text(text)
    assert text == SENTENCES.read_text()


def test_a_code_that_a_shell_made_of_a_signal_is_that_signal() -> None:
    assert [signal_within(code) for code in (137, -9, 1, 128, 200)] == [9, 9, None, None, None]


def test_every_explanation_is_one_bounded_line() -> None:
    word = KernelLine(pid=PID, text="x" * 10_000, is_oom_kill=True)
    evidence = ended(0, kernel_lines=(word,), missing_script="y" * 10_000)
    for code in range(-64, 256):
        text = explain(replace(evidence, exit_code=code))
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
