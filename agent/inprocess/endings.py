"""Pure. What the end of a process is to an iteration."""

from __future__ import annotations

from agent.events import WorkerExited
from agent.exit_status import describe_exit
from agent.inprocess.model import Interruption, InterruptionKind
from agent.watchdog.model import Hang, HangKind
from agent.watchdog.words import describe_hang

HARD_SCOPE = "inprocess hard timeout"
"""Name of the worker's timer on its progress; one that begins with it is a part of it."""
HEARTBEAT_SCOPE = "inprocess heartbeat"
"""Name of the worker's timer that another of its threads keeps alive."""


def interruption_by(event: WorkerExited) -> Interruption:
    """Return what a worker's end is to the iteration it was in."""
    kind = InterruptionKind.TERMINATED
    if event.hang is not None:
        kind, message = _kind_of(event.hang), describe_hang(event.hang)
    elif event.error is not None:
        message = event.error.message
    elif event.exit_code == 0:
        message = "it exited with code 0 before the iteration was over"
    else:
        message = f"its process ended: {describe_exit(event.exit_code)}"
    return Interruption(local_rank=event.local_rank, kind=kind, message=message)


def farewell(event: WorkerExited) -> Interruption:
    """Return what others are told of a worker that ended outside of an iteration."""
    return Interruption(
        local_rank=event.local_rank,
        kind=InterruptionKind.TERMINATED,
        message=f"it ended outside of an iteration: {describe_exit(event.exit_code)}",
    )


def _kind_of(hang: Hang) -> InterruptionKind:
    if hang.kind is HangKind.TIMER and hang.scope.startswith(HARD_SCOPE):
        return InterruptionKind.HARD_TIMEOUT
    is_heartbeat = hang.kind is HangKind.TIMER and hang.scope == HEARTBEAT_SCOPE
    if is_heartbeat or hang.kind is HangKind.RUNTIME:
        return InterruptionKind.UNRESPONSIVE
    return InterruptionKind.TERMINATED
