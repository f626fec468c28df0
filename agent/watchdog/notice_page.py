"""Shell. The notice pages of workers: makes them, writes notices, reads what training answers.

Like a board, a page is written and read by calls: its worker may cut it short.
"""

from __future__ import annotations

import os
import struct
import time
from contextlib import suppress
from pathlib import Path

from agent.core.notice import Notice, WorkerAnswer
from worker_sdk.board import notice_layout as layout

_SECOND_NS = 1_000_000_000
_WORDS = struct.Struct(f"={layout.HEADER_WORDS}q")
_NUMBER_MAX = 2**63 - 1


class NoticePage:
    """One worker's page, in its private directory. Raises ``OSError`` if it can't be made.

    ``fd`` is for its maker to close.
    """

    def __init__(self, directory: Path) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL
        self.fd = os.open(directory / layout.NOTICE_FILE, flags, 0o600)
        try:
            os.posix_fallocate(self.fd, 0, layout.PAGE_BYTES)
            self._write(layout.CHOSEN, layout.NO_STEP)
            self._write(layout.ASKED, layout.NO_STEP)  # until a worker has it
            self._write(layout.VERSION_WORD, layout.VERSION)
        except OSError:
            os.close(self.fd)
            raise

    def show(self, notice: Notice | None) -> None:
        """Have training find ``notice`` and its chosen step; ``None``: nothing is pending."""
        with suppress(OSError):  # cut short by its worker, which then gets no notice
            shown = self._read()
            if notice is None:
                self._write(layout.NOTICE_ID, 0)
                return
            until = time.monotonic_ns() + round(notice.time_left_s * _SECOND_NS)
            until = min(until, _NUMBER_MAX)
            if shown[layout.NOTICE_ID] != notice.notice_id:
                self._write(layout.NOTICE_ID, 0)
                os.pwrite(self.fd, layout.encode_reason(notice.reason), layout.REASON_FROM_BYTE)
                self._write(layout.KIND, layout.Kind[notice.kind.name])
                self._write(layout.UNTIL, until)
                self._write(layout.CHOSEN, _word(notice.chosen))
                self._write(layout.NOTICE_ID, notice.notice_id)
                return
            if until < shown[layout.UNTIL]:
                self._write(layout.UNTIL, until)
            if shown[layout.CHOSEN] != _word(notice.chosen):
                self._write(layout.CHOSEN, _word(notice.chosen))

    def answer(self, notice: Notice) -> WorkerAnswer:
        """Return what the worker says of a notice that it was shown."""
        words = self._read()
        asked, chosen = words[layout.ASKED], _word(notice.chosen)
        if asked < 0:
            return WorkerAnswer()
        if chosen == layout.NO_STEP:
            return WorkerAnswer(asked=asked)
        taken = words[layout.TAKEN_ID], words[layout.TAKEN_CHOSEN]
        is_taken = taken == (notice.notice_id, chosen)
        # One that asked about that step and has not taken it in may have passed it.
        is_missed = words[layout.DUE] == layout.MISSED if is_taken else asked >= chosen
        is_saved = words[layout.SAVED_ID] == notice.notice_id and words[layout.SAVED] >= chosen
        return WorkerAnswer(asked=asked, is_missed=is_missed, is_saved=is_saved)

    def _read(self) -> tuple[int, ...]:
        with suppress(OSError):
            data = os.pread(self.fd, _WORDS.size, 0)
            if len(data) == _WORDS.size:
                return _WORDS.unpack(data)
        return (layout.NO_STEP,) * layout.HEADER_WORDS

    def _write(self, word: int, value: int) -> None:
        os.pwrite(self.fd, struct.pack("=q", value), word * 8)


def _word(step: int | None) -> int:
    return layout.NO_STEP if step is None else min(step, _NUMBER_MAX)
