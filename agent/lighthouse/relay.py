"""Shell. Carries the state of this host's replica to the coordinator, and quorums back.

It outlives sessions: what a replica asks while no coordinator is reached waits for the next one.
"""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

import structlog

from drumbeat.agent.session.convert import Identity
from drumbeat.agent.session.transport import Connection, Replicas, TransportError
from drumbeat.torchft import lighthouse_pb2
from drumbeat.v1 import common_pb2, session_pb2

log = structlog.get_logger()

HEARTBEAT_TIMEOUT_S = 5.0  # as of torchft's lighthouse
RETRY_S = 0.5  # after a call that the coordinator ended, at most


class RequestDropped(Exception):
    """A request has no answer any more; the text says why."""


class _Request(NamedTuple):
    number: int
    member: lighthouse_pb2.QuorumMember
    answer: asyncio.Future[bytes]


class QuorumRelay:
    """One replica at a time, with one request at a time: the latest counts.

    Belongs to one event loop.
    """

    def __init__(self, run_id: str, identity: Identity) -> None:
        self._run_id, self._identity = run_id, identity
        self._round_id: int | None = None
        self._is_over = False  # the coordinator has no such round any more
        self._replica_id = ""
        self._heard_at = 0.0
        self._is_silent = False
        self._alarm: asyncio.TimerHandle | None = None
        self._request: _Request | None = None
        self._count = 0
        self._latest: session_pb2.JoinQuorumResponse | None = None
        self._changed = asyncio.Event()  # there is something to tell
        self._is_known = asyncio.Event()  # there is a replica

    def begin_round(self, round_id: int) -> None:
        """Forget the replica of the round before."""
        self._drop("its round is over")
        self._round_id, self._replica_id, self._is_over = round_id, "", False
        self._is_known.clear()
        self._changed.set()

    def close(self) -> None:
        """Answer nothing any more."""
        self._drop("the agent ends")
        if self._alarm is not None:
            self._alarm.cancel()

    def heard(self, replica_id: str) -> None:
        """Take in a heartbeat; of another replica only once this one is silent or that one asks."""
        if replica_id != self._replica_id:
            if self._replica_id and not self._is_silent:
                return
            self._replica_id, self._is_silent = replica_id, True
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        if self._is_silent or not self._is_known.is_set():
            self._is_silent = False
            self._tell()
        if self._alarm is None:
            self._alarm = loop.call_later(HEARTBEAT_TIMEOUT_S, self._check_silence)

    async def ask(self, member: lighthouse_pb2.QuorumMember) -> bytes:
        """Return the next quorum that has this replica, encoded. Raises ``RequestDropped``."""
        self._drop("the replica asked again")
        self._count += 1
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        request = self._request = _Request(self._count, member, answer)
        if self._replica_id != member.replica_id:
            self._replica_id, self._is_silent = member.replica_id, False
        self._tell()
        self.heard(member.replica_id)
        try:
            return await answer
        finally:
            if self._request is request:  # the caller is gone
                self._request = None
                self._changed.set()

    async def run(self, connection: Connection) -> None:
        """Keep a call through a session until cancelled."""
        while True:
            await self._is_known.wait()
            round_id = self._round_id
            try:
                await connection.join_quorum(self._messages(), self._take)
            except TransportError as error:
                log.debug("quorum call ended", reason=error.reason)
                if error.refusal == "STALE_SESSION" and self._round_id == round_id:
                    self._is_over = True
                    self._is_known.clear()
                else:
                    await asyncio.sleep(random.uniform(RETRY_S / 2, RETRY_S))  # noqa: S311 - jitter

    async def _messages(self) -> Replicas:
        round_id, identity = self._round_id, self._identity
        message = self._state()
        message.fence.CopyFrom(
            common_pb2.Fence(
                run_id=self._run_id, round_id=round_id, incarnation=identity.incarnation
            )
        )
        message.incarnation_key = identity.incarnation_key
        if self._latest is not None:
            message.latest.CopyFrom(self._latest)
        yield message
        while True:
            await self._changed.wait()
            if self._round_id != round_id:
                return
            yield self._state()

    def _state(self) -> session_pb2.JoinQuorumRequest:
        self._changed.clear()
        message = session_pb2.JoinQuorumRequest(
            replica_id=self._replica_id, is_silent=self._is_silent
        )
        if self._request is not None:
            message.number = self._request.number
            message.member.CopyFrom(self._request.member)
        return message

    def _take(self, response: session_pb2.JoinQuorumResponse) -> None:
        request = self._request
        if request is None or request.number != response.number:
            return  # it asks for nothing any more
        self._latest, self._request = response, None
        if not request.answer.done():
            request.answer.set_result(response.response)

    def _drop(self, reason: str) -> None:
        if self._request is not None and not self._request.answer.done():
            self._request.answer.set_exception(RequestDropped(reason))
        self._request = None

    def _tell(self) -> None:
        self._changed.set()
        if not self._is_over:
            self._is_known.set()

    def _check_silence(self) -> None:
        """Tell of a replica that sends no heartbeats, once it has sent none for long enough."""
        loop, self._alarm = asyncio.get_running_loop(), None
        due = self._heard_at + HEARTBEAT_TIMEOUT_S
        if loop.time() < due:
            self._alarm = loop.call_at(due, self._check_silence)
        elif self._is_known.is_set():
            self._is_silent = True
            self._changed.set()
