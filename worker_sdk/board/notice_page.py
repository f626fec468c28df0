"""Shell. A process's hold on its worker's notice page; without one, a page that says nothing."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any

from worker_sdk.board import notice_layout as layout

_OF_WORKER = {
    layout.ASKED: layout.NO_STEP,
    layout.ANSWERED: layout.NO_STEP,
    layout.READY: layout.NO_STEP,
    layout.DUE: layout.NO_STEP,
    layout.SAVED_ID: 0,
    layout.SAVED: layout.NO_STEP,
}


class NoticePage:
    """The words of a notice page, and its bytes. Costs its caller no system call."""

    def __init__(self, page: mmap.mmap | None = None) -> None:
        self.raw = memoryview(bytearray(layout.PAGE_BYTES) if page is None else page)
        self.words = self.raw.cast("q")
        # The id, kind and reason of the notice that was looked at last.
        self.latest: tuple[int, Any, str] = (0, None, "")
        # The notice and the proposed step that the agent was last woken for, and whether the
        # chosen step was behind this worker then.
        self.seen = (0, layout.NO_STEP, True)
        if page is None:
            self.words[layout.CHOSEN] = self.words[layout.PROPOSED] = layout.NO_STEP
        for word, value in _OF_WORKER.items():
            self.words[word] = value

    def begin_again(self) -> None:
        """Forget which steps were answered: training starts again, perhaps from an earlier one."""
        self.words[layout.READY] = self.words[layout.ANSWERED] = layout.NO_STEP


def claim_page(directory: str) -> NoticePage:
    """Return the page in a worker's directory; never raises. To be called by its owner only."""
    with contextlib.suppress(OSError, ValueError):
        file = os.open(
            f"{directory}/{layout.NOTICE_FILE}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        )
        try:
            if os.fstat(file).st_size == layout.PAGE_BYTES:
                page = mmap.mmap(file, layout.PAGE_BYTES)
                if memoryview(page).cast("q")[layout.VERSION_WORD] == layout.VERSION:
                    return NoticePage(page)
        finally:
            os.close(file)
    return NoticePage()
