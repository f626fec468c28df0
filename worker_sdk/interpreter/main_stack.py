"""Shell. Where the main thread stands, as another thread may ask without touching its frames.

Frame objects of a thread that runs are not safe: CPython 3.11 has crashed in ``f_back``
while the other thread left the frame (python/cpython#111363, still open; seen here with
3.11.7, walking them once a second). The fault handler reads in C, in one piece.
"""

from __future__ import annotations

import faulthandler
import linecache
import os
import re
import threading
from dataclasses import dataclass

_BYTES_MAX = 1024 * 1024
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+) ", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One call, as the fault handler names it: long names are cut by it."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        source = linecache.getline(self.path, self.line).strip()
        place = f'  File "{self.path}", line {self.line}, in {self.function}\n'
        return f"{place}    {source}\n" if source else place


def main_stack() -> list[Entry]:
    """Return the calls of the main thread, innermost first; at most 100, none if not to be had."""
    try:
        fd = os.memfd_create("stacks")
    except OSError:
        return []
    try:
        faulthandler.dump_traceback(fd, all_threads=True)
        text = os.pread(fd, _BYTES_MAX, 0).decode(errors="replace")
    finally:
        os.close(fd)
    threads = list(_THREAD.finditer(text))
    for number, thread in enumerate(threads):
        if int(thread[1], 16) == threading.main_thread().ident:
            end = threads[number + 1].start() if number + 1 < len(threads) else len(text)
            return [Entry(m[1], int(m[2]), m[3]) for m in _FRAME.finditer(text, thread.end(), end)]
    return []
