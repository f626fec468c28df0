"""Shell. The control service, without gRPC. Each call is a line of the audit."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from drumbeat.access.token import ID_CHARACTERS, NO_CA, Token
from drumbeat.coordinator.access.audit import Audit
from drumbeat.coordinator.access.server_identity import ServerIdentity
from drumbeat.coordinator.api.audited import Details, Res, audited
from drumbeat.coordinator.core import events as ev
from drumbeat.coordinator.core.tokens.caller import Caller
from drumbeat.coordinator.core.tokens.token_table import secret_sha256
from drumbeat.coordinator.errors import NoOwnAuthority, UnknownRun
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.wire import control as wire
from drumbeat.v1 import control_pb2 as pb

# No two letters that look alike, and none that options begin with.
_ID_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
_SECRET_BYTES = 16  # 22 characters
_SEED_BITS = 32  # every JSON reader keeps it exact


class ControlService:
    """``identity`` is what the server shows; ``None``: nothing. The table of operations has roles.

    A change is answered once it is journaled. Methods about a run raise ``UnknownRun``, and
    ``WrongPhase`` if the run ends or has ended; all raise ``InvalidRequest``.
    """

    def __init__(
        self,
        driver: Driver,
        identity: ServerIdentity | None,
        audit: Audit,
        caller_of: Callable[[object], Caller],
    ) -> None:
        self._driver, self._identity, self.audit = driver, identity, audit
        self.caller_of = caller_of
        # Called in a thread with the keys that are served from now on; the answer waits for it.
        self.on_replaced: Callable[[list[str]], None] = lambda _keys: None
        self._changes = set[asyncio.Task[list[str]]]()  # they end, though their callers may go

    @audited
    async def ResetLimits(
        self, request: pb.ResetLimitsRequest, caller: str, _: Details
    ) -> pb.ResetLimitsResponse:
        forgotten = await self._driver.ask(ev.LimitsReset(run_id=request.run_id, caller=caller))
        if forgotten is None:
            raise UnknownRun(request.run_id)
        return pb.ResetLimitsResponse(forgotten=forgotten)

    @audited
    async def CreateToken(
        self, request: pb.CreateTokenRequest, caller: str, details: Details
    ) -> pb.CreateTokenResponse:
        token_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(ID_CHARACTERS))
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        event = wire.token_created(
            request, token_id=token_id, secret_sha256=secret_sha256(secret), caller=caller
        )
        details |= {"token.id": token_id, "token.role": event.role}
        kept = await self._driver.change_token(event)
        text = Token(event.role, token_id, secret, self._ca).text()
        shown = wire.token_message(kept, now=self._driver.now())
        return pb.CreateTokenResponse(token=shown, text=text)

    @audited
    async def ListTokens(
        self, _request: pb.ListTokensRequest, _caller: str, _: Details
    ) -> pb.ListTokensResponse:
        now, tokens = self._driver.now(), self._driver.tokens.tokens.values()
        return pb.ListTokensResponse(
            tokens=[wire.token_message(token, now=now) for token in tokens]
        )

    @audited
    async def RevokeToken(
        self, request: pb.RevokeTokenRequest, caller: str, details: Details
    ) -> pb.RevokeTokenResponse:
        revoked = ev.TokenRevoked(token_id=request.token_id, caller=caller)
        kept = await self._driver.change_token(revoked)
        # Not before: the request may have any text for an id.
        details |= {"token.id": request.token_id, "token.role": kept.role}
        return pb.RevokeTokenResponse(token=wire.token_message(kept, now=self._driver.now()))

    @audited
    async def GetAuthority(
        self, _request: pb.GetAuthorityRequest, _caller: str, _: Details
    ) -> pb.GetAuthorityResponse:
        if not (keys := self._own_identity().keys):
            raise NoOwnAuthority
        return pb.GetAuthorityResponse(keys=keys)

    @audited
    async def RotateAuthority(
        self, _request: pb.RotateAuthorityRequest, _caller: str, _: Details
    ) -> pb.RotateAuthorityResponse:
        keys = await self._change(self._own_identity().rotate)
        return pb.RotateAuthorityResponse(keys=keys)

    @audited
    async def RetireAuthority(
        self, _request: pb.RetireAuthorityRequest, _caller: str, _: Details
    ) -> pb.RetireAuthorityResponse:
        keys = await self._change(self._own_identity().retire)
        return pb.RetireAuthorityResponse(keys=keys)

    @audited
    async def StopRun(
        self, request: pb.StopRunRequest, caller: str, _: Details
    ) -> pb.StopRunResponse:
        return await self._steered(pb.StopRunResponse, _asked(ev.StopAsked, request, caller))

    @audited
    async def RestartRun(
        self, request: pb.RestartRunRequest, caller: str, _: Details
    ) -> pb.RestartRunResponse:
        return await self._steered(pb.RestartRunResponse, _asked(ev.RestartAsked, request, caller))

    @audited
    async def Checkpoint(
        self, request: pb.CheckpointRequest, caller: str, _: Details
    ) -> pb.CheckpointResponse:
        return await self._steered(
            pb.CheckpointResponse, _asked(ev.CheckpointAsked, request, caller)
        )

    @audited
    async def AddNote(
        self, request: pb.AddNoteRequest, caller: str, _: Details
    ) -> pb.AddNoteResponse:
        text, call_id = wire.note_of(request.text), wire.call_id_of(request.request_id)
        event = ev.NoteAsked(run_id=request.run_id, call_id=call_id, reason=text, caller=caller)
        return await self._steered(pb.AddNoteResponse, event)

    @audited
    async def Rehearse(
        self, request: pb.RehearseRequest, caller: str, details: Details
    ) -> pb.RehearseResponse:
        event = wire.rehearsal_asked(request, seed=secrets.randbits(_SEED_BITS), caller=caller)
        seed = event.plan.seed if event.plan is not None else 0
        details["rehearsal.seed"] = seed
        return await self._steered(pb.RehearseResponse, event, seed=seed)

    @audited
    async def ForgetRun(
        self, request: pb.ForgetRunRequest, caller: str, _: Details
    ) -> pb.ForgetRunResponse:
        call_id = wire.call_id_of(request.request_id)
        event = ev.ForgetAsked(run_id=request.run_id, call_id=call_id, caller=caller)
        return pb.ForgetRunResponse(is_new=(await self._driver.steer(event)).is_new)

    @audited
    async def DrainAgent(
        self, request: pb.DrainAgentRequest, caller: str, _: Details
    ) -> pb.DrainAgentResponse:
        agents_count = self._driver.registry.agents_of(request.name, request.run_id)
        event = wire.drain_asked(request, is_lifted=False, caller=caller)
        return await self._steered(pb.DrainAgentResponse, event, agents_count=agents_count)

    @audited
    async def UndrainAgent(
        self, request: pb.UndrainAgentRequest, caller: str, _: Details
    ) -> pb.UndrainAgentResponse:
        event = wire.drain_asked(request, is_lifted=True, caller=caller)
        return await self._steered(pb.UndrainAgentResponse, event)

    @audited
    async def ListDrains(
        self, _request: pb.ListDrainsRequest, _caller: str, _: Details
    ) -> pb.ListDrainsResponse:
        now = self._driver.now()
        return pb.ListDrainsResponse(
            drains=[wire.drain_message(drain, now=now) for drain in self._driver.drains]
        )

    async def _steered(
        self, answer: Callable[..., Res], event: ev.Steering | ev.DrainAsked, **more: int
    ) -> Res:
        done = await self._driver.steer(event)
        return answer(is_new=done.is_new, outcome=done.outcome, **more)

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


def _asked(
    kind: type[ev.StopAsked | ev.RestartAsked | ev.CheckpointAsked],
    request: pb.StopRunRequest | pb.RestartRunRequest | pb.CheckpointRequest,
    caller: str,
) -> ev.StopAsked | ev.RestartAsked | ev.CheckpointAsked:
    return kind(
        run_id=request.run_id,
        call_id=wire.call_id_of(request.request_id),
        reason=wire.reason_of(request.reason),
        caller=caller,
        grace_s=wire.grace_of(request),
    )
