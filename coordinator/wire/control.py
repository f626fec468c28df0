"""Shell. What operators ask for as events, and tokens as messages for them."""

from __future__ import annotations

from drumbeat.access.token import Role
from drumbeat.coordinator.core.events import DrainAsked, RehearsalAsked, TokenCreated
from drumbeat.coordinator.core.model import KeptDrain
from drumbeat.coordinator.core.rehearsal.model import (
    FAULTS_MAX,
    PAUSE_MAX_S,
    Fault,
    Outcome,
    Rehearsal,
    RehearsalPlan,
)
from drumbeat.coordinator.core.run import history
from drumbeat.coordinator.core.tokens.caller import Caller
from drumbeat.coordinator.core.tokens.token_table import KeptToken
from drumbeat.coordinator.errors import InvalidRequest
from drumbeat.coordinator.wire.session import refusal_of, run_id_of
from drumbeat.model import FaultKind
from drumbeat.text.durations import DURATION_MAX_S
from drumbeat.text.format import one_line
from drumbeat.text.violation import InvalidField
from drumbeat.v1 import common_pb2, control_pb2, query_pb2
from drumbeat.wire.mapping import MessageMapping, between, duration, enum_table, seconds_of

# Of why an operator wants something, and of the id of a request.
REASON_CHARACTERS_MAX = 256
REQUEST_ID_CHARACTERS_MAX = 64
NAME_CHARACTERS_MAX = 256
# Beyond any use; without a ttl a token is valid until it is revoked.
TTL_MAX_S = 10 * 365.25 * 24 * 3600.0

_ROLES = {control_pb2.Role.Value(f"ROLE_{role.name}"): role for role in Role}
_FAULTS = enum_table(common_pb2.FaultKind.DESCRIPTOR, FaultKind)
_FAULT = MessageMapping(
    Fault,
    query_pb2.RehearsedFault,
    parts={"outcome": Outcome},
    given=("order", "at_s", "stretch", "incarnation", "is_injected", "reason"),
)
_DRAIN = MessageMapping(
    KeptDrain, control_pb2.Drain, given=("at_s", "is_lifted", "calls", "until_s")
)


def token_created(
    request: control_pb2.CreateTokenRequest,
    *,
    token_id: str,
    secret_sha256: bytes,
    caller: str,
) -> TokenCreated:
    """Read what a token is to be. Raises ``InvalidRequest``."""
    role, run_id, ttl_s = _ROLES.get(request.role), request.run_id, None
    if role is None:
        raise InvalidRequest("role", request.role, " ".join(map(role_name, Role)))
    if run_id:
        if role is not Role.JOIN:
            allowed = f"nothing with the role {role}, which is for all runs"
            raise InvalidRequest("run_id", run_id, allowed)
        run_id = run_id_of("run_id", run_id)
    if request.HasField("ttl"):
        ttl_s = seconds_of(request.ttl)
        if not 0 < ttl_s <= TTL_MAX_S:
            raise InvalidRequest("ttl", f"{ttl_s:.17g} s", "more than 0 and at most 10 years")
    return TokenCreated(
        token_id=token_id,
        role=role,
        secret_sha256=secret_sha256,
        run_id=run_id,
        ttl_s=ttl_s,
        caller=caller,
    )


def page_role(number: control_pb2.Role.ValueType, caller: Caller) -> Role:
    """Read what a link to the page is to allow. Raises ``InvalidRequest``."""
    if not number:
        return caller.role
    role = _ROLES.get(number)
    if role is None or role is Role.JOIN:
        raise InvalidRequest("role", number, "ROLE_VIEW or ROLE_ADMIN")
    return role


def reason_of(given: str) -> str:
    """Read why an operator wants something, as one line. Raises ``InvalidRequest``."""
    return one_line(_limited("reason", given, REASON_CHARACTERS_MAX), REASON_CHARACTERS_MAX)


def note_of(given: str) -> str:
    """Read a note as one line. Raises ``InvalidRequest``."""
    most = history.REASON_CHARACTERS_MAX
    if not (note := one_line(_limited("text", given, most), most)):
        raise InvalidRequest("text", "nothing", "a text")
    return note


def call_id_of(given: str) -> str:
    """Read what tells a request from others. Raises ``InvalidRequest``."""
    return _limited("request_id", given, REQUEST_ID_CHARACTERS_MAX)


def _limited(field: str, given: str, most: int) -> str:
    if len(given) > most:
        raise InvalidRequest(field, f"{len(given)} characters", f"at most {most} characters")
    return given


