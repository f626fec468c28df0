"""Shell. Authentication over HTTP: by token, by session cookie, or by client certificate."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import time
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlsplit

from aiohttp import hdrs, web
from msgspec.structs import replace

from drumbeat.access.token import Role
from drumbeat.coordinator.access.authentication import AUTHORIZATION
from drumbeat.coordinator.access.server_identity import ServerIdentity
from drumbeat.coordinator.core.tokens.caller import Caller
from drumbeat.coordinator.errors import Forbidden, RevokedToken, Unauthenticated
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.web.passes import Kind, Pass, UsedCodes, csrf_of, opened, signed

if TYPE_CHECKING:
    from drumbeat.coordinator.cluster.server import Server

CSRF = "X-Drumbeat-CSRF"
_PURPOSE = b"page 1"
_OPEN = "open"  # the session of all browsers if nothing is authenticated


class Known(NamedTuple):
    """An authenticated caller."""

    caller: Caller
    session: str | None  # its browser session; None: it sends a token with each call
    token_id: str = ""  # the token behind its access; empty with a certificate or without access
    within_s: float | None = None  # until its access expires


class Access:
    """Authenticates callers. Without an ``identity`` everyone is admitted."""

    def __init__(self, identity: ServerIdentity | None, limits: Limits) -> None:
        self._identity, self._limits = identity, limits
        self._used = UsedCodes()
        self._own = secrets.token_bytes(32)
        self.cookie = ""
        self._own_names = {"localhost", socket.gethostname().lower()}

    def set_address(self, host: str, port: int) -> None:
        """Set the advertised name, and a cookie name for this port: browsers ignore ports."""
        self._own_names.add(host.lower())
        self.cookie = f"__Host-drumbeat-{port}" if self._identity else f"drumbeat-{port}"

    def known(self, request: web.BaseRequest, coordinator: Server) -> Known:
        """Return the caller. Raises ``Unauthenticated``."""
        given = request.headers.getall(hdrs.AUTHORIZATION, [])
        if given or self._identity is None:
            metadata = [(AUTHORIZATION, value) for value in given]
            caller = coordinator.authenticator.by_token(metadata)
            assert caller is not None, "it brings a token, or needs none"
            within_s = self._time_left(caller.name, coordinator)
            return Known(caller, None if given else _OPEN, caller.name, within_s)
        text = _cookie(request, self.cookie)
        if text is not None:
            return self._of_session(text, coordinator)
        if self._identity.is_mutual:
            caller = coordinator.authenticator.by_certificate(_names(request))
            return Known(caller, f"certificate {caller.name}")
        raise Unauthenticated("it brings neither a token nor a cookie")

    def csrf(self, known: Known) -> str | None:
        """Return the CSRF token of a session."""
        return None if known.session is None else csrf_of(known.session, self._secret())

    def check_change(self, request: web.BaseRequest, known: Known) -> None:
        """Raise ``Forbidden`` if another site may have caused this request for a change."""
        if known.session is None:  # no browser adds its credentials
            return
        self.check_origin(request, known.caller.name)
        shown = request.headers.get(CSRF, "")
        if not shown.isascii() or not secrets.compare_digest(shown, self.csrf(known) or ""):
            raise Forbidden(known.caller.name, f"{CSRF} is not the csrf of /api/me")

    def check_host(self, request: web.BaseRequest) -> None:
        """Raise ``Forbidden`` for a request to a foreign host name, if nothing is authenticated.

        A foreign site can let its own name resolve to this address (DNS rebinding).
        """
        shown = request.headers.get(hdrs.HOST, "")
        if self._identity is not None or not shown:
            return
        try:
            name = urlsplit(f"//{shown}").hostname or ""
        except ValueError:
            name = ""
        if name not in self._own_names and not _is_address(name):
            allowed = "use the address of this coordinator, or name it with --advertise"
            raise Forbidden("the page", f"the host of the request is unknown: {allowed}")

    def check_origin(self, request: web.BaseRequest, name: str = "") -> None:
        """Raise ``Forbidden`` unless a page of this origin sent the request."""
        origin, host = request.headers.get(hdrs.ORIGIN, ""), request.headers.get(hdrs.HOST, "")
        own = f"{'https' if self._identity else 'http'}://{host}"  # as browsers write it (RFC 6454)
        is_own = bool(host) and origin.lower() == own.lower()
        if not is_own or request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            raise Forbidden(name or "the page", "a page of another address sent this request")

    def code(self, name: str, role: Role, run_id: str, token_id: str) -> str:
        """Return a code that opens one session for a caller, while its token is valid."""
        assert self._identity is not None, "else nothing is asked for"
        until = time.time() + self._limits.page_code_life_s
        made = Pass(
            kind=Kind.CODE,
            pass_id=secrets.token_urlsafe(16),
            name=name,
            role=role,
            until=until,
            run_id=run_id,
            token_id=token_id,
        )
        return signed(made, self._secret())

    def enter(self, code: str, coordinator: Server) -> tuple[str, Known]:
        """Exchange a code for a session cookie; return the cookie and its caller.

        Raises ``Unauthenticated``.
        """
        now = time.time()
        code_pass = opened(code, Kind.CODE, self._secret(), now=now)
        self._check(code_pass, coordinator)
        self._used.take(code_pass, now=now)
        until, pass_id = now + self._limits.page_session_life_s, secrets.token_urlsafe(16)
        made = replace(code_pass, kind=Kind.SESSION, pass_id=pass_id, until=until)
        caller = Caller(code_pass.name, code_pass.role, code_pass.run_id)
        return signed(made, self._secret()), Known(caller, pass_id, code_pass.token_id)

    def _of_session(self, text: str, coordinator: Server) -> Known:
        now = time.time()
        session = opened(text, Kind.SESSION, self._secret(), now=now)
        self._check(session, coordinator)
        left = (session.until - now, self._time_left(session.token_id, coordinator))
        within_s = min(seconds for seconds in left if seconds is not None)
        caller = Caller(session.name, session.role, session.run_id)
        return Known(caller, session.pass_id, session.token_id, within_s)

    def _check(self, shown: Pass, coordinator: Server) -> None:
        """Raise ``Unauthenticated`` if the token of a pass is unknown, revoked or expired."""
        kept, now = coordinator.kept_token(shown.token_id)
        if kept is None:
            raise Unauthenticated(f"its token {shown.token_id} is not known here")
        if kept.revoked_at is not None:
            raise RevokedToken(kept.token_id, kept.run_id)
        if kept.is_expired(now=now):
            raise Unauthenticated(f"its token {shown.token_id} has expired")

    def _time_left(self, token_id: str, coordinator: Server) -> float | None:
        if coordinator.term is None:  # only the leader ends calls when a token expires
            return None
        kept, now = coordinator.kept_token(token_id)
        if kept is None or kept.expires_at is None:
            return None
        return max(0.0, kept.expires_at - now)

    def _secret(self) -> bytes:
        return self._own if self._identity is None else self._identity.secret(_PURPOSE)


def link(scheme: str, host: str, port: int, run_id: str = "", code: str = "") -> str:
    """Return a link to the page. A code is in the fragment, which browsers do not send."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    path = f"/runs/{quote(run_id, safe='')}" if run_id else "/"
    return f"{scheme}://{where}{path}{f'#code={code}' if code else ''}"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _cookie(request: web.BaseRequest, name: str) -> str | None:
    """Return the cookie of that name; none if there are several: others may be forged."""
    try:
        values = [
            cookies[name].value
            for given in request.headers.getall(hdrs.COOKIE, [])
            if name in (cookies := SimpleCookie(given))
        ]
    except CookieError:
        return None
    return values[0] if len(values) == 1 else None


def _names(request: web.BaseRequest) -> Mapping[str, list[bytes]]:
    """Return the names in a client's certificate in the form that gRPC has them."""
    shown = request.get_extra_info("peercert") or {}
    of_kind: dict[str, list[bytes]] = {"peer_dns": [], "peer_uri": [], "x509_common_name": []}
    for kind, value in shown.get("subjectAltName", ()):
        if kind in ("DNS", "URI"):
            of_kind[f"peer_{kind.lower()}"].append(value.encode())
    for part in shown.get("subject", ()):
        of_kind["x509_common_name"] += [v.encode() for k, v in part if k == "commonName"]
    return of_kind
