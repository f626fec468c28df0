"""Messages of in-process restart to values and back."""

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from drumbeat.agent.core.inprocess.worker import shortened
from drumbeat.agent.core.model import Abort, Failure, InprocessReport, WorkerOrder, WorkerStep
from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.agent.session import convert
from drumbeat.agent.session.convert import beat_message, failure_message
from drumbeat.agent.watchdog import worker_messages
from drumbeat.inprocess import (
    InprocessSeat,
    InprocessStep,
    Interruption,
    InterruptionKind,
    IterationBegin,
    IterationComplete,
    IterationInterrupt,
)
from drumbeat.model import GroupState
from drumbeat.text.violation import InvalidField
from drumbeat.v1 import failure_pb2, inprocess_pb2
from drumbeat.worker.v1 import iteration_pb2, worker_pb2
from tests.support.agents import CONFIG, IDENTITY, a_beat

SPEC = iteration_pb2.InprocessSpec(
    rules=[
        iteration_pb2.RankRule(shift=iteration_pb2.ShiftRanks()),
        iteration_pb2.RankRule(groups=iteration_pb2.GroupSizes(allowed=b"\x02")),
    ],
    world_size_min=2,
    barrier_timeout=Duration(seconds=120),
)
SAID = iteration_pb2.Interruption(
    local_rank=9,
    kind=iteration_pb2.INTERRUPTION_KIND_EXCEPTION,
    message="boom",
    traceback="T",
)
TERMINATED = iteration_pb2.INTERRUPTION_KIND_TERMINATED
READ = Interruption(local_rank=1, kind=InterruptionKind.EXCEPTION, message="boom", traceback="T")
KEY = WorkerKey(0, 1)


def said(kind: Any, **more: Any) -> WorkerStep:
    return WorkerStep(worker=KEY, iteration=3, kind=kind, **more)


@pytest.mark.parametrize(
    ("message", "step"),
    [
        (
            worker_pb2.WorkerStep(entered=worker_pb2.Entered(spec=SPEC, group="g")),
            said("entered", spec=SPEC.SerializeToString(deterministic=True), group="g"),
        ),
        (worker_pb2.WorkerStep(completed=worker_pb2.Completed()), said("completed")),
        (worker_pb2.WorkerStep(interrupted=worker_pb2.Interrupted()), said("interrupted")),
        (
            worker_pb2.WorkerStep(interrupted=worker_pb2.Interrupted(interruption=SAID)),
            said("interrupted", interruption=READ),
        ),
        (
            worker_pb2.WorkerStep(terminated=worker_pb2.Terminated(interruption=SAID)),
            said("terminated", interruption=READ),
        ),
    ],
)
def test_every_step_is_read(message: worker_pb2.WorkerStep, step: WorkerStep) -> None:
    message.iteration = 3
    assert worker_messages.step_from(message, KEY) == step


def test_a_step_of_a_later_version_is_passed_over() -> None:
    assert worker_messages.step_from(worker_pb2.WorkerStep(iteration=7), KEY) is None


def entered(**spec: object) -> worker_pb2.WorkerStep:
    said = iteration_pb2.InprocessSpec(**spec)  # type: ignore[arg-type]
    return worker_pb2.WorkerStep(entered=worker_pb2.Entered(spec=said))


def interrupted(**fields: object) -> worker_pb2.WorkerStep:
    given = {"kind": SAID.kind} | fields
    said = iteration_pb2.Interruption(**given)  # type: ignore[arg-type]
    return worker_pb2.WorkerStep(interrupted=worker_pb2.Interrupted(interruption=said))


def terminated(**fields: object) -> worker_pb2.WorkerStep:
    said = iteration_pb2.Interruption(**fields)  # type: ignore[arg-type]
    return worker_pb2.WorkerStep(terminated=worker_pb2.Terminated(interruption=said))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (worker_pb2.WorkerStep(iteration=2**63), "step.iteration"),
        (
            worker_pb2.WorkerStep(entered=worker_pb2.Entered(group="é" * 65)),
            "step.entered.group: 130 is given, allowed is at most 128 bytes",
        ),
        (
            entered(
                rules=[iteration_pb2.RankRule(groups=iteration_pb2.GroupSizes(allowed=bytes(2048)))]
                * 20
            ),
            "step.entered.spec: 41",
        ),
        (interrupted(message="x" * 4097), "step.interrupted.interruption.message: 4097"),
        (interrupted(traceback="x" * 65537), "step.interrupted.interruption.traceback"),
        (interrupted(kind=0), "step.interrupted.interruption.kind"),
        (interrupted(kind=TERMINATED), "step.interrupted.interruption.kind"),
        (terminated(kind=iteration_pb2.INTERRUPTION_KIND_HOST_LOST), "step.terminated"),
        (
            worker_pb2.WorkerStep(terminated=worker_pb2.Terminated()),
            "step.terminated.interruption: nothing is given",
        ),
    ],
)
def test_a_step_that_cannot_be_is_refused_by_the_name_of_its_field(
    message: worker_pb2.WorkerStep, field: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        worker_messages.step_from(message, KEY)
    assert str(caught.value).startswith(field)


def test_the_longest_step_is_read() -> None:
    longest = interrupted(message="x" * 4096, traceback="x" * 65536)
    assert worker_messages.step_from(longest, KEY) is not None


def test_every_order_is_written() -> None:
    begin = IterationBegin(
        seats=(InprocessSeat(local_rank=0, rank=3, active_rank=0),),
        world_size=8,
        active_world_size=4,
        master_addr="a",
        master_port=70,
    )
    message = worker_messages.order_message(WorkerOrder(worker=KEY, iteration=5, kind=begin))
    assert message == worker_pb2.WorkerOrder(
        iteration=5,
        begin=worker_pb2.WorkerBegin(
            rank=3,
            world_size=8,
            active_rank=0,
            active_world_size=4,
            master_addr="a",
            master_port=70,
        ),
    )
    assert message.begin.HasField("active_rank")
    interrupt = worker_messages.order_message(
        WorkerOrder(worker=KEY, iteration=5, kind=IterationInterrupt(reason="r"))
    )
    assert interrupt.interrupt.reason == "r"
    complete = worker_messages.order_message(
        WorkerOrder(worker=KEY, iteration=5, kind=IterationComplete())
    )
    assert complete.WhichOneof("kind") == "complete"
    quiet = worker_messages.order_message(
        WorkerOrder(worker=KEY, iteration=5, kind=IterationInterrupt(reason=""))
    )
    assert quiet.WhichOneof("kind") == "interrupt"


def test_a_spare_has_no_active_rank() -> None:
    begin = IterationBegin(
        seats=(InprocessSeat(local_rank=0, rank=3, active_rank=None),),
        world_size=8,
        active_world_size=3,
        master_addr="a",
        master_port=70,
    )
    message = worker_messages.order_message(WorkerOrder(worker=KEY, iteration=5, kind=begin))
    assert not message.begin.HasField("active_rank")


def test_a_report_goes_with_the_beat_and_without_tracebacks() -> None:
    spec = SPEC.SerializeToString(deterministic=True)
    report = InprocessReport(
        iteration=4,
        step=InprocessStep.ENTERED,
        terminated=(shortened(READ),),
        interruptions=(shortened(READ),),
        spec=spec,
        groups=("", "g"),
    )
    message = beat_message(a_beat(GroupState.RUNNING, 0, inprocess=report)).inprocess
    short = iteration_pb2.Interruption(
        local_rank=1, kind=iteration_pb2.INTERRUPTION_KIND_EXCEPTION, message="boom"
    )
    assert message == inprocess_pb2.InprocessReport(
        iteration=4,
        step=inprocess_pb2.INPROCESS_STEP_ENTERED,
        terminated=[short],
        interruptions=[short],
        spec=SPEC,
        groups=["", "g"],
    )
    assert not beat_message(a_beat()).HasField("inprocess")


def test_a_spec_of_defaults_is_there_all_the_same() -> None:
    report = InprocessReport(iteration=0, step=InprocessStep.ENTERED, spec=b"")
    assert convert.report_message(report).HasField("spec")
    report = InprocessReport(iteration=0, step=InprocessStep.RUNNING)
    assert not convert.report_message(report).HasField("spec")


@pytest.mark.parametrize("step", InprocessStep)
def test_every_step_of_a_host_has_a_name(step: InprocessStep) -> None:
    message = convert.report_message(InprocessReport(iteration=0, step=step))
    assert inprocess_pb2.InprocessStep.Name(message.step) == f"INPROCESS_STEP_{step}"


@pytest.mark.parametrize("kind", InterruptionKind)
def test_every_kind_is_read(kind: InterruptionKind) -> None:
    number = iteration_pb2.InterruptionKind.Value(f"INTERRUPTION_KIND_{kind}")
    assert convert.kind_from(number) is kind
    assert kind.label


def test_there_may_be_no_kind() -> None:
    assert convert.kind_from(iteration_pb2.INTERRUPTION_KIND_UNSPECIFIED) is None


def test_a_record_says_which_iteration_it_was() -> None:
    failure = Failure(
        sequence=1,
        round_id=0,
        rank=3,
        local_rank=1,
        group_rank=1,
        role_rank=3,
        happened_at=1.0,
        pid=7,
        exit_code=0,
        message="boom",
        interruption=InterruptionKind.SOFT_TIMEOUT,
        iteration=12,
    )
    record = failure_message(failure, CONFIG, IDENTITY)
    assert isinstance(record, failure_pb2.FailureRecord)
    assert record.interruption == iteration_pb2.INTERRUPTION_KIND_SOFT_TIMEOUT
    assert record.iteration == 12


BEFORE = said("entered")
LEFT = said("terminated", interruption=READ)
TOLD = [
    (None, None, (0, "")),
    (BEFORE, None, (4, "")),
    (said("completed"), IterationComplete(), (4, "")),
    (LEFT, IterationInterrupt(reason="it left"), (4, "it has left this round's iterations: boom")),
    (LEFT, IterationComplete(), (4, "")),
    (BEFORE, Abort(reason="too few"), (4, "no iteration follows: too few")),
]


@pytest.mark.parametrize(("step", "order", "expected"), TOLD)
def test_a_program_hears_where_its_worker_stands(
    step: WorkerStep | None,
    order: IterationInterrupt | IterationComplete | Abort | None,
    expected: tuple[int, str],
) -> None:
    """It may be the second one; what the first did outside of an iteration is of no matter."""
    greeted = worker_messages.greeting(
        step,
        None if order is None else WorkerOrder(worker=KEY, iteration=3, kind=order),
    )
    assert (greeted.next_iteration, greeted.left) == expected


def test_an_abort_is_written_with_its_reason() -> None:
    order = WorkerOrder(worker=KEY, iteration=3, kind=Abort(reason="too few"))
    assert worker_messages.order_message(order).abort.reason == "too few"
