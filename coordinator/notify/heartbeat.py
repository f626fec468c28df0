"""Shell. A heartbeat over HTTP, for services that raise an alarm when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

import structlog

from drumbeat.coordinator.errors import MissingExtra

try:
    import aiohttp
except ImportError as error:
    raise MissingExtra("--notify-heartbeat", "aiohttp", "notify") from error

log = structlog.get_logger()

ANSWER_WITHIN_S = 10.0


class Heartbeat:
    """Requests a URL at an interval, as long as ``is_well`` says so."""

    def __init__(self, url: str, interval_s: float, is_well: Callable[[], bool]) -> None:
        self._url, self._interval_s, self._is_well = url, interval_s, is_well
        where = urlsplit(url)
        self._name = f"{where.scheme}://{where.hostname}"  # the rest of it is a secret
        self._is_failing = False

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
            while True:
                if self._is_well():
                    self._note(await self._ask(session))
                await asyncio.sleep(self._interval_s)

    async def _ask(self, session: aiohttp.ClientSession) -> str:
        """Return why it failed, empty if it did not. The text of an exception may have the URL."""
        try:
            async with session.get(self._url) as response:
                return "" if response.status < 400 else f"the answer is {response.status}"
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return type(error).__name__

    def _note(self, reason: str) -> None:
        if bool(reason) is not self._is_failing:
            what = "the heartbeat does not arrive" if reason else "the heartbeat arrives again"
            text = f"{what} at {self._name}{f': {reason}' if reason else ''}"
            log.warning(what, message=text, endpoint=self._name)
        self._is_failing = bool(reason)
