"""Shell. What a worker still imports by itself, noted in memory that it shares.

The memory begins with the count of bytes that are in use. A line follows for each import that no
other import has caused: how long it took, and the module's name.
"""

from __future__ import annotations

import _thread
import os
import struct
import time
from importlib import _bootstrap as _importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmap import mmap
    from types import FunctionType

_BOOTSTRAP: Any = _importlib  # what loads modules
MEMORY_BYTES = 65_536  # for about a thousand modules; what comes later is not noted
_COUNT = struct.Struct("=Q")


def empty(memory: memoryview) -> None:
    """Forget what is there."""
    memory[: _COUNT.size] = _COUNT.pack(0)


def read(memory: mmap) -> list[tuple[str, float]]:
    """Return the modules that were imported so far, and how long that took, in seconds."""
    used = min(_COUNT.unpack(memory[: _COUNT.size])[0], len(memory) - _COUNT.size)
    found = []
    for line in memory[_COUNT.size : _COUNT.size + used].decode(errors="replace").splitlines():
        duration, _, name = line.partition(" ")
        if not name or not duration.replace(".", "").isdecimal():
            break  # the worker has written something else there
        found.append((name, float(duration)))
    return found


def note(memory: memoryview) -> None:
    """Have this process, but none that it forks, note its imports from now on."""
    load: FunctionType = _BOOTSTRAP._load_unlocked  # noqa: SLF001
    owner, importing, used = os.getpid(), _thread.allocate_lock(), 0

    def _load_unlocked(spec: Any) -> Any:
        nonlocal used
        if os.getpid() != owner or not importing.acquire(blocking=False):
            return load(spec)
        began = time.perf_counter()
        try:
            return load(spec)
        finally:
            line = f"{time.perf_counter() - began:.4f} {spec.name}\n".encode()
            start = _COUNT.size + used
            if start + len(line) <= len(memory):
                memory[start : start + len(line)] = line
                used += len(line)
                memory[: _COUNT.size] = _COUNT.pack(used)
            importing.release()

    # Python leaves frames of that file out of tracebacks, and warnings look past them.
    code = _load_unlocked.__code__.replace(co_filename=load.__code__.co_filename)
    _load_unlocked.__code__ = code
    _BOOTSTRAP._load_unlocked = _load_unlocked  # noqa: SLF001
