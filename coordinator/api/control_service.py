"""Shell. The control service, without gRPC. Each call is a line of the audit."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from drumbeat.access.token import ID_CHARACTERS, NO_CA, Token
from drumbeat.coordinator.access.audit import Audit
from drumbeat.coordinator.access.caller import Caller
from drumbeat.coordinator.access.server_identity import ServerIdentity
from drumbeat.coordinator.access.token_table import secret_sha256
from drumbeat.coordinator.core.effects import Steered
from drumbeat.coordinator.core.events import (
    CheckpointAsked,
    ForgetAsked,
    LimitsReset,
    RestartAsked,
    StopAsked,
    TokenRevoked,
)
from drumbeat.coordinator.errors import NoOwnAuthority, UnknownRun
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.wire.control import (
    call_id_of,
    drain_asked,
    drain_message,
    grace_of,
    reason_of,
    token_created,
    token_message,
)
from drumbeat.v1 import control_pb2 as pb

# No two that look alike, and none that options begin with. Ids of other origin have others.
_ID_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
_SECRET_BYTES = 16  # 22 characters


class ControlService:
    """Who may call is decided before. ``identity`` is what the server shows; ``None``: nothing."""

    def __init__(
        self,
        driver: Driver,
        identity: ServerIdentity | None,
        audit: Audit,
        caller_of: Callable[[object], Caller],
    ) -> None:
        self._driver, self._identity, self._audit = driver, identity, audit
        self._caller_of = caller_of
        # Called in a thread with the keys that are served from now on; the answer waits for it.
        self.on_replaced: Callable[[list[str]], None] = lambda _keys: None
        self._changes = set[asyncio.Task[list[str]]]()  # they end, though their callers may go

    async def ResetLimits(
        self, request: pb.ResetLimitsRequest, context: object = None
    ) -> pb.ResetLimitsResponse:
        """Forget the learned limits of a run, once that is journaled. Raises ``UnknownRun``."""
        caller, run_id = self._caller_of(context).name, request.run_id
        with self._audit.call("ResetLimits", caller, run_id):
            forgotten = await self._driver.ask(LimitsReset(run_id=run_id, caller=caller))
            if forgotten is None:
                raise UnknownRun(run_id)
            return pb.ResetLimitsResponse(forgotten=forgotten)

    async def CreateToken(
        self, request: pb.CreateTokenRequest, context: object = None
    ) -> pb.CreateTokenResponse:
        """Make a token, once that is journaled. Raises ``InvalidRequest`` or ``LimitReached``."""
        caller = self._caller_of(context).name
        token_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(ID_CHARACTERS))
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        with self._audit.call("CreateToken", caller, request.run_id) as details:
            event = token_created(
                request,
                token_id=token_id,
                secret_sha256=secret_sha256(secret),
                caller=caller,
            )
            details |= {"token.id": token_id, "token.role": event.role}
            kept = await self._driver.change_token(event)
        text = Token(event.role, token_id, secret, self._ca).text()
        shown = token_message(kept, now=self._driver.now())
        return pb.CreateTokenResponse(token=shown, text=text)

    async def ListTokens(
        self, request: pb.ListTokensRequest, context: object = None
    ) -> pb.ListTokensResponse:
        """Return all tokens, as they are journaled."""
        with self._audit.call("ListTokens", self._caller_of(context).name):
            now, tokens = self._driver.now(), self._driver.tokens.tokens.values()
            shown = [token_message(token, now=now) for token in tokens]
            return pb.ListTokensResponse(tokens=shown)

    async def RevokeToken(
        self, request: pb.RevokeTokenRequest, context: object = None
    ) -> pb.RevokeTokenResponse:
        """Revoke a token, once that is journaled. Raises ``UnknownToken``."""
        caller, token_id = self._caller_of(context).name, request.token_id
        with self._audit.call("RevokeToken", caller) as details:
            revoked = TokenRevoked(token_id=token_id, caller=caller)
            kept = await self._driver.change_token(revoked)
            # Only now: it is one of ours, and not just any text.
            details |= {"token.id": token_id, "token.role": kept.role}
            return pb.RevokeTokenResponse(token=token_message(kept, now=self._driver.now()))

    async def GetAuthority(
        self, request: pb.GetAuthorityRequest, context: object = None
    ) -> pb.GetAuthorityResponse:
        """Return the authorities that are served. Raises ``NoOwnAuthority``."""
        with self._audit.call("GetAuthority", self._caller_of(context).name):
            if not (keys := self._own_identity().keys):
                raise NoOwnAuthority
            return pb.GetAuthorityResponse(keys=keys)

    async def RotateAuthority(
        self, request: pb.RotateAuthorityRequest, context: object = None
    ) -> pb.RotateAuthorityResponse:
        """Have another authority, and tell agents. Raises ``NoOwnAuthority``."""
        with self._audit.call("RotateAuthority", self._caller_of(context).name):
            identity = self._own_identity()
            return pb.RotateAuthorityResponse(keys=await self._change(identity.rotate))

    async def RetireAuthority(
        self, request: pb.RetireAuthorityRequest, context: object = None
    ) -> pb.RetireAuthorityResponse:
        """Serve the newest authority alone. Raises ``NoOwnAuthority``."""
        with self._audit.call("RetireAuthority", self._caller_of(context).name):
            identity = self._own_identity()
            return pb.RetireAuthorityResponse(keys=await self._change(identity.retire))

    async def StopRun(
        self, request: pb.StopRunRequest, context: object = None
    ) -> pb.StopRunResponse:
        """End a run, once that is journaled. Raises ``UnknownRun`` or ``InvalidRequest``."""
        done = await self._steer("StopRun", StopAsked, request, context)
        return pb.StopRunResponse(is_new=done.is_new, outcome=done.outcome)

    async def RestartRun(
        self, request: pb.RestartRunRequest, context: object = None
    ) -> pb.RestartRunResponse:
        """Begin another round, once that is journaled. Raises as above, and ``WrongPhase``."""
        done = await self._steer("RestartRun", RestartAsked, request, context)
        return pb.RestartRunResponse(is_new=done.is_new, outcome=done.outcome)

    async def Checkpoint(
        self, request: pb.CheckpointRequest, context: object = None
    ) -> pb.CheckpointResponse:
        """Have training save, once that is journaled. Raises as above."""
        done = await self._steer("Checkpoint", CheckpointAsked, request, context)
        return pb.CheckpointResponse(is_new=done.is_new, outcome=done.outcome)

    async def ForgetRun(
        self, request: pb.ForgetRunRequest, context: object = None
    ) -> pb.ForgetRunResponse:
        """Remove an ended run, once that is journaled. Raises as above."""
        caller, run_id = self._caller_of(context).name, request.run_id
        with self._audit.call("ForgetRun", caller, run_id):
            event = ForgetAsked(
                run_id=run_id,
                call_id=call_id_of(request.request_id),
                caller=caller,
            )
            done = await self._driver.steer(event)
            return pb.ForgetRunResponse(is_new=done.is_new)

    async def DrainAgent(
        self, request: pb.DrainAgentRequest, context: object = None
    ) -> pb.DrainAgentResponse:
        """Make agents leave, once that is journaled. Raises as above, or ``LimitReached``."""
        found = self._driver.registry.agents_of(request.name, request.run_id)
        done = await self._drain("DrainAgent", request, context, is_lifted=False)
        return pb.DrainAgentResponse(is_new=done.is_new, outcome=done.outcome, agents_count=found)

    async def UndrainAgent(
        self, request: pb.UndrainAgentRequest, context: object = None
    ) -> pb.UndrainAgentResponse:
        """Let agents in again, once that is journaled. Raises ``InvalidRequest``."""
        done = await self._drain("UndrainAgent", request, context, is_lifted=True)
        return pb.UndrainAgentResponse(is_new=done.is_new, outcome=done.outcome)

    async def ListDrains(
        self, request: pb.ListDrainsRequest, context: object = None
    ) -> pb.ListDrainsResponse:
        """Return all drains that hold, as they are journaled."""
        with self._audit.call("ListDrains", self._caller_of(context).name):
            now = self._driver.now()
            shown = [drain_message(drain, now=now) for drain in self._driver.drains]
            return pb.ListDrainsResponse(drains=shown)

    async def _drain(
        self,
        method: str,
        request: pb.DrainAgentRequest | pb.UndrainAgentRequest,
        context: object,
        *,
        is_lifted: bool,
    ) -> Steered:
        caller = self._caller_of(context).name
        with self._audit.call(method, caller, request.run_id) as details:
            event = drain_asked(request, is_lifted=is_lifted, caller=caller)
            details |= {"agent.name": event.name}
            if event.reason:
                details["why"] = event.reason
            return await self._driver.steer(event)

    async def _steer(
        self,
        method: str,
        kind: type[StopAsked | RestartAsked | CheckpointAsked],
        request: pb.StopRunRequest | pb.RestartRunRequest | pb.CheckpointRequest,
        context: object,
    ) -> Steered:
        caller, run_id = self._caller_of(context).name, request.run_id
        with self._audit.call(method, caller, run_id) as details:
            reason = reason_of(request.reason)
            if reason:
                details["why"] = reason
            event = kind(
                run_id=run_id,
                call_id=call_id_of(request.request_id),
                reason=reason,
                caller=caller,
                grace_s=grace_of(request),
            )
            return await self._driver.steer(event)

    @property
    def _ca(self) -> str:
        keys = self._identity.keys if self._identity is not None else []
        return keys[0] if keys else NO_CA

    def _own_identity(self) -> ServerIdentity:
        if self._identity is None:
            raise NoOwnAuthority("--insecure")
        return self._identity

    async def _change(self, change: Callable[[], list[str]]) -> list[str]:
        """Change the authority and tell all agents, though the caller may not wait for it."""

        async def whole() -> list[str]:
            keys = await asyncio.to_thread(change)
            self._driver.announce(keys)
            await asyncio.to_thread(self.on_replaced, keys)
            return keys

        task = asyncio.create_task(whole())
        self._changes.add(task)
        task.add_done_callback(self._changed)
        return await asyncio.shield(task)

    def _changed(self, task: asyncio.Task[list[str]]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone
