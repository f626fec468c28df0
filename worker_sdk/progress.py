"""Shell. Heartbeats: a worker says that it makes progress."""

from __future__ import annotations

from operator import index
from time import monotonic_ns

from worker_sdk.board.layout import (
    GAP_MAX,
    GAPS,
    HEARTBEAT_AT,
    HEARTBEATS,
    NO_STEP,
    PROGRESS_SINCE,
    STEP,
    STEP_TIME,
)
from worker_sdk.runtime import STATE, start

STEP_MAX = 2**63 - 1


def heartbeat(step: int | None = None) -> None:
    """Say that this worker makes progress. Costs about a microsecond.

    From the first one on the agent may expect more of them.

    Args:
        step: The step it has reached, 0 or more; shown to people, and to tell how long
            a step takes.

    Raises:
        TypeError: ``step`` is no integer.
        ValueError: ``step`` is below 0, or does not fit into 64 bits.
    """
    if step is None:
        mark = NO_STEP
    elif type(step) is int and 0 <= step <= STEP_MAX:
        mark = step
    else:
        mark = checked_step(step)
    board = STATE.board or start()
    words = board.words
    mine = board.threads.mine
    before = board.beat_before
    is_outside = not mine.sections
    now = monotonic_ns()
    if before and is_outside:
        gap = now - before
        if not board.has_section_between:
            if words[GAP_MAX] < gap:  # noqa: PLR1730 - a call would let others in
                words[GAP_MAX] = gap
            words[GAPS] += 1
        steps = mark - board.step_before if mark >= 0 and board.step_before >= 0 else 1
        if steps > 0:
            words[STEP_TIME] = (gap - board.paused_ns) // steps
    board.beat_before = now
    board.step_before = mark
    board.beater = mine
    board.paused_ns = 0
    board.has_section_between = not is_outside
    words[STEP] = mark
    words[HEARTBEAT_AT] = now
    words[HEARTBEATS] += 1
    words[PROGRESS_SINCE] = now if is_outside else 0


def checked_step(step: object) -> int:
    """Return ``step`` as a plain int.

    Raises:
        TypeError: It is no integer.
        ValueError: It is below 0, or does not fit into 64 bits.
    """
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"step is {step!r}; it must be an int or None")
    plain = index(step)
    if not 0 <= plain <= STEP_MAX:
        raise ValueError(f"step is {step!r}; it must be from 0 to {STEP_MAX}")
    return plain
