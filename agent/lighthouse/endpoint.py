"""Shell. Serves torchft's ``LighthouseService`` on loopback, to the workers of this agent alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc
import structlog

from drumbeat.agent.host.file_thread import FilesStalled, FileThread
from drumbeat.agent.lighthouse.peers import is_of_descendant
from drumbeat.agent.lighthouse.relay import QuorumRelay, RequestDropped
from drumbeat.text.violation import InvalidField
from drumbeat.torchft import lighthouse_pb2
from drumbeat.wire.messages import MEMBER_BYTES_MAX, check_quorum_member, check_replica_id

log = structlog.get_logger()

LOOPBACK = "127.0.0.1"
CALLS_MAX = 64  # at once; a group has one manager, and others are refused
PEERS_MAX = 64  # connections that are known; one more, and all are looked at again
PEER_TIMEOUT_S = 5.0  # to look at one
STRANGERS_TOLD_MAX = 20  # lines of the log on refused callers

_SERVICE = lighthouse_pb2.DESCRIPTOR.services_by_name["LighthouseService"].full_name
_OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 2 * MEMBER_BYTES_MAX),
    # torchft's clients ping once a minute, without a call, too.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
]
_Context = grpc.aio.ServicerContext[Any, Any]


class LighthouseEndpoint:
    """Belongs to one event loop. A connection is looked at once in each round of workers."""

    def __init__(self, relay: QuorumRelay) -> None:
        self._relay = relay
        self._server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        read_quorum = lighthouse_pb2.LighthouseQuorumRequest.FromString
        read_heartbeat = lighthouse_pb2.LighthouseHeartbeatRequest.FromString
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Quorum": grpc.unary_unary_rpc_method_handler(self._quorum, read_quorum),
            "Heartbeat": grpc.unary_unary_rpc_method_handler(self._heartbeat, read_heartbeat),
        }
        generic = grpc.method_handlers_generic_handler(_SERVICE, handlers)
        self._server.add_generic_rpc_handlers((generic,))
        self._port = 0
        self._peers: dict[str, bool] = {}  # whether a process of ours is at the other end
        self._files = FileThread("peers")
        self._strangers = 0

    async def start(self) -> str:
        """Begin to serve; return the URL. Raises ``RuntimeError`` if no port is free."""
        self._port = self._server.add_insecure_port(f"{LOOPBACK}:0")
        await self._server.start()
        return f"http://{LOOPBACK}:{self._port}"

    def begin_round(self, round_id: int) -> None:
        """Serve the workers of another round."""
        self._peers.clear()
        self._relay.begin_round(round_id)

    async def close(self) -> None:
        """End all calls."""
        self._relay.close()
        await self._server.stop(None)
        self._files.close()

    async def _quorum(
        self, request: lighthouse_pb2.LighthouseQuorumRequest, context: _Context
    ) -> bytes:
        await self._check_peer(context)
        try:
            check_quorum_member("requester", request.requester)
            return await self._relay.ask(request.requester)
        except InvalidField as problem:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(problem))
        except RequestDropped as dropped:
            await context.abort(grpc.StatusCode.ABORTED, str(dropped))

    async def _heartbeat(
        self, request: lighthouse_pb2.LighthouseHeartbeatRequest, context: _Context
    ) -> bytes:
        await self._check_peer(context)
        try:
            self._relay.heard(check_replica_id("replica_id", request.replica_id))
        except InvalidField as problem:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(problem))
        return b""

    async def _check_peer(self, context: _Context) -> None:
        """Refuse a caller that is no process below this agent."""
        peer = context.peer()
        if peer not in self._peers:
            port = int(peer.rpartition(":")[2])
            try:
                is_ours = await self._files.run(
                    partial(is_of_descendant, port, self._port), timeout_s=PEER_TIMEOUT_S
                )
            except FilesStalled as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            if len(self._peers) >= PEERS_MAX:
                self._peers.clear()
            self._peers[peer] = is_ours
        if not self._peers[peer]:
            if self._strangers < STRANGERS_TOLD_MAX:
                self._strangers += 1
                log.warning("caller of the lighthouse refused", reason=f"{peer} is no worker")
            why = "this lighthouse serves the workers of its agent alone"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
