"""Shell. How the values that both sides know are written as messages and read from them."""

from __future__ import annotations

from typing import Any

from drumbeat.inprocess import (
    InprocessDirective,
    InprocessSeat,
    IterationBegin,
    IterationComplete,
    IterationInterrupt,
)
from drumbeat.model import (
    Assignment,
    CollectiveCall,
    FaultKind,
    FaultOrder,
    FaultReport,
    GpuUse,
    GroupCalls,
    HangGroup,
    Health,
    HealthState,
    HostMemory,
    NoticeReport,
    Pace,
    PreflightFinding,
    ReplicaGroup,
    Standby,
    Stop,
    WorkerMemory,
)
from drumbeat.text.violation import InvalidField
from drumbeat.torchft import lighthouse_pb2
from drumbeat.v1 import common_pb2, failure_pb2, inprocess_pb2, session_pb2
from drumbeat.wire.mapping import MessageMapping
from drumbeat.worker.v1 import iteration_pb2

# Of what a replica says of itself. A quorum of a thousand fits into the 4 MiB that torchft reads.
MEMBER_BYTES_MAX = 4 * 1024
REPLICA_ID_BYTES_MAX = 256

PACE = MessageMapping(Pace, session_pb2.Pace)
REPLICA_GROUP = MessageMapping(ReplicaGroup, common_pb2.ReplicaGroup)
PREFLIGHT = MessageMapping(PreflightFinding, session_pb2.PreflightFinding)
NOTICE_REPORT = MessageMapping(NoticeReport, session_pb2.NoticeReport)
FAULT_ORDER = MessageMapping(FaultOrder, session_pb2.InjectFault, parts={"kind": FaultKind})
FAULT_REPORT = MessageMapping(FaultReport, session_pb2.FaultReport)
HEALTH = MessageMapping(Health, session_pb2.Health, parts={"state": HealthState})
GPU_USE = MessageMapping(GpuUse, session_pb2.GpuUse)
WORKER_MEMORY = MessageMapping(WorkerMemory, failure_pb2.WorkerMemory)
MEMORY = MessageMapping(HostMemory, failure_pb2.HostMemory, parts={"workers": WORKER_MEMORY})
COLLECTIVE_CALL = MessageMapping(CollectiveCall, session_pb2.CollectiveCall)
GROUP_CALLS = MessageMapping(
    GroupCalls, session_pb2.ProcessGroupCalls, parts={"calls": COLLECTIVE_CALL}
)
HANG_GROUP = MessageMapping(HangGroup, failure_pb2.HangGroup)
# By their names in `drumbeat.v1.DesiredState`; of the others each side has its own values.
DESIRED: dict[str, MessageMapping[Any]] = {
    "standby": MessageMapping(Standby, session_pb2.Standby),
    "run": MessageMapping(Assignment, session_pb2.Assignment),
    "stop": MessageMapping(Stop, session_pb2.Stop),
}
DIRECTIVE = MessageMapping(
    InprocessDirective,
    inprocess_pb2.InprocessDirective,
    parts={
        "kind": {
            "begin": MessageMapping(
                IterationBegin,
                inprocess_pb2.IterationBegin,
                parts={"seats": MessageMapping(InprocessSeat, inprocess_pb2.InprocessSeat)},
            ),
            "interrupt": MessageMapping(IterationInterrupt, iteration_pb2.IterationInterrupt),
            "complete": MessageMapping(IterationComplete, iteration_pb2.IterationComplete),
        }
    },
)


def check_replica_id(field: str, replica_id: str) -> str:
    """Return the id of a replica. Raises ``InvalidField``."""
    if not 1 <= len(replica_id.encode()) <= REPLICA_ID_BYTES_MAX:
        raise InvalidField(field, replica_id, f"1 to {REPLICA_ID_BYTES_MAX} bytes")
    return replica_id


def check_quorum_member(field: str, member: lighthouse_pb2.QuorumMember) -> None:
    """Raise ``InvalidField`` for a replica without an id, or that says too much of itself."""
    check_replica_id(f"{field}.replica_id", member.replica_id)
    if (size := member.ByteSize()) > MEMBER_BYTES_MAX:
        raise InvalidField(field, f"{size} bytes", f"at most {MEMBER_BYTES_MAX} bytes")
