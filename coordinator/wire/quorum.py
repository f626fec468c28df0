"""Shell. What agents of replica groups say of their replicas, and quorums as they get them."""

from __future__ import annotations

import time

from google.protobuf.message import DecodeError

from drumbeat.coordinator.core.quorum.model import Quorum, QuorumRequest, ReplicaReported
from drumbeat.text.violation import InvalidField
from drumbeat.torchft import lighthouse_pb2
from drumbeat.v1 import session_pb2
from drumbeat.wire.messages import check_quorum_member, check_replica_id


def replica_reported(
    message: session_pb2.JoinQuorumRequest, *, group: int, source: str
) -> ReplicaReported:
    """Read the state of a replica. Raises ``InvalidField``."""
    replica_id, request = check_replica_id("replica_id", message.replica_id), None
    if message.number and message.HasField("member"):
        member = message.member
        check_quorum_member("member", member)
        if member.replica_id != replica_id:
            raise InvalidField("member.replica_id", member.replica_id, repr(replica_id))
        request = _request(member, message.number)
    latest = _read_quorum(message.latest) if message.HasField("latest") else None
    return ReplicaReported(
        group=group,
        source=source,
        replica_id=replica_id,
        is_silent=message.is_silent,
        request=request,
        latest=latest,
    )


def encode_quorum(quorum: Quorum) -> bytes:
    """Return the answer of torchft's lighthouse, the same for all members."""
    if quorum.response:
        return quorum.response
    response = lighthouse_pb2.LighthouseQuorumResponse(
        quorum=lighthouse_pb2.Quorum(
            quorum_id=quorum.quorum_id,
            participants=(request.member for request in quorum.requests),  # type: ignore[misc]
        )
    )
    response.quorum.created.FromNanoseconds(time.time_ns())
    return response.SerializeToString()


def _read_quorum(answer: session_pb2.JoinQuorumResponse) -> Quorum | None:
    """Read a quorum that an agent has got; ``None`` if it can't be one."""
    response = lighthouse_pb2.LighthouseQuorumResponse()
    try:
        response.ParseFromString(answer.response)
    except DecodeError:
        return None
    members, numbers = response.quorum.participants, answer.numbers
    if not members or len(members) != len(numbers):
        return None
    requests = tuple(map(_request, members, numbers))
    return Quorum(quorum_id=response.quorum.quorum_id, requests=requests, response=answer.response)


def _request(member: lighthouse_pb2.QuorumMember, number: int) -> QuorumRequest:
    return QuorumRequest(
        replica_id=member.replica_id,
        number=number,
        shrink_only=member.shrink_only,
        commit_failures=member.commit_failures,
        member=member,
    )
