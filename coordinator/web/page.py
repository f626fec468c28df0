"""Shell. The page of a coordinator: its port, its links, and what is served there."""

from __future__ import annotations

import ssl

from drumbeat.access.token import Role
from drumbeat.coordinator.access.server_identity import ServerIdentity
from drumbeat.coordinator.cluster.server import Server
from drumbeat.coordinator.cluster.term import Term
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.core.tokens.caller import LOCAL_ID, Caller
from drumbeat.coordinator.errors import CoordinatorError, Forbidden, NotLeader
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.shell.transport.binding import advertised
from drumbeat.coordinator.shell.transport.interceptor import set_caller
from drumbeat.coordinator.web.access import Access, link
from drumbeat.coordinator.web.api.actions import action_routes
from drumbeat.coordinator.web.api.collecting import Collecting
from drumbeat.coordinator.web.api.live import Live
from drumbeat.coordinator.web.api.reading import ReadHandlers
from drumbeat.coordinator.web.connections import Handshakes, Listener
from drumbeat.coordinator.web.exposition import Exposition
from drumbeat.coordinator.web.files import Files
from drumbeat.coordinator.web.site import Site
from drumbeat.v1 import control_pb2 as pb
from drumbeat.wire.mapping import duration


class Page:
    """Serves the page. Without an ``identity`` there is neither TLS nor authentication."""

    def __init__(self, config: CoordinatorConfig, identity: ServerIdentity | None) -> None:
        self._config, self._identity = config, identity
        self._access = Access(identity, config.limits)
        live, self._metrics = Live(config.limits), Exposition(config.limits, identity)
        reading = ReadHandlers(self._access, self._coordinators)
        parts = (reading, live, Collecting(live), self._metrics)
        routes = [*action_routes(), *(route for part in parts for route in part.routes())]
        self._site = Site(self._access, config.limits, routes, Files())
        self._listener = Listener(config, self._site.app)
        self._host, self.port = "", 0  # once it is bound

    def bind(self) -> int:
        self.port = self._listener.bind()
        self._host = advertised(self._config, self.port).host
        self._access.set_address(self._host, self.port)
        return self.port

    def start(self, coordinator: Server) -> None:
        self._site.coordinator = coordinator
        context: ssl.SSLContext | None = None
        if self._identity is not None:
            context = Handshakes(self._identity).context
        self._metrics.start(coordinator)
        self._listener.start(context)

    async def stop(self, error: CoordinatorError, within_s: float) -> None:
        self._site.end(error)
        self._metrics.stop()
        await self._listener.stop(within_s)

    def follow(self, driver: Driver) -> None:
        self._metrics.follow(driver)

    def revoke(self, token_id: str) -> None:
        self._site.revoke(token_id)

    def _coordinators(self) -> list[str]:
        """Return the addresses at which agents reach coordinators of this cluster."""
        return [member.address for member in self._site.coordinator.cluster.members]

    def link_without_code(self) -> str:
        scheme = "http" if self._identity is None else "https"
        return link(scheme, self._host, self.port)

    async def local_link(self) -> str:
        """Return an admin link for the coordinator's own user. Raises ``NotLeader``."""
        set_caller(caller := Caller(LOCAL_ID, Role.ADMIN))
        return await self._link(caller, Role.ADMIN, "")

    async def link(self, caller: Caller, role: Role, run_id: str) -> tuple[str, float | None]:
        """Return a link with which a browser gets the access of a caller, and its lifetime.

        Raises ``Forbidden``.
        """
        with self._site.coordinator.audit.call("GetPageLink", caller.name, run_id) as details:
            details["role"] = role
            made = await self._link(caller, role, run_id)
        return made, None if self._identity is None else self._config.limits.page_code_life_s

    async def _link(self, caller: Caller, role: Role, run_id: str) -> str:
        if caller.role is not Role.ADMIN and role is not caller.role:
            raise Forbidden(caller.name, f"it has the role {caller.role}, not {role}")
        if self._identity is None:
            return link("http", self._host, self.port, run_id)
        only_run = caller.run_id or (run_id if role is Role.VIEW else "")
        if (term := self._site.coordinator.term) is None:
            raise NotLeader
        token_id = caller.name
        if token_id not in term.driver.tokens.tokens:
            token_id = await self._page_token(term, role)
        code = self._access.code(caller.name, role, only_run, token_id)
        return link("https", self._host, self.port, run_id, code)

    async def _page_token(self, term: Term, role: Role) -> str:
        """Create a token, but keep no secret, so that revoking it ends the sessions of a link.

        Such tokens are for all runs; the session is what limits a reader to one run.
        """
        limits = self._config.limits
        asked = pb.CreateTokenRequest(
            role=pb.Role.Value(f"ROLE_{role.upper()}"),
            ttl=duration(limits.page_code_life_s + limits.page_session_life_s),
        )
        return (await term.control.CreateToken(asked, self)).token.token_id
