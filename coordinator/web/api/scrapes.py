"""Shell. ``/metrics``: who may scrape, and in which format."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from aiohttp import hdrs, web
from cryptography import x509

from drumbeat.command.metrics import is_openmetrics
from drumbeat.coordinator.access.server_identity import ServerIdentity, Shown
from drumbeat.coordinator.cluster.service import version
from drumbeat.coordinator.errors import Forbidden
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.web.access import Coordinator
from drumbeat.coordinator.web.calls import WebCall
from drumbeat.coordinator.web.connections import DATA
from drumbeat.coordinator.web.exposition import CoordinatorStatus, Exposition
from drumbeat.coordinator.web.site import Route

# Larger answers are compressed in a thread.
COMPRESSED_HERE_BYTES_MAX = 16 * 1024


class Scrapes:
    """Answers scrapes, also while another coordinator leads."""

    def __init__(self, limits: Limits, identity: ServerIdentity | None) -> None:
        self._coordinator: Coordinator
        self._identity = identity
        self._shown: tuple[Shown, datetime] | None = None
        self._exposition = Exposition(
            self._driver, self._standing, version=version(), runs_max=limits.metrics_runs_max
        )
        self.follow = self._exposition.follow

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        # A caller that may list all runs may scrape.
        return [Route("/metrics", self._scraped, needs_term=False)]

    def start(self, coordinator: Coordinator) -> None:
        """Start measuring."""
        self._coordinator = coordinator
        self._exposition.start()

    def stop(self) -> None:
        """Stop measuring."""
        self._exposition.stop()

    async def _scraped(self, call: WebCall) -> web.StreamResponse:
        if call.known.caller.run_id:
            name, run_id = call.known.caller.name, call.known.caller.run_id
            raise Forbidden(name, f"it is for the run {run_id}, and metrics tell of all runs")
        is_open = is_openmetrics(call.request.headers.get(hdrs.ACCEPT, ""))
        rendered = await self._exposition.render(is_open=is_open)
        response = web.Response(
            body=rendered.body,
            headers={**DATA, hdrs.CONTENT_TYPE: rendered.content_type},
            zlib_executor_size=COMPRESSED_HERE_BYTES_MAX,
        )
        response.enable_compression()
        return response

    def _driver(self) -> Driver | None:
        term = self._coordinator.term
        return None if term is None else term.driver

    def _standing(self) -> CoordinatorStatus:
        term, cluster = self._coordinator.term, self._coordinator.cluster
        notifier = self._coordinator.notifier
        number = 0 if cluster.leader is None else cluster.leader.term
        return CoordinatorStatus(
            term=number if term is None else term.number,
            members=len(list(cluster.members)),
            certificate_ends=self._certificate_ends(),
            notifications=None if notifier is None else notifier.counts,
        )

    def _certificate_ends(self) -> datetime | None:
        if self._identity is None:
            return None
        shown = self._identity.configuration()
        if self._shown is None or self._shown[0] is not shown:
            certificate = x509.load_pem_x509_certificate(shown.chain)
            self._shown = shown, certificate.not_valid_after_utc
        return self._shown[1]
