"""Shell. Shared memory where a worker notes late imports, and variables set too late.

The memory begins with the count of bytes that are in use. A line follows for each import that no
other import has caused: how long it took, and the module's name; and for each variable that was
set after preloading had read it: a mark, the variable, and which module has read it.
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
_SETTING = "set"  # in place of a duration


def empty(memory: memoryview) -> None:
    """Forget what is there."""
    memory[: _COUNT.size] = _COUNT.pack(0)


def read(memory: mmap) -> tuple[list[tuple[str, float]], list[tuple[str, str]]]:
    """Return the modules that were imported so far, and the variables that were set too late.

    With each module how long that took, in seconds, and with each variable the module that has
    read it.
    """
    modules, settings = list[tuple[str, float]](), list[tuple[str, str]]()
    used = min(_COUNT.unpack(memory[: _COUNT.size])[0], len(memory) - _COUNT.size)
    for line in memory[_COUNT.size : _COUNT.size + used].decode(errors="replace").splitlines():
        mark, _, rest = line.partition(" ")
        name, _, reader = rest.partition(" ")
        if name and mark == _SETTING:
            settings.append((name, reader))
        elif name and mark.replace(".", "", 1).isdecimal():
            modules.append((name, float(mark)))
        else:
            break  # the worker has written something else there
    return modules, settings


def note_setting(memory: memoryview, name: str, reader: str) -> None:
    """Note that a variable was set after a preloaded module had read it."""
    _append(memory, f"{_SETTING} {name} {reader}")


def _append(memory: memoryview, line: str) -> None:
    content = f"{line}\n".encode(errors="replace")
    start = _COUNT.size + _COUNT.unpack(memory[: _COUNT.size])[0]
    if start + len(content) <= len(memory):
        memory[start : start + len(content)] = content
        memory[: _COUNT.size] = _COUNT.pack(start + len(content) - _COUNT.size)


def note(memory: memoryview) -> None:
    """Note the imports of this process, but of none that it forks, from now on."""
    load: FunctionType = _BOOTSTRAP._load_unlocked  # noqa: SLF001
    owner, importing = os.getpid(), _thread.allocate_lock()

    def _load_unlocked(spec: Any) -> Any:
        if os.getpid() != owner or not importing.acquire(blocking=False):
            return load(spec)
        began = time.perf_counter()
        try:
            return load(spec)
        finally:
            _append(memory, f"{time.perf_counter() - began:.4f} {spec.name}")
            importing.release()

    # Python leaves frames of that file out of tracebacks, and warnings look past them.
    code = _load_unlocked.__code__.replace(co_filename=load.__code__.co_filename)
    _load_unlocked.__code__ = code
    _BOOTSTRAP._load_unlocked = _load_unlocked  # noqa: SLF001
