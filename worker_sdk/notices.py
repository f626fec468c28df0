"""Shell. Notices: what is about to change for the run, and the one step to save it at.

On the training thread a call reads and writes a few words of memory. A wrong step raises
``TypeError`` or ``ValueError``; the agent, its absence and its end never raise.
"""

from __future__ import annotations

from enum import StrEnum
from time import monotonic_ns, sleep
from typing import NamedTuple

from worker_sdk.board import notice_layout
from worker_sdk.board.board import Board
from worker_sdk.board.notice_layout import (
    ASKED,
    CHOSEN,
    DUE,
    KIND,
    MISSED,
    NO_STEP,
    NOTICE_ID,
    SAVED,
    SAVED_ID,
    TAKEN_CHOSEN,
    TAKEN_ID,
    UNTIL,
)
from worker_sdk.runtime import STATE, start
from worker_sdk.timers import STEP_MAX, checked_step, section

# How often a rank that waits looks whether it still has to: memory that is shared wakes no thread.
LOOK_S = 0.02


class NoticeKind(StrEnum):
    """What a notice is about."""

    PREEMPTION = "preemption"
    DRAIN = "drain"
    STOP = "stop"
    RESTART = "restart"
    SCALE_UP = "scale-up"
    CHECKPOINT = "checkpoint"
    OTHER = "other"


class Notice(NamedTuple):
    """What will change for the run, why, and how many seconds are left until it does."""

    kind: NoticeKind
    reason: str
    time_left_s: float


_KINDS = {int(kind): NoticeKind[kind.name] for kind in notice_layout.Kind}
_REASON = slice(
    notice_layout.REASON_FROM_BYTE, notice_layout.REASON_FROM_BYTE + notice_layout.REASON_BYTES
)


def notice() -> Notice | None:
    """Return the notice that is pending, ``None`` if there is none. Never waits."""
    page = (STATE.board or start()).notices
    words = page.words
    if not (pending := words[NOTICE_ID]):
        return None
    told, until = page.told, words[UNTIL]
    if told[0] != pending:
        kind = _KINDS.get(words[KIND], NoticeKind.OTHER)
        told = pending, kind, notice_layout.decode_reason(bytes(page.raw[_REASON]))
    if words[NOTICE_ID] != pending:  # it changed meanwhile; the next call tells
        return None
    page.told = told  # of one notice neither changes
    left_s = (until - monotonic_ns()) / 1e9
    # As the constructor does, at half of its cost.
    return tuple.__new__(Notice, (told[1], told[2], left_s if left_s > 0 else 0.0))


def should_checkpoint(step: int) -> bool:
    """Return whether to save at this step; true at the same step on every rank. Never waits.

    To be asked by all ranks at the same steps, of any distance, before what changes at a step is
    lost. Asked again at the same step, it answers the same.
    """
    board = STATE.board or start()
    words = board.notices.words
    if type(step) is not int or not 0 <= step <= STEP_MAX:
        step = checked_step(step, "an int")
    before = words[ASKED]
    # Before the chosen step is looked at: the agent writes that one first, and then looks here,
    # so that of a step that was passed at least one of the two finds out.
    words[ASKED] = step
    if not words[NOTICE_ID]:
        return False
    return is_due(board, before, step)


def checkpointed(step: int, *, wait: bool = False) -> None:
    """Say that this rank has saved what it had at ``step``; once all have, the wait is over.

    With ``wait`` it returns when there is more to train for: what was planned has not come, or
    another step is chosen. Mostly its process ends before. So nothing is computed that would be
    lost. It waits at most until the notice's time is up, and not at all without a notice, or if
    ``step`` is before the one to save at. No limit counts meanwhile.
    """
    board = STATE.board or start()
    words = board.notices.words
    if type(step) is not int or not 0 <= step <= STEP_MAX:
        step = checked_step(step, "an int")
    if pending := words[NOTICE_ID]:
        words[SAVED_ID] = 0
        words[SAVED] = step
        words[SAVED_ID] = pending
        board.kick()
        if wait and _is_to_wait(words, pending, step):
            with section("notice"):
                while _is_to_wait(words, pending, step):
                    sleep(LOOK_S)


def _is_to_wait(words: memoryview[int], pending: int, step: int) -> bool:
    if words[NOTICE_ID] != pending or not NO_STEP < words[CHOSEN] <= step:
        return False
    return monotonic_ns() < words[UNTIL]


def is_due(board: Board, before: int, step: int) -> bool:
    """Decide about ``step`` while a notice is pending; ``before`` was asked last."""
    words = board.notices.words
    pending, chosen = words[NOTICE_ID], words[CHOSEN]
    if not pending or words[NOTICE_ID] != pending:
        return False
    if words[TAKEN_ID] != pending or words[TAKEN_CHOSEN] != chosen:
        # A step that was answered before it was chosen is not saved at: other ranks may have
        # gone on from it as well. Training that started again from an earlier step comes by again.
        is_missed = chosen != NO_STEP and before >= chosen and step >= before
        words[TAKEN_ID] = 0
        words[TAKEN_CHOSEN], words[DUE] = chosen, MISSED if is_missed else NO_STEP
        words[TAKEN_ID] = pending
        if chosen == NO_STEP or is_missed:
            board.kick()  # the agent chooses by where the workers are, and again if need be
    if chosen == NO_STEP or (due := words[DUE]) == MISSED:
        return False
    if due == NO_STEP and step >= chosen:
        due = words[DUE] = step
    return step == due
