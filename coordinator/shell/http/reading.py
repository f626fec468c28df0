"""Shell. What is read over HTTP: the documents of ``-o json``, from the services of gRPC."""

from __future__ import annotations

import asyncio
from typing import Any

from coordinator.shell.cluster.service import version
from coordinator.shell.http.access import Access
from coordinator.shell.http.calls import Call
from coordinator.shell.http.site import RUN, Route
from coordinator.shell.term import Term
from coordinator.wire.documents import (
    Document,
    goodput_document,
    overview_document,
    run_document,
)
from drumbeat.v1 import query_pb2 as pb

_QUERY = "QueryService"
# Runs whose goodput is looked at between two turns of the others: some ms.
RUNS_PER_TURN = 50


class Reading:
    """The handlers of all that is read and is no stream."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def routes(self) -> list[Route]:
        """Return where they are."""
        run = f"/api/runs/{RUN}"
        return [
            Route("/api/me", f"{_QUERY}/ListRuns", self.me),
            Route("/api/runs", f"{_QUERY}/ListRuns", self.runs),
            Route(run, f"{_QUERY}/GetOverview", self.run),
        ]

    async def me(self, call: Call) -> Document:
        """Say who calls."""
        caller = call.known.caller
        return {
            "name": caller.name,
            "role": caller.role,
            "run_id": caller.run_id or None,
            "csrf": self._access.csrf(call.known),
            "version": version(),
        }

    async def runs(self, call: Call) -> Document:
        """List all runs."""
        return await runs_document(call.term, call.known.caller.run_id)

    async def run(self, call: Call) -> Document:
        """Show one run at a glance."""
        asked = pb.GetOverviewRequest(
            run_id=call.run_id, generation=call.generation, is_repeated=True
        )
        return overview_document(await call.term.queries.GetOverview(asked, call))


async def runs_document(term: Term, only_run: str) -> Document:
    """Return all runs, or those of one id alone, each with what its time went into."""
    found: list[Document] = []
    asked = pb.ListRunsRequest(page_size=RUNS_PER_TURN)
    while True:
        page = await term.queries.ListRuns(asked)
        shown = [run for run in page.runs if only_run in ("", run.run_id)]
        found += [{**run_document(run), "goodput": await goodput(term, run)} for run in shown]
        if not page.next_page_token:
            return {"runs": found}
        asked.page_token = page.next_page_token
        await asyncio.sleep(0)


async def goodput(term: Term, run: pb.Run) -> dict[str, Any]:
    """Return in short what the time of a run went into."""
    asked = pb.GetGoodputRequest(run_id=run.run_id, generation=run.generation)
    whole = goodput_document(run.run_id, await term.queries.GetGoodput(asked))
    return {name: whole[name] for name in ("effective_ratio", "whole_s", "is_running", "parts")}
