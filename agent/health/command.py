"""Shell. Runs one command of ``--health-check``: its exit code, and the last line it wrote."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress

from drumbeat.agent.failures.exit_status import signal_name
from drumbeat.agent.health import child
from drumbeat.text.format import one_line

TAIL_BYTES_MAX = 4096  # of the output, in which the last line is looked for
_READ_BYTES_MAX = 65536


class _Output:
    """Keeps the end of what is written to a pipe; never waits for who holds it open."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_end, False)
        self._tail = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self._read)

    def _read(self) -> bool:
        """Take what is there, once; return whether there may be more."""
        try:
            read = os.read(self._read_end, _READ_BYTES_MAX)
        except BlockingIOError:
            return False
        if not read:
            self._loop.remove_reader(self._read_end)
        self._tail = (self._tail + read)[-TAIL_BYTES_MAX:]
        return bool(read)

    def close(self) -> str:
        """Return the last line that has anything in it."""
        with suppress(OSError):
            # What a pipe holds at most: another process may go on writing.
            for _ in range(16):
                if not self._read():
                    break
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        lines = self._tail.decode(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")


async def run_command(command: str, environment: Mapping[str, str], timeout_s: float) -> str:
    """Return what is wrong, empty if it exits with 0. Cancelled or late, it ends with its group."""
    argv, output = shlex.split(command), _Output()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output.write_end,
            stderr=output.write_end,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        output.close()
        return f"{argv[0]} could not be started: {error.strerror}"
    finally:
        os.close(output.write_end)
    is_late, last = False, ""
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
    except TimeoutError:
        is_late = True
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        last = output.close()
        await process.wait()
    if is_late:
        return _with(f"{argv[0]} took longer than {timeout_s:g} s and was killed", last)
    code = process.returncode or 0
    how = f"was ended by {signal_name(code)}" if code < 0 else f"exited with {code}"
    return _with(f"{argv[0]} {how}", last) if code else ""


def _with(problem: str, last: str) -> str:
    return f"{problem}: {one_line(last)}" if last else problem
