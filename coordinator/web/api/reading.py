"""Shell. What is read over HTTP: the documents of ``-o json``, from the services of gRPC."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web

from drumbeat import VERSION
from drumbeat.coordinator.api.documents import (
    Document,
    agents_document,
    document_of,
    goodput_document,
    overview_document,
    request_of,
)
from drumbeat.coordinator.api.operations import RUN_PATH
from drumbeat.coordinator.errors import UnknownRun
from drumbeat.coordinator.observe.messages import RANKS_MAX
from drumbeat.coordinator.observe.ranks import ranks_of
from drumbeat.coordinator.web.access import Access
from drumbeat.coordinator.web.api.run_list import RunList
from drumbeat.coordinator.web.calls import JSON, WebCall
from drumbeat.coordinator.web.connections import DATA
from drumbeat.coordinator.web.site import Route
from drumbeat.coordinator.wire.control import drain_message
from drumbeat.coordinator.wire.run_status import agents_from
from drumbeat.v1 import query_pb2 as pb

# Of one answer: some ms each.
EVENTS_MAX, AGENTS_MAX = 500, 100
STANDBY = "standby"


class ReadHandlers:
    """The handlers of all that is read and is no stream."""

    def __init__(self, access: Access, coordinators: Callable[[], list[str]]) -> None:
        self._access, self._coordinators = access, coordinators

    def routes(self) -> list[Route]:
        run = f"/api/runs/{RUN_PATH}"
        return [
            Route("/api/me", self.me),
            Route("/api/runs", self.runs),
            Route("/api/audit", partial(self.listed, "ListAudit")),
            Route("/api/notifications", partial(self.listed, "ListNotifications")),
            Route(run, self.run),
            Route(f"{run}/groups", self.groups),
            Route(f"{run}/events", self.events),
            Route(f"{run}/goodput", self.goodput),
            Route(f"{run}/report", self.report),
            Route(f"{run}/agents", self.agents),
            Route(f"{run}/step-times", self.step_times),
            Route(f"{run}/ranks", self.ranks),
            Route(f"{run}/drains", self.drains),
            Route(f"{run}/rehearsal", self.rehearsal),
            Route("/api/hosts/{name}", self.host),
        ]

    async def me(self, call: WebCall) -> Document:
        caller = call.known.caller
        return {
            "name": caller.name,
            "role": caller.role,
            "run_id": caller.run_id or None,
            "csrf": self._access.csrf(call.known),
            "version": VERSION,
            "coordinators": self._coordinators(),
        }

    async def runs(self, call: WebCall) -> Document:
        listed = RunList(call.term, call.known.caller.run_id)
        await listed.look()
        return listed.since(0)

    async def listed(self, method: str, call: WebCall) -> Document:
        """List what happened in this process of late, to callers of all runs."""
        call.known.caller.check_run("")
        return document_of(await getattr(call.term.queries, method)(request_of(method, {}), call))

    async def run(self, call: WebCall) -> Document:
        return overview_document(await _ask(call, "GetOverview", is_repeated=True))

    async def groups(self, call: WebCall) -> Document:
        return document_of(await _ask(call, "GetJob", with_segments=call.number("segments") > 0))

    async def events(self, call: WebCall) -> Document:
        after = call.number("after")
        page = await _ask(call, "ListEvents", after_sequence=after, page_size=EVENTS_MAX)
        documents = [document_of(event) for event in page.events]
        return {"events": documents, "has_more": page.has_more}

    async def goodput(self, call: WebCall) -> Document:
        is_whole = call.number("segments") > 0
        goodput = await _ask(call, "GetGoodput", with_segments=is_whole)
        return goodput_document(call.run_id, goodput, with_segments=is_whole)

    async def report(self, call: WebCall) -> Document:
        return document_of((await _ask(call, "GetReport")).verdict)

    async def agents(self, call: WebCall) -> Document:
        """List agents with their workers, from a place in the round or the standbys on."""
        first = call.request.query.get("first")
        token = (
            "" if first is None else agents_from(None if first == STANDBY else call.number("first"))
        )
        page = await _ask(
            call,
            "ListAgents",
            page_size=min(call.number("page_size") or AGENTS_MAX, AGENTS_MAX),
            page_token=call.request.query.get("page_token", token),
            view=pb.VIEW_FULL,
        )
        return agents_document(page)

    async def step_times(self, call: WebCall) -> Document:
        """Show how long steps took of late; of no round, where none runs, and no error of that.

        A page cannot know in time that a round has ended.
        """
        ranks = call.ranks(RANKS_MAX)
        await _ask(call, "GetRun", view=pb.VIEW_BASIC)  # else there is not even the run
        try:
            times = await _ask(call, "GetStepTimes", ranks=ranks)
        except UnknownRun:
            nothing = document_of(pb.GetStepTimesResponse())
            return {"run_id": call.run_id, **nothing, "round_id": None}
        return {"run_id": call.run_id, **document_of(times)}

    async def host(self, call: WebCall) -> Document:
        call.known.caller.check_run("")  # one that is for one run learns of no other
        asked = pb.GetHostRequest(name=call.request.match_info["name"])
        return document_of(await call.term.queries.GetHost(asked, call))

    async def ranks(self, call: WebCall) -> web.Response:
        state, run = call.find_run()
        grid = await ranks_of(call.term.queries.readings, state, run, is_repeated=True)
        return web.Response(body=grid.whole, headers=DATA, content_type=JSON)

    async def rehearsal(self, call: WebCall) -> Document:
        return {"run_id": call.run_id, **document_of(await _ask(call, "GetRehearsal"))}

    async def drains(self, call: WebCall) -> Document:
        call.find_run()
        driver = call.term.driver
        of_run = (drain for drain in driver.drains if drain.run_id in ("", call.run_id))
        return {"drains": [document_of(drain_message(e, now=driver.now())) for e in of_run]}


async def _ask(call: WebCall, method: str, **more: Any) -> Any:
    """Return what the service of queries answers about the run of a call."""
    about = {"run_id": call.run_id, "generation": call.generation}
    return await getattr(call.term.queries, method)(request_of(method, {**about, **more}), call)
