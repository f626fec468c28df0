"""Shell. Makes the notice pages of workers, writes notices, reads the answers of training.

Like a board, a page is written and read by calls: its worker may cut it short.
"""

from __future__ import annotations

import os
import struct
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from drumbeat.agent.core.notice import Notice, WorkerAnswer, report_of
from drumbeat.model import NoticeReport
from worker_sdk.board import notice_layout as layout
from worker_sdk.board.layout import encode_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_SECOND_NS = 1_000_000_000
_WORDS = struct.Struct(f"={layout.HEADER_WORDS}q")
_NUMBER_MAX = 2**63 - 1
# Chosen steps that are kept for a worker that has not come to them; of more, the latest.
LINE_MAX = 64


class NoticePage:
    """One worker's page, in its private directory. Raises ``OSError`` if it can't be made.

    ``fd`` is for its maker to close.
    """

    def __init__(self, directory: Path) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL
        self.fd = os.open(directory / layout.NOTICE_FILE, flags, 0o600)
        try:
            os.posix_fallocate(self.fd, 0, layout.PAGE_BYTES)
            for word in (layout.CHOSEN, layout.PROPOSED, layout.ASKED):  # until a worker has it
                self._write(word, layout.NO_STEP)
            self._write(layout.VERSION_WORD, layout.VERSION)
        except OSError:
            os.close(self.fd)
            raise
        # Chosen steps and their notices: those that the worker comes to after the one it is shown.
        self._line: list[tuple[int, int]] = []
        self._open = layout.NO_STEP  # the step that is proposed

    def show(self, notice: Notice) -> None:
        """Have training find ``notice`` and its steps; one that is over leaves the chosen one."""
        with suppress(OSError):  # cut short by its worker, which then gets no notice
            shown = self._read()
            until = time.monotonic_ns() + round(notice.time_left_s * _SECOND_NS)
            until = min(until, _NUMBER_MAX)
            if notice.is_over:
                self._show_steps(notice, shown)
                self._write(layout.NOTICE_ID, 0)
                return
            if shown[layout.NOTICE_ID] != notice.notice_id:
                self._write(layout.NOTICE_ID, 0)
                reason = encode_text(notice.reason, layout.REASON_BYTES)
                os.pwrite(self.fd, reason, layout.REASON_FROM_BYTE)
                self._write(layout.KIND, layout.Kind[notice.kind.name])
                self._write(layout.UNTIL, until)
                self._write(layout.NOTICE_ID, notice.notice_id)
            elif until < shown[layout.UNTIL]:
                self._write(layout.UNTIL, until)
            self._show_steps(notice, shown)

    def _show_steps(self, notice: Notice, shown: tuple[int, ...]) -> None:
        before = max([shown[layout.CHOSEN], *(step for step, _ in self._line)])
        known = (notice.chosen_before, 0), (notice.chosen, notice.notice_id)
        self._line += [(_word(step), by) for step, by in known if _word(step) > before]
        del self._line[:-LINE_MAX]
        self._open = layout.NO_STEP if notice.is_over else _word(notice.proposed)
        self._move_on(shown)

    def move_on(self) -> None:
        """Show the next chosen step, if the worker has answered the one before it."""
        if self._line:
            with suppress(OSError):
                self._move_on(self._read())

    def _move_on(self, shown: tuple[int, ...]) -> None:
        chosen, done = shown[layout.CHOSEN], (shown[layout.ANSWERED], shown[layout.READY])
        # It is done with a step that it has answered, or if it stops at the one after it.
        while self._line and (chosen <= done[0] or self._line[0][0] == done[1]):
            chosen, by = self._line.pop(0)
            self._write(layout.CHOSEN_ID, by)
        if chosen != shown[layout.CHOSEN]:
            self._write(layout.CHOSEN, chosen)
        # After the chosen one, which it may follow. It is there before the worker can pass that.
        proposed = self._line[0][0] if self._line else max(chosen, self._open)
        if proposed != shown[layout.PROPOSED]:
            self._write(layout.PROPOSED, proposed)

    def asked(self) -> int:
        """Return the latest step that the worker asked about."""
        return self._read()[layout.ASKED]

    def answer(self, notice: Notice) -> WorkerAnswer:
        """Return what the worker says of a notice that it was shown."""
        words = self._read()
        asked, chosen, answered = words[layout.ASKED], _word(notice.chosen), words[layout.ANSWERED]
        if asked < 0:
            return WorkerAnswer()
        is_saved = words[layout.SAVED_ID] == notice.notice_id and words[layout.SAVED] >= chosen
        answer = partial(WorkerAnswer, asked=asked, is_saved=notice.chosen is not None and is_saved)
        if notice.proposed is None:
            has_passed = notice.chosen is not None and answered >= chosen
            return answer(is_missed=has_passed and words[layout.DUE] < chosen)
        if answered != asked and words[layout.PROPOSED] == notice.proposed:
            # It has begun to ask, and has perhaps not seen that step before it answers.
            return answer(is_ready=words[layout.READY] == notice.proposed)
        is_missed = answered >= notice.proposed
        return answer(is_missed=is_missed, is_ready=not is_missed)

    def _read(self) -> tuple[int, ...]:
        with suppress(OSError):
            data = os.pread(self.fd, _WORDS.size, 0)
            if len(data) == _WORDS.size:
                return _WORDS.unpack(data)
        return (layout.NO_STEP,) * layout.HEADER_WORDS

    def _write(self, word: int, value: int) -> None:
        os.pwrite(self.fd, struct.pack("=q", value), word * 8)


