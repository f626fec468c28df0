"""Shell. Reads the stacks of a process from outside, with py-spy, where it can't be asked.

That is a process which is stopped, whose native code holds the interpreter's lock, or which has no
observer. py-spy only reads the memory of the process (``--nonblocking``): the process goes on. For
native frames py-spy halts it, so they are read only for a reader that asks for a signal.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from drumbeat.text.format import install_command, one_line

PROGRAM = "py-spy"
OUTPUT_BYTES_MAX = 4 * 1024 * 1024
AT_ONCE_MAX = 2  # it takes a processor for some 0.2 s
HINT = f"{install_command('stacks')} reads the stacks of such a process from outside"
_turns = asyncio.Semaphore(AT_ONCE_MAX)


class _Frame(Struct):
    name: str
    filename: str
    line: int


class _Thread(Struct):
    pid: int
    thread_id: int
    frames: list[_Frame]
    os_thread_id: int | None = None


_THREADS = msgspec.json.Decoder(list[_Thread])


def find_program() -> str | None:
    """Return where py-spy is: beside this interpreter, or on ``PATH``."""
    return shutil.which(PROGRAM, path=str(Path(sys.executable).parent)) or shutil.which(PROGRAM)


async def read_stacks(pid: int, timeout_s: float, *, may_halt: bool) -> tuple[str, str]:
    """Return the stacks in the form of Python's fault handler, and if there are none, why."""
    if (program := find_program()) is None:
        return "", HINT
    mode = "--native" if may_halt else "--nonblocking"
    try:
        async with asyncio.timeout(timeout_s), _turns:
            code, output, errors = await _run(program, "dump", "--json", mode, "--pid", str(pid))
    except TimeoutError:
        return "", f"{PROGRAM} took longer than {timeout_s:g} s"
    except OSError as error:
        return "", f"{PROGRAM} could not be started: {error.strerror}"
    if code != 0:
        return "", f"{PROGRAM}: {_reason(errors)}"
    try:
        threads = _THREADS.decode(output)
    except msgspec.DecodeError as error:
        return "", f"{PROGRAM} wrote what can't be read: {error}"
    # The first thread of a process has its number.
    threads.sort(key=lambda thread: thread.os_thread_id != pid)
    return "\n\n".join(map(_written, threads)) + "\n", ""


async def _run(*command: str) -> tuple[int, bytes, bytes]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    try:
        output, errors = await process.communicate()
        return process.returncode or 0, output[:OUTPUT_BYTES_MAX], errors[:OUTPUT_BYTES_MAX]
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _written(thread: _Thread) -> str:
    calls = (
        f'  File "{one_line(frame.filename)}", line {max(0, frame.line)} in {one_line(frame.name)}'
        for frame in thread.frames
    )
    return "\n".join((f"Thread 0x{thread.thread_id:x} (most recent call first):", *calls))


def _reason(errors: bytes) -> str:
    lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
    if any("ermission" in line for line in lines):
        return "this user may not read the memory of other processes (ptrace); see ptrace_scope"
    return one_line(lines[-1] if lines else "it failed without a word")
