"""Shell. The cluster that a coordinator is in, and the calls about it, which need no leader."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping

from drumbeat.coordinator.access.audit import Audit
from drumbeat.coordinator.api.audited import Details, audited
from drumbeat.coordinator.cluster.model import Leader, Member
from drumbeat.coordinator.core.tokens.caller import Caller
from drumbeat.coordinator.errors import CannotStepDown
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.transport.methods import CONTROL, QUERY, Services
from drumbeat.coordinator.wire.control import reason_of
from drumbeat.v1 import control_pb2, query_pb2


class Cluster:
    """The coordinators that share a journal, as one of them knows them; of this class: one alone.

    ``member`` is that one, ``term`` the one of its journal.
    """

    def __init__(self, member: Member, term: int = 0) -> None:
        self.member, self._term = member, term

    @property
    def members(self) -> tuple[Member, ...]:
        """All members, ordered by address."""
        return (self.member,)

    @property
    def leader(self) -> Leader | None:
        """The member that leads, as far as is known."""
        return Leader(self.member, self._term, 0)

    @property
    def reason(self) -> str:
        """Why none leads; empty: one does."""
        return ""

    async def step_down(self, reason: str) -> Leader:
        """Have another member lead, and return it. Raises ``CannotStepDown`` or ``NotLeader``."""
        raise CannotStepDown("there is no other coordinator; --journal etcd://... has several")


class ClusterService:
    """The methods that every coordinator serves. ``outage``: why this one decides nothing.

    ``settings`` are those of this coordinator, for those who look for a cause.
    """

    def __init__(
        self,
        cluster: Cluster,
        audit: Audit,
        caller_of: Callable[[object], Caller],
        outage: Callable[[], str],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._cluster, self.audit, self.caller_of = cluster, audit, caller_of
        self._outage, self._settings = outage, settings or {}

    def services(self, limits: Limits) -> Services:
        """Return the methods as services."""
        return Services({QUERY: self, CONTROL: self}, limits)

    async def ListCoordinators(
        self,
        request: query_pb2.ListCoordinatorsRequest,
        context: object = None,
    ) -> query_pb2.ListCoordinatorsResponse:
        cluster, leader = self._cluster, self._cluster.leader
        shown = [
            query_pb2.Coordinator(
                address=member.address,
                is_leader=leader is not None and member == leader.member,
                is_this=member == cluster.member,
                version=member.version,
            )
            for member in cluster.members
        ]
        return query_pb2.ListCoordinatorsResponse(
            coordinators=shown,
            term=0 if leader is None else leader.term,
            reason=cluster.reason or self._outage(),
            settings=self._settings,
            python_version=platform.python_version(),
        )

    @audited
    async def StepDown(
        self, request: control_pb2.StepDownRequest, caller: str, _: Details
    ) -> control_pb2.StepDownResponse:
        why = reason_of(request.reason)
        asked = f"{caller or 'an operator'} asked for it"
        leader = await self._cluster.step_down(f"{asked}: {why}" if why else asked)
        return control_pb2.StepDownResponse(leader=leader.address)
