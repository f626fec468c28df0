"""The page with runs of stories on it: no process but the browser's, and no time that passes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

from drumbeat.coordinator.api.documents import (
    agents_document,
    document_of,
    goodput_document,
    overview_document,
)
from drumbeat.coordinator.errors import UnknownRun
from drumbeat.coordinator.observe.messages import (
    goodput_message,
    make_overview,
    step_times_message,
)
from drumbeat.coordinator.observe.ranks import make_grid
from drumbeat.coordinator.observe.readings import Readings
from drumbeat.coordinator.web.calls import event
from drumbeat.coordinator.web.files import File, Files
from drumbeat.coordinator.wire.failure import verdict_message
from drumbeat.coordinator.wire.run_status import agents_page, events_page
from drumbeat.v1 import query_pb2 as pb
from tests.support.turns import made
from tests.support.world import RUN, Story

ROLE = {"name": "hostuser", "role": "admin", "run_id": None, "csrf": "c", "version": "1.0"}


@dataclass
class ShownRun:
    """A run as the coordinator shows it now, from the story that led to it."""

    story: Story
    about: dict[str, Any] = field(default_factory=dict)
    """What its document has in place of the coordinator's own words."""
    counts: dict[int, int] = field(default_factory=dict)
    """For how many decisions events stand, by their sequence."""
    step_times: dict[str, Any] = field(default_factory=dict)
    """The same of its step times."""

    @property
    def document(self) -> dict[str, Any]:
        """Its document."""
        readings = Readings(lambda: self.story.now)
        overview, _ = made(make_overview(self.story.state(), self._core, readings))
        return {**overview_document(overview), **self.about}

    @property
    def _core(self) -> Any:
        return self.story.registry.runs.get(RUN)

    @property
    def events(self) -> dict[str, Any]:
        """All that was decided."""
        asked = pb.ListEventsRequest(page_size=500)
        page = events_page(asked, self.story.state(), now=self.story.now)
        for each in page.events:
            each.count = self.counts.get(each.sequence, 0)
        return {"events": [document_of(each) for each in page.events], "missed": 0, "generation": 1}

    def goodput(self, *, with_segments: bool = False) -> dict[str, Any]:
        """What its time went into."""
        state, now = self.story.state(), self.story.now
        message = goodput_message(state, self._core, now=now, with_segments=with_segments)
        return goodput_document(RUN, message, with_segments=with_segments)

    @property
    def ranks(self) -> Any:
        """Its grid."""
        return made(make_grid(self.story.state(), self._core, now=self.story.now))[0]

    def answer(self, path: str) -> Any:
        """Return the answer at a path below that of the run."""
        answers = {
            "": lambda: self.document,
            "/goodput": lambda: self.goodput(with_segments=True),
            "/ranks": lambda: json.loads(self.ranks.whole),
            "/agents": self._agents,
            "/drains": lambda: {"drains": []},
            "/report": self._report,
            "/step-times": self._step_times,
        }
        return answers[path]()

    def _agents(self) -> Any:
        asked = pb.ListAgentsRequest(view=pb.VIEW_FULL)
        page = agents_page(asked, self.story.state(), self._core, now=self.story.now)
        return agents_document(page)

    def _report(self) -> Any:
        verdict = self.story.state().verdict
        assert verdict is not None, "it has ended"
        return document_of(verdict_message(verdict))

    def _step_times(self) -> Any:
        asked, story = pb.GetStepTimesRequest(), self.story
        with suppress(UnknownRun):
            times = step_times_message(asked, story.state(), self._core, now=story.now)
            return {**document_of(times), **self.step_times}
        return {**document_of(pb.GetStepTimesResponse()), "round_id": None}

    def stream(self) -> bytes:
        """Return what a live stream begins with."""
        ranks = json.loads(self.ranks.columns)
        kinds = {"events": self.events, "run": self.document, "goodput": self.goodput()}
        return b"".join(event(kind, data) for kind, data in {**kinds, "ranks": ranks}.items())


@asynccontextmanager
async def serving(runs: dict[str, ShownRun]) -> AsyncIterator[str]:
    """Serve the page with these runs; yields its address."""
    files, ended = Files(), asyncio.Event()

    async def page(request: web.Request) -> web.Response:
        file, status = files.page(request.path, is_job=False)
        return await _served(file, request, status)

    async def run(request: web.Request) -> web.StreamResponse:
        shown_run = runs.get(request.match_info["run_id"])
        path = request.match_info["path"]
        if shown_run is None or request.query.get("generation", "1") != "1":
            error = {"status": "NOT_FOUND", "reason": "there is no such run", "hint": ""}
            return web.json_response({"error": error}, status=404)
        if path != "/live":
            return web.json_response(shown_run.answer(path))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(shown_run.stream())
        await ended.wait()
        return response

    async def listed(_: web.Request) -> web.Response:
        all_of_them = [
            {**each.document, "run_id": name, "goodput": each.goodput()}
            for name, each in runs.items()
        ]
        return web.json_response({"runs": all_of_them, "jobs": []})

    async def me(_: web.Request) -> web.Response:
        return web.json_response({**ROLE, "coordinators": ["head:29400"]})

    app = web.Application()
    for path, file in files.by_path():
        app.router.add_get(path, partial(_served, file))
    app.router.add_get("/runs/{run_id}", page)
    app.router.add_get("/api/me", me)
    app.router.add_get("/api/runs", listed)
    app.router.add_get("/api/runs/{run_id}{path:.*}", run)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        ended.set()
        await runner.cleanup()


async def _served(file: File, _: web.Request, status: int = 200) -> web.Response:
    headers = {"Content-Type": file.content_type}
    return web.Response(body=file.content, status=status, headers=headers)
