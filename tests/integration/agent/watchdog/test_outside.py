"""py-spy reads stacks from outside; what it can't do is told in one line."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import pytest

from drumbeat.agent.watchdog import outside
from drumbeat.agent.watchdog.outside import HINT, read_stacks

if TYPE_CHECKING:
    from pathlib import Path

LONG_S = 20.0


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in for py-spy, with what the test writes."""
    path = tmp_path / "py-spy"
    monkeypatch.setattr(outside, "find_program", lambda: str(path))
    return path


def write(program: Path, script: str, mode: int = 0o700) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(mode)


async def test_the_stacks_of_a_process_are_read_and_it_goes_on() -> None:
    if outside.find_program() is None:
        pytest.skip("needs py-spy")
    code = "import time\ndef wait_here():\n    print('begun', flush=True)\n    time.sleep(600)\n"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"{code}wait_here()"), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        stacks, why = await read_stacks(process.pid, LONG_S, may_halt=False)
        assert process.returncode is None
    finally:
        process.kill()
        await process.communicate()
    if "may not read the memory" in why:
        pytest.skip("this host does not let one process read another")
    assert why == ""
    assert stacks.startswith("Thread 0x")
    assert 'File "<string>", line 4 in wait_here' in stacks


async def test_without_the_program_the_hint_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outside, "find_program", lambda: None)
    assert await read_stacks(os.getpid(), LONG_S, may_halt=False) == ("", HINT)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Permission Denied: try sudo' >&2; exit 1", "this user may not read the memory"),
        ("echo 'Error: no such process' >&2; exit 1", "py-spy: Error: no such process"),
        ("exit 1", "py-spy: it failed without a word"),
        ("echo '[{'", "py-spy wrote what can't be read"),
    ],
)
async def test_what_it_can_not_do_is_told(program: Path, script: str, why: str) -> None:
    write(program, script)
    stacks, told = await read_stacks(os.getpid(), LONG_S, may_halt=True)
    assert stacks == ""
    assert why in told


async def test_a_program_that_does_not_end_is_killed(program: Path, tmp_path: Path) -> None:
    write(program, f"echo $$ >{tmp_path}/pid; exec sleep 600")
    assert await read_stacks(1, 2, may_halt=False) == ("", "py-spy took longer than 2 s")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_program_that_can_not_be_started_is_told(program: Path) -> None:
    write(program, "exit 0", mode=0o600)
    assert await read_stacks(1, LONG_S, may_halt=False) == (
        "",
        "py-spy could not be started: Permission denied",
    )