class HostNotices:
    """The latest notice of this host's workers, and their answers."""

    def __init__(self) -> None:
        self._notice: Notice | None = None
        self._answered: NoticeReport | None = None
        self._ended_round, self._ended_asked = -1, layout.NO_STEP  # of workers that ended with 0

    def show(self, notice: Notice, pages: Iterable[NoticePage]) -> None:
        """Show a notice to these workers, unless they have a later one."""
        latest = self._notice
        if (
            latest is not None
            and latest.round_id == notice.round_id
            and notice.order < latest.order
        ):
            return
        self._notice, self._answered = notice, None
        for page in pages:
            page.show(notice)

    def show_again(self, round_id: int, pages: Iterable[NoticePage]) -> None:
        """Show the notice of a round to workers that start after it."""
        if self._notice is not None and self._notice.round_id == round_id:
            self.show(self._notice, pages)

    def pending(self) -> Notice | None:
        """Return the notice that workers are asked about."""
        notice = self._notice
        return notice if notice is not None and not notice.is_over else None

    def ended(self, round_id: int, page: NoticePage) -> None:
        """Keep how far a worker came that has ended its training: it has passed these steps."""
        before = self._ended_asked if round_id == self._ended_round else layout.NO_STEP
        self._ended_round, self._ended_asked = round_id, max(before, page.asked())

    def news(
        self, answers: Collection[WorkerAnswer], step_time_s: float | None
    ) -> NoticeReport | None:
        """Return what workers say together of the pending notice, if the coordinator needs it.

        Not each step that is asked about: what it decides by.
        """
        notice, last = self._notice, self._ended_asked
        assert notice is not None, "nothing is pending"
        if notice.round_id == self._ended_round and last >= 0:
            is_missed = notice.proposed is not None and last >= notice.proposed
            ended = WorkerAnswer(asked=last, is_missed=is_missed, is_saved=True)
            answers = [*answers, ended]
        report = report_of(notice, answers, step_time_s)
        is_asked = 0 if report.asked is not None else None
        said = replace(report, asked=is_asked, step_time_s=None)
        if said == self._answered:
            return None
        self._answered = said
        return report


def _word(step: int | None) -> int:
    return layout.NO_STEP if step is None else min(step, _NUMBER_MAX)
