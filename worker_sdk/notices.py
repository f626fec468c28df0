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
from worker_sdk.board.layout import SAVED_AT, SAVED_STEP, decode_text
from worker_sdk.board.notice_layout import (
    ANSWERED,
    ASKED,
    CHOSEN,
    CHOSEN_ID,
    DUE,
    KIND,
    NO_STEP,
    NOTICE_ID,
    PROPOSED,
    READY,
    SAVED,
    SAVED_ID,
    UNTIL,
)
from worker_sdk.runtime import STATE, log, start
from worker_sdk.timers import STEP_MAX, checked_step, section

# How often a rank that waits looks whether it still has to: memory that is shared wakes no thread.
LOOK_S = 0.02
# The longest that a rank stops at a proposed step for the word that it is chosen or given up. The
# coordinator chooses it within 10 s of proposing it; the rest is for its word to arrive.
STOP_MAX_S = 30.0


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
    latest, until = page.latest, words[UNTIL]
    if latest[0] != pending:
        kind = _KINDS.get(words[KIND], NoticeKind.OTHER)
        latest = pending, kind, decode_text(bytes(page.raw[_REASON]))
    if words[NOTICE_ID] != pending:  # it changed meanwhile; the next call tells
        return None
    page.latest = latest  # of one notice neither changes
    left_s = (until - monotonic_ns()) / 1e9
    # As the constructor does, at half of its cost.
    return tuple.__new__(Notice, (latest[1], latest[2], left_s if left_s > 0 else 0.0))


def should_checkpoint(step: int) -> bool:
    """Return whether to save at this step; true at the same step on every rank.

    To be asked by all ranks at the same steps, of any distance, before what changes at a step is
    lost. Asked again at the same step, it answers the same. It waits at one step alone, for at most
    ``STOP_MAX_S``: the one that was proposed to all ranks, until it is chosen or given up.
    """
    board = STATE.board or start()
    words = board.notices.words
    if type(step) is not int or not 0 <= step <= STEP_MAX:
        step = checked_step(step, "an int")
    before = words[ANSWERED]
    # Before the proposed step is looked at: the agent writes that one first, and then looks here,
    # so that of a step that was passed at least one of the two finds out.
    words[ASKED] = step
    if not words[NOTICE_ID] and words[PROPOSED] < before < step:
        words[ANSWERED] = step
        return False
    is_due = _is_due(board, before, step)
    answered(board, step, is_due=is_due)
    return is_due


def checkpointed(step: int, *, wait: bool = False) -> None:
    """Say that this rank has saved what it had at ``step``; once all have, the wait is over.

    Readers are shown step and age of it as the latest checkpoint, with a notice or without.

    With ``wait`` it returns when there is more to train for: what was planned has not come, or
    another step is chosen. Mostly its process ends before. So nothing is computed that would be
    lost. It waits at most until the notice's time is up, and not at all without a notice, or if
    ``step`` is before the one to save at. No limit counts meanwhile.
    """
    board = STATE.board or start()
    words = board.notices.words
    if type(step) is not int or not 0 <= step <= STEP_MAX:
        step = checked_step(step, "an int")
    board.words[SAVED_STEP] = step
    board.words[SAVED_AT] = monotonic_ns()
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
    if words[NOTICE_ID] != pending or words[CHOSEN_ID] != pending or words[PROPOSED] > step:
        return False
    return monotonic_ns() < words[UNTIL]


def _is_due(board: Board, before: int, step: int) -> bool:
    if (due := look(board, before, step)) is not None:
        return due
    until = monotonic_ns() + int(STOP_MAX_S * 1e9)
    with section("notice"):
        while (due := look(board, before, step)) is None:
            if monotonic_ns() > until:
                log.warning(
                    "step %d is not saved: no word within %g s whether all ranks save at it",
                    step,
                    STOP_MAX_S,
                )
                return False
            sleep(LOOK_S)
    return due


def look(board: Board, before: int, step: int) -> bool | None:
    """Return whether to save at ``step``; ``None`` while that is not decided.

    ``before`` is the step that was answered last. After None the worker has not answered: its
    agent is told that it stops here.
    """
    words = board.notices.words
    if step == before:
        return words[DUE] == step
    # The steps after ``last`` are answered now. Training that began anew, or went back, answers
    # for one step alone, like the ranks beside it that have done otherwise before.
    last = before if NO_STEP < before < step else step - 1
    proposed = words[PROPOSED]  # before the chosen one: the agent proposes no step that hides it
    if last < words[CHOSEN] <= step:
        return True
    if not last < proposed <= step:
        return False
    if words[READY] != proposed:
        words[READY] = proposed
        board.kick()
    return None


def answered(board: Board, step: int, *, is_due: bool) -> None:
    """Take note of an answer; wake the agent if it may wait for that."""
    page = board.notices
    words = page.words
    if is_due:
        words[DUE] = step
    words[READY] = NO_STEP
    words[ANSWERED] = step
    seen = words[NOTICE_ID], words[PROPOSED], words[CHOSEN] <= step
    if seen != page.seen:
        page.seen = seen
        board.kick()
