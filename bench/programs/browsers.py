"""Browsers with a run or the list of runs open, without what they draw: all that they ask for.

Usage: browsers.py ORIGIN RUN COUNT, with a token in the variable BROWSERS_TOKEN, empty for none.
Each has connections of its own. It loads the page's files, opens the run's live stream and reads
it to the end, has the ranks of each round, who waits and is drained, and asks for the segments of
goodput and for step times as often as the page does. Without a RUN it reads the live stream of all
runs. Says "ready" when all have seen the ranks, or the runs, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

import aiohttp

from bench.ways import ROOT

PAGE = ROOT / "coordinator" / "page"
# As REFRESH_MS of the page's timeline and PAUSE_MS of its step times.
SEGMENTS_EVERY_S, STEP_TIMES_EVERY_S = 10.0, 5.0
STREAM_BYTES_MAX = 64 * 1024 * 1024  # of one event


class Browser:
    """One of them."""

    def __init__(self, origin: str, run_id: str, token: str) -> None:
        self.has_seen = asyncio.Event()
        self._origin, self._is_of_run = origin, bool(run_id)
        self._base = f"/api/runs/{run_id}" if run_id else "/api"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession
        self._round_id: int | None = None

    async def look(self) -> None:
        """Look at the run until cancelled."""
        async with aiohttp.ClientSession(
            self._origin,
            connector=aiohttp.TCPConnector(ssl=False, limit_per_host=6),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_read=60.0),
            read_bufsize=STREAM_BYTES_MAX,
        ) as self._session:
            await self._get("/")
            await asyncio.gather(*map(self._get, files(PAGE)))
            await self._get("/api/me")
            async with asyncio.TaskGroup() as tasks:
                if not self._is_of_run:
                    await self._follow(tasks)
                    raise SystemExit("the stream ended")
                tasks.create_task(self._keep("goodput?segments=1", SEGMENTS_EVERY_S))
                tasks.create_task(self._keep("step-times", STEP_TIMES_EVERY_S))
                await self._follow(tasks)
                raise SystemExit("the stream ended")

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        async with self._session.get(f"{self._base}/live") as response:
            response.raise_for_status()
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:
                    block = await response.content.readuntil(b"\n\n")
                    lines = block.splitlines()
                    data = b"".join(line[6:] for line in lines if line.startswith(b"data: "))
                    found = json.loads(data or b"null")
                    if lines[0] == b"event: runs":
                        self.has_seen.set()
                    if lines[0] == b"event: ranks" and found["round_id"] != self._round_id:
                        self._round_id = found["round_id"]
                        tasks.create_task(self._have_ranks())

    async def _have_ranks(self) -> None:
        await self._get(f"{self._base}/ranks")
        await self._get(f"{self._base}/agents?first=0&page_size=40")
        await self._get(f"{self._base}/agents?first=standby")
        await self._get(f"{self._base}/drains")
        self.has_seen.set()

    async def _keep(self, what: str, every_s: float) -> None:
        while True:
            await self._get(f"{self._base}/{what}")
            await asyncio.sleep(every_s)

    async def _get(self, path: str) -> None:
        async with self._session.get(path) as response:
            response.raise_for_status()
            await response.read()


def files(page: Path) -> list[str]:
    """Return the paths of the page's files."""
    found = (path for path in page.rglob("*") if path.suffix in (".js", ".css"))
    return [f"/{path.relative_to(page)}" for path in sorted(found)]


async def main(origin: str, run_id: str, count: str) -> None:
    """Look until standard input ends."""
    token = os.environ.get("BROWSERS_TOKEN", "")
    browsers = [Browser(origin, run_id, token) for _ in range(int(count))]
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    async with asyncio.TaskGroup() as tasks:
        looks = [tasks.create_task(browser.look()) for browser in browsers]
        for browser in browsers:
            await browser.has_seen.wait()
        print("ready", flush=True)
        await reader.read()
        for look in looks:
            look.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
