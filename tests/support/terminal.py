"""A terminal of the tests' own: what stands on it after all that was written."""

import fcntl
import os
import re
import signal
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

ERASE = b"\r\x1b[K"
_COLOUR = re.compile(rb"\x1b\[[0-9]*m")


class Terminal:
    """A pseudo-terminal with one process that it controls; a context manager."""

    def __init__(self, columns: int = 80) -> None:
        self.master, self.slave = os.openpty()
        termios.tcsetwinsize(self.slave, (24, columns))
        self.output = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._reader.is_alive():
            self._reader.join()
        os.close(self.master)

    def start(self, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a process whose terminal it is, and read what it writes until its end."""
        self._process = process = subprocess.Popen(
            argv,
            env=env,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0),  # noqa: PLW1509
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
        )
        os.close(self.slave)
        self._reader.start()
        return process

    def _read(self) -> None:
        with suppress(OSError):  # the end of a terminal without a writer
            while chunk := os.read(self.master, 65536):
                self.output += chunk

    def frames(self) -> list[str]:
        """Return what was drawn after each erasing, up to the end of the line or the next one."""
        parts = self.output.split(ERASE)[1:]
        return [part.split(b"\r")[0].split(b"\n")[0].decode() for part in parts]

    def lines(self) -> list[str]:
        """Return the lines that stand there at the end, without colours."""
        lines: list[bytes] = []
        for raw in _COLOUR.sub(b"", self.output).split(b"\n"):
            line = b""
            for part in raw.split(b"\r"):
                if part.startswith(b"\x1b[K"):
                    line = part[3:]
                elif part:
                    line = part + line[len(part) :]
            lines.append(line)
        return [line.decode() for line in lines]
