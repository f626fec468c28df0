"""Shell. Linux calls that Python has no function for, used by templates and their forks."""

from __future__ import annotations

import ctypes
import os
import select
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_ADOPTION_LOOK_S = 1.0  # should the number of a parent that has ended be another process's

_PROT_READ, _PROT_WRITE, _MAP_SHARED = 1, 2, 1
_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_COLLAPSE = 25  # since Linux 6.1
_LARGE_PAGE = 2 * 1024 * 1024  # on x86-64, and on Arm with small pages of 4 KiB

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.malloc.restype = ctypes.c_void_p
_LIBC.malloc.argtypes = [ctypes.c_size_t]
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.sbrk.restype = ctypes.c_void_p
_LIBC.sbrk.argtypes = [ctypes.c_ssize_t]


class _MemoryMap(ctypes.Structure):
    """Where the parts of a process are; ``struct prctl_mm_map`` of ``linux/prctl.h``."""

    _ADDRESSES = (
        *("start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack"),
        *("arg_start", "arg_end", "env_start", "env_end", "auxv"),
    )
    _fields_ = (
        *((name, ctypes.c_uint64) for name in _ADDRESSES),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


# Of each address: its number among the fields of /proc/self/stat, counted from 1; see proc(5).
_FIELDS = {
    "start_code": 26,
    "end_code": 27,
    "start_stack": 28,
    "start_data": 45,
    "end_data": 46,
    "start_brk": 47,
    "arg_start": 48,
    "arg_end": 49,
}


def map_shared(fd: int, size: int) -> memoryview:
    """Return the memory behind a descriptor, which is closed; kept until this process ends."""
    # The standard library's `mmap` keeps a descriptor, which a worker would find open.
    address = _LIBC.mmap(None, size, _PROT_READ | _PROT_WRITE, _MAP_SHARED, fd, 0)
    os.close(fd)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "cannot map the memory of late imports")
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def gather_pages(is_wanted_elsewhere: Callable[[], bool]) -> None:
    """Put this process's memory into large pages, so that a fork copies its table much faster.

    Measured with torch imported, of 216 MB: 1.0 ms in place of 5.5 ms for each fork. Takes half a
    second there, and ends early if this process ``is_wanted_elsewhere``. Where the kernel can't,
    nothing changes.
    """
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:  # noqa: PTH123
        regions = [line.split() for line in file]
    for place, access, _offset, _device, inode, *_ in regions:
        if access != "rw-p" or inode != "0":
            continue
        first, end = (int(address, 16) for address in place.split("-"))
        first, end = -(-first // _LARGE_PAGE) * _LARGE_PAGE, end // _LARGE_PAGE * _LARGE_PAGE
        for address in range(first, end, _LARGE_PAGE):
            if is_wanted_elsewhere():
                return
            _LIBC.madvise(address, _LARGE_PAGE, _MADV_COLLAPSE)


def name_process(name: str) -> None:
    """Have `ps` and `top` show this name, of up to 15 bytes."""
    _LIBC.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


def process_name() -> str:
    """Return what they show."""
    with open("/proc/self/comm", errors="surrogateescape") as file:  # noqa: PTH123
        return file.read().strip()


def flush_output_of_libraries() -> None:
    """Write out what C code has printed, lest each fork do it."""
    _LIBC.fflush(None)


def show_environment(environment: dict[str, str]) -> None:
    """Have ``/proc/<pid>/environ`` show this, as after an exec; where the kernel allows it."""
    content = b"".join(
        os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items()
    )
    # For as long as the process lives, so it is never freed.
    address = _LIBC.malloc(len(content) + 1)
    if not address:
        return
    ctypes.memmove(address, content, len(content))
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123
        fields = file.read().rpartition(b")")[2].split()
    where = {name: int(fields[number - 3]) for name, number in _FIELDS.items()}
    parts = _MemoryMap(
        **where,
        brk=_LIBC.sbrk(0),
        env_start=address,
        env_end=address + len(content),
        exe_fd=0xFFFF_FFFF,
    )
    _LIBC.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(parts), ctypes.sizeof(parts), 0)


def await_other_parent(pid: int) -> None:
    """Return when the parent of this process, ``pid``, has ended and another has taken over."""
    while os.getppid() == pid:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended = select.poll()
        ended.register(fd, select.POLLIN)
        ended.poll(_ADOPTION_LOOK_S * 1000)
        os.close(fd)


def die_with(parent_pid: int) -> None:
    """Have this process killed as soon as its parent, expected to be ``parent_pid``, dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A parent that died before the call above sends no signal any more.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)
