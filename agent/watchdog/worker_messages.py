"""Shell. Messages between a worker and its agent about restarts in process, checked, as values."""

from __future__ import annotations

from msgspec.structs import replace

from drumbeat.agent.core.model import Abort, WorkerOrder, WorkerStep
from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.inprocess import (
    Interruption,
    InterruptionKind,
    IterationBegin,
    IterationComplete,
    IterationInterrupt,
)
from drumbeat.text.violation import InvalidField
from drumbeat.wire.mapping import MessageMapping
from drumbeat.worker.v1 import iteration_pb2, worker_pb2

INT64_MAX = 2**63 - 1
# Of what a worker says of an iteration.
MESSAGE_BYTES_MAX = 4 * 1024
TRACEBACK_BYTES_MAX = 64 * 1024
GROUP_BYTES_MAX = 128
SPEC_BYTES_MAX = 40 * 1024
"""Enough for 16 rules, with sizes of groups of 16,383 workers each."""

_BEGIN = MessageMapping(IterationBegin, worker_pb2.WorkerBegin, given=("seats",))
INTERRUPTION = MessageMapping(
    Interruption, iteration_pb2.Interruption, parts={"kind": InterruptionKind}
)
# What a worker can know of itself; the others are for agents and the coordinator to say.
_SAID = (
    InterruptionKind.EXCEPTION, InterruptionKind.BASE_EXCEPTION, InterruptionKind.SOFT_TIMEOUT,
    InterruptionKind.UNHEALTHY,
)  # fmt: skip
_SAID_AT_THE_END = (*_SAID, InterruptionKind.TERMINATED, InterruptionKind.EXITED)


def step_from(message: worker_pb2.WorkerStep, worker: WorkerKey) -> WorkerStep | None:
    """Read a worker's step, ``None`` if it is of a later version. Raises ``InvalidField``."""
    if message.iteration > INT64_MAX:
        raise InvalidField("step.iteration", message.iteration, "below 2**63")
    if (kind := message.WhichOneof("kind")) is None:
        return None
    spec, group, why = b"", "", None
    content, path = getattr(message, kind), f"step.{kind}.interruption"
    if kind == "entered":
        # Of what is handed on, the coordinator knows what it means.
        spec, group = content.spec.SerializeToString(deterministic=True), content.group
        _check_size("step.entered.spec", spec, SPEC_BYTES_MAX)
        _check_size("step.entered.group", group.encode(), GROUP_BYTES_MAX)
    elif kind != "completed" and content.HasField("interruption"):
        # Its token tells better than the message which worker it is.
        why = replace(INTERRUPTION.read(content.interruption, path), local_rank=worker.local_rank)
        if why.kind not in (_SAID if kind == "interrupted" else _SAID_AT_THE_END):
            raise InvalidField(f"{path}.kind", why.kind, "what a worker can know of itself")
        _check_size(f"{path}.message", why.message.encode(), MESSAGE_BYTES_MAX)
        _check_size(f"{path}.traceback", why.traceback.encode(), TRACEBACK_BYTES_MAX)
    elif kind == "terminated":
        raise InvalidField(path, None, "an interruption")
    iteration = message.iteration
    return WorkerStep(
        worker=worker, iteration=iteration, kind=kind, interruption=why, spec=spec, group=group
    )


def _check_size(path: str, encoded: bytes, most: int) -> None:
    if len(encoded) > most:
        raise InvalidField(path, len(encoded), f"at most {most} bytes")


def order_message(order: WorkerOrder) -> worker_pb2.WorkerOrder:
    """Write what a worker shall do."""
    message = worker_pb2.WorkerOrder(iteration=order.iteration)
    match order.kind:
        case IterationBegin(seats=(seat,)) as begin:
            own = seat._asdict()
            del own["local_rank"]
            message.begin.CopyFrom(_BEGIN.write(begin, **own))
        case IterationInterrupt(reason=reason):
            message.interrupt.reason = reason
        case Abort(reason=reason):
            message.abort.reason = reason
        case IterationComplete():
            message.complete.SetInParent()
    return message


def greeting(step: WorkerStep | None, order: WorkerOrder | None) -> worker_pb2.Greeted:
    """Write where the next program of a worker begins, after what was said and told last."""
    if step is None:
        return worker_pb2.Greeted()
    latest = order if order is not None and order.iteration >= step.iteration else None
    left, is_complete = "", latest is not None and isinstance(latest.kind, IterationComplete)
    if latest is not None and isinstance(latest.kind, Abort):
        left = f"no iteration follows: {latest.kind.reason}"
    elif step.kind == "terminated" and step.interruption and not is_complete:
        left = f"it has left this round's iterations: {step.interruption.message}"
    return worker_pb2.Greeted(next_iteration=step.iteration + 1, left=left)
