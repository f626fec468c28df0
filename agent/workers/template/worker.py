"""Shell. Turns a fork of the template into a worker, as a new interpreter would be."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from typing import NamedTuple

from . import linux
from .differences.environment import after_imports
from .preloading import Preloading


class Seat(NamedTuple):
    """What is particular to one worker: variables, CPUs, and what its streams lead to."""

    env: dict[str, str]
    cpus: list[int]
    streams: dict[int, int]

    def close(self) -> None:
        """Close the descriptors that were passed here."""
        for fd in self.streams.values():
            os.close(fd)


def become(
    seat: Seat, before: dict[str, str], files: Iterable[int], preloading: Preloading
) -> None:
    """Take a seat.

    ``before`` is the environment of the template before its imports, ``files`` what these have
    left open.
    """
    for fd in files:
        _open_again(fd)
    for number, fd in seat.streams.items():
        os.dup2(fd, number)
    if seat.cpus:
        # It fails if all of them were taken from us since they were chosen. Where a worker
        # runs decides how fast it is; that is no reason for it not to run.
        with suppress(OSError):
            os.sched_setaffinity(0, seat.cpus)
    given = before | seat.env
    wanted = after_imports(before, dict(os.environ), given)
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)
    linux.show_environment(given)
    preloading.values.renew(before, given)
    preloading.random.begin_as_new()
    _renew_numbers()
    _observe()


def _observe() -> None:
    """Start the observer, as the start of a new interpreter would have."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    path = os.path.join(folder, "startup", "drumbeat_observer.py")  # noqa: PTH118
    spec = spec_from_file_location("drumbeat_observer", path)
    if spec is not None and spec.loader is not None:
        with suppress(Exception):  # a worker runs without it, too
            observer = module_from_spec(spec)
            spec.loader.exec_module(observer)
            observer.start()


def _open_again(fd: int) -> None:
    """Have a place of its own in a file: forks would move on that of each other."""
    with suppress(OSError):  # it may not be opened any more
        own = os.open(f"/proc/self/fd/{fd}", fcntl.fcntl(fd, fcntl.F_GETFL))
        try:
            os.lseek(own, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(own, fd, inheritable=os.get_inheritable(fd))
        finally:
            os.close(own)


def _renew_numbers() -> None:
    """Give up numbers that all forks have in common, where a new process has its own."""
    threading = sys.modules.get("threading")
    if threading is not None:  # the only number of this kind that Python 3.11 leaves as it was
        threading.main_thread()._set_native_id()  # noqa: SLF001
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
