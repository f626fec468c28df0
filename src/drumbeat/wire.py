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
from drumbeat.mapping import MessageMapping
from drumbeat.model import (
    Assignment,
    CollectiveCall,
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
from drumbeat.v1 import common_pb2, failure_pb2, inprocess_pb2, session_pb2
from drumbeat.worker.v1 import iteration_pb2

PACE = MessageMapping(Pace, session_pb2.Pace)
REPLICA_GROUP = MessageMapping(ReplicaGroup, common_pb2.ReplicaGroup)
PREFLIGHT = MessageMapping(PreflightFinding, session_pb2.PreflightFinding)
NOTICE_REPORT = MessageMapping(NoticeReport, session_pb2.NoticeReport)
HEALTH = MessageMapping(Health, session_pb2.Health, parts={"state": HealthState})
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
