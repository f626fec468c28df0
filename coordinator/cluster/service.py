"""Shell. What each coordinator answers, whether it leads or not: of the cluster that it is in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Protocol

from drumbeat.coordinator.access.audit import Audit
from drumbeat.coordinator.access.caller import Caller
from drumbeat.coordinator.api.audited import Details, audited
from drumbeat.coordinator.cluster.model import Leader, Member
from drumbeat.coordinator.errors import CannotStepDown
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.transport.methods import CONTROL, QUERY, Services
from drumbeat.coordinator.wire.control import reason_of
from drumbeat.v1 import control_pb2, query_pb2


class Cluster(Protocol):
    """The coordinators that share a journal, as one of them knows them."""

    @property
    def member(self) -> Member:
        """The one that knows them."""
        ...

    @property
    def members(self) -> Iterable[Member]:
        """All that are there, ordered by address."""
        ...

    @property
    def leader(self) -> Leader | None:
        """Which of them leads, as far as is known."""
        ...

    @property
    def reason(self) -> str:
        """Why none leads; empty: one does."""
        ...

    async def step_down(self, reason: str) -> Leader:
        """Have another one lead, and return it. Raises ``CannotStepDown`` or ``NotLeader``."""
        ...


class ClusterService:
    """The methods that need no term. ``outage`` says why nothing is decided in this one's term."""

    def __init__(
        self,
        cluster: Cluster,
        audit: Audit,
        caller_of: Callable[[object], Caller],
        outage: Callable[[], str],
    ) -> None:
        self._cluster, self.audit, self.caller_of = cluster, audit, caller_of
        self._outage = outage

    def services(self, limits: Limits) -> Services:
        """Return what is served."""
        return Services({QUERY: self, CONTROL: self}, limits)

    async def ListCoordinators(
        self,
        request: query_pb2.ListCoordinatorsRequest,
        context: object = None,
    ) -> query_pb2.ListCoordinatorsResponse:
        """Return the cluster as it is known here."""
        cluster, leader = self._cluster, self._cluster.leader
        shown = [
            query_pb2.Coordinator(
                address=each.address,
                is_leader=leader is not None and each == leader.member,
                is_this=each == cluster.member,
                version=each.version,
            )
            for each in cluster.members
        ]
        return query_pb2.ListCoordinatorsResponse(
            coordinators=shown,
            term=0 if leader is None else leader.term,
            reason=cluster.reason or self._outage(),
        )

    @audited
    async def StepDown(
        self, request: control_pb2.StepDownRequest, caller: str, _: Details
    ) -> control_pb2.StepDownResponse:
        """Have another one lead. Raises ``CannotStepDown`` or ``NotLeader``."""
        why = reason_of(request.reason)
        asked = f"{caller or 'an operator'} asked for it"
        leader = await self._cluster.step_down(f"{asked}: {why}" if why else asked)
        return control_pb2.StepDownResponse(leader=leader.address)


class Alone:
    """A coordinator that shares its journal with none."""

    reason = ""

    def __init__(self, address: str, term: int) -> None:
        self.member = Member("", address, version())
        self.members = (self.member,)
        self.leader = Leader(self.member, term, 0)

    async def step_down(self, reason: str) -> Leader:
        """Raise ``CannotStepDown``."""
        raise CannotStepDown("there is no other coordinator; --journal etcd://... has several")


def version() -> str:
    """Return the release of this package."""
    return metadata.version("drumbeat")