def rehearsal_asked(
    request: control_pb2.RehearseRequest, *, seed: int, caller: str
) -> RehearsalAsked:
    """Read what is to be rehearsed, with this seed if none is given. Raises ``InvalidRequest``."""
    call_id = call_id_of(request.request_id)
    plan = None if request.is_end else _plan(request, seed)
    return RehearsalAsked(run_id=request.run_id, call_id=call_id, caller=caller, plan=plan)


def _plan(request: control_pb2.RehearseRequest, seed: int) -> RehearsalPlan:
    kinds = tuple(_FAULTS.get(number, FaultKind.OTHER) for number in request.faults)
    if not kinds or FaultKind.OTHER in kinds or len(set(kinds)) < len(kinds):
        raise InvalidRequest("faults", " ".join(kinds), "some of worker, agent and host-pause")
    try:
        return RehearsalPlan(
            kinds=kinds,
            every_s=between(1, DURATION_MAX_S, "s")("every", seconds_of(request.every)),
            at_most=between(1, FAULTS_MAX)("at_most", request.at_most),
            pause_s=between(0.1, PAUSE_MAX_S, "s")("pause", seconds_of(request.pause)),
            seed=request.seed if request.HasField("seed") else seed,
            is_first_now=request.is_first_now,
            may_overlap=request.may_overlap,
        )
    except InvalidField as problem:
        raise refusal_of(problem) from None


def rehearsal_message(rehearsal: Rehearsal, *, now: float) -> query_pb2.GetRehearsalResponse:
    """Write what a rehearsal has shown."""
    times = rehearsal.trained_s()
    return query_pb2.GetRehearsalResponse(
        is_running=not rehearsal.is_over,
        verdict=rehearsal.verdict(),
        caller=rehearsal.caller,
        age=duration(max(0.0, now - rehearsal.began_at)),
        seed=rehearsal.plan.seed,
        at_most=rehearsal.plan.at_most,
        faults=[
            _FAULT.write(
                fault,
                kind=f"FAULT_KIND_{fault.order.kind}",
                round_id=fault.order.round_id,
                age=duration(max(0.0, now - fault.at_s)),
                reason=str(fault),
            )
            for fault in rehearsal.faults
        ],
        trained_median=duration(times[0]) if times else None,
        trained_worst=duration(times[1]) if times else None,
        steps_repeated=sum(fault.steps_repeated or 0 for fault in rehearsal.faults),
    )


Graceful = (
    control_pb2.StopRunRequest
    | control_pb2.RestartRunRequest
    | control_pb2.CheckpointRequest
    | control_pb2.DrainAgentRequest
)


def grace_of(request: Graceful) -> float | None:
    """Read how long training may take to save; ``None``: it is not said. Raises as above."""
    if not request.HasField("grace"):
        return None
    grace_s = seconds_of(request.grace)
    if not 0 <= grace_s <= DURATION_MAX_S:
        raise InvalidRequest("grace", f"{grace_s:.17g} s", "0 to 30 days")
    return grace_s


def drain_asked(
    request: control_pb2.DrainAgentRequest | control_pb2.UndrainAgentRequest,
    *,
    is_lifted: bool,
    caller: str,
) -> DrainAsked:
    """Read who shall leave, or may come in again. Raises ``InvalidRequest``."""
    name = request.name
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        allowed = f"1 to {NAME_CHARACTERS_MAX} printable characters"
        raise InvalidRequest("name", name[:NAME_CHARACTERS_MAX], allowed)
    return DrainAsked(
        name=name,
        run_id=run_id_of("run_id", request.run_id) if request.run_id else "",
        is_lifted=is_lifted,
        call_id=call_id_of(request.request_id),
        reason=reason_of(request.reason),
        caller=caller,
        grace_s=grace_of(request) if isinstance(request, control_pb2.DrainAgentRequest) else None,
    )


def drain_message(drain: KeptDrain, *, now: float) -> control_pb2.Drain:
    """Write what is known of a drain."""
    until_s = drain.until_s
    left = None if until_s is None else duration(max(0.0, until_s - now))
    age = duration(max(0.0, now - drain.at_s))
    message: control_pb2.Drain = _DRAIN.write(drain, age=age, time_left=left)
    return message


def token_message(token: KeptToken, *, now: float) -> control_pb2.Token:
    """Write what is known of a token."""
    left = None
    if token.expires_at is not None:
        left = duration(0.0 if token.is_expired(now=now) else token.expires_at - now)
    return control_pb2.Token(
        token_id=token.token_id,
        role=control_pb2.Role.Value(role_name(token.role)),
        run_id=token.run_id,
        age=duration(max(0.0, now - token.created_at)),
        time_left=left,
        is_revoked=token.revoked_at is not None,
        created_by=token.created_by,
    )


def role_name(role: Role) -> str:
    """Return the name that the protocol has for a role."""
    return f"ROLE_{role.name}"
