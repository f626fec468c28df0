"""Disks that are full until a test makes room: the kernel's ``/dev/full``, and a limit of files."""

import errno
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.cluster import Coordinator

DEVICE = "/dev/full"


class FullDisk:
    """Open `DEVICE` as a destination; see `make_room`."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        self.has_refused = threading.Event()
        write = os.write

        def watched(fd: int, data: bytes) -> int:
            try:
                return write(fd, data)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    self.has_refused.set()
                raise

        monkeypatch.setattr(os, "write", watched)

    def make_room(self) -> None:
        """Let every descriptor of the full disk lead to the file, of which there is one."""
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for entry in Path("/proc/self/fd").iterdir():
            try:
                is_full = os.readlink(entry) == DEVICE  # noqa: PTH115
            except FileNotFoundError:  # the descriptor that lists the folder
                continue
            if is_full:
                os.dup2(file, int(entry.name), inheritable=False)
        os.close(file)


@contextmanager
def no_room(coordinator: Coordinator) -> Iterator[None]:
    """Let no file of a coordinator grow, as on a full disk."""
    limits = resource.prlimit(coordinator.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(coordinator.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(coordinator.pid, resource.RLIMIT_FSIZE, limits)
