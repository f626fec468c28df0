"""Pure. What the end of a process is to an iteration."""

from __future__ import annotations

from agent.core.events import WorkerExited
from agent.core.inprocess.model import Interruption, InterruptionKind
from agent.watchdog.core.format import describe_hang
from agent.watchdog.core.model import Hang, HangKind, Purpose
from agent.workers.failures.exit_status import describe_exit


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
    if hang.purpose is Purpose.HARD_TIMEOUT:
        return InterruptionKind.HARD_TIMEOUT
    if hang.purpose is Purpose.HEARTBEAT or hang.kind is HangKind.RUNTIME:
        return InterruptionKind.UNRESPONSIVE
    return InterruptionKind.TERMINATED
