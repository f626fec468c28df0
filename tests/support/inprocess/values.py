"""Values for tests of in-process restart on a host, short to write."""

from collections.abc import Sequence

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.events import OrderReceived, WorkerExited
from drumbeat.agent.core.model import Abort, WorkerOrder, WorkerStep
from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.agent.model.hang import Hang, Purpose, WorkerProgress
from drumbeat.inprocess import (
    InprocessDirective,
    InprocessSeat,
    Interruption,
    InterruptionKind,
    IterationBegin,
    IterationComplete,
    IterationInterrupt,
)
from drumbeat.model import HangKind

SPEC = b"spec"
K = InterruptionKind


def why(local_rank: int, kind: K = K.EXCEPTION, message: str = "boom") -> Interruption:
    """Return what went wrong with a worker."""
    return Interruption(local_rank=local_rank, kind=kind, message=message)


def enters(
    local_rank: int,
    iteration: int,
    *,
    spec: bytes = SPEC,
    group: str = "",
    round_id: int = 0,
) -> WorkerStep:
    """Return a worker's entry."""
    key = WorkerKey(round_id, local_rank)
    return WorkerStep(worker=key, iteration=iteration, kind="entered", spec=spec, group=group)


def completes(local_rank: int, iteration: int) -> WorkerStep:
    """Return that a worker's function has returned."""
    return WorkerStep(worker=WorkerKey(0, local_rank), iteration=iteration, kind="completed")


def breaks(
    local_rank: int, iteration: int, kind: K | None = K.EXCEPTION, message: str = "boom"
) -> WorkerStep:
    """Return that a worker's iteration can't go on; ``None``: it only heard so."""
    found = None if kind is None else why(local_rank, kind, message)
    key = WorkerKey(0, local_rank)
    return WorkerStep(worker=key, iteration=iteration, kind="interrupted", interruption=found)


def leaves(
    local_rank: int, iteration: int, kind: K = K.BASE_EXCEPTION, message: str = "boom"
) -> WorkerStep:
    """Return that a worker takes no part any more."""
    key, found = WorkerKey(0, local_rank), why(local_rank, kind, message)
    return WorkerStep(worker=key, iteration=iteration, kind="terminated", interruption=found)


def a_begin(
    iteration: int,
    active: Sequence[int] = (0, 1),
    spare: Sequence[int] = (),
    *,
    round_id: int = 0,
    rank_first: int = 2,
) -> InprocessDirective:
    """Return that it begins, with these workers; ranks are in the order in which they are given."""
    seated = [*active, *spare]
    seats = tuple(
        InprocessSeat(
            local_rank=local_rank,
            rank=rank_first + index,
            active_rank=rank_first + index if index < len(active) else None,
        )
        for index, local_rank in enumerate(seated)
    )
    kind = IterationBegin(
        seats=seats,
        world_size=9,
        active_world_size=8,
        master_addr="10.0.0.1",
        master_port=7000 + iteration,
    )
    return InprocessDirective(round_id=round_id, iteration=iteration, kind=kind)


def an_interrupt(
    iteration: int, reason: str = "rank 0 failed", *, round_id: int = 0
) -> InprocessDirective:
    """Return that it was interrupted somewhere."""
    kind = IterationInterrupt(reason=reason)
    return InprocessDirective(round_id=round_id, iteration=iteration, kind=kind)


def a_complete(iteration: int, *, round_id: int = 0) -> InprocessDirective:
    """Return that all have completed it."""
    return InprocessDirective(round_id=round_id, iteration=iteration, kind=IterationComplete())


def directed(directive: InprocessDirective, *, attempt: int = 1) -> OrderReceived:
    """Return the coordinator's word."""
    return OrderReceived(attempt=attempt, order=directive)


def orders(effects: Sequence[fx.Effect]) -> list[tuple[int, int, str]]:
    """Return who was told what: local rank, iteration, kind; with its rank if it begins."""
    return [
        (effect.worker.local_rank, effect.iteration, _named(effect))
        for effect in effects
        if isinstance(effect, fx.WorkerOrder)
    ]


def _named(order: WorkerOrder) -> str:
    match order.kind:
        case IterationBegin(seats=seats):
            rank, active_rank = seats[0].rank, seats[0].active_rank
            return f"begin {rank}" if active_rank is not None else f"stand by {rank}"
        case IterationInterrupt():
            return "interrupt"
        case IterationComplete():
            return "complete"
        case Abort(reason=reason):
            return f"abort: {reason}"


def exits(local_rank: int, code: int = 1, **more: object) -> WorkerExited:
    """Return that a worker has ended."""
    given = {
        "round_id": 0,
        "pid": 70 + local_rank,
        "is_stopped": False,
        "ended_at": 99.0,
    } | more
    return WorkerExited(local_rank=local_rank, exit_code=code, **given)  # type: ignore[arg-type]


def a_hang(scope: str, *, purpose: Purpose = Purpose.USER, noticed_at: float = 98.0) -> Hang:
    """Return what the watchdog found."""
    return Hang(
        kind=HangKind.TIMER,
        purpose=purpose,
        scope=scope,
        limit_s=9.0,
        elapsed_s=9.1,
        standing=WorkerProgress(local_rank=0),
        noticed_at=noticed_at,
    )
