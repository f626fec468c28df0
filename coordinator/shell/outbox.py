"""Shell. What waits to be sent to one agent: the latest of each kind, and nothing older."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from coordinator.core.inprocess.model import InprocessDirective
from coordinator.core.model import Desired, Pace
from coordinator.core.progress.adaptive_timeouts import LearnedLimit
from coordinator.errors import CoordinatorError


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to a hello."""

    session_id: str
    pace: Pace


@dataclass(frozen=True, slots=True)
class TellLimits:
    """All that has been learned."""

    limits: tuple[LearnedLimit, ...]


Item = Welcome | Pace | TellLimits | Desired | InprocessDirective


class Outbox:
    """The sending side of one session. Bounded by construction: a slow reader sees the latest.

    ``welcome``, ``pace``, ``limits``, ``desired`` and ``directive`` are set by the
    driver; ``next`` hands them out in that order. An error does not wait for its
    turn: an agent that reads nothing would never have it.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self._welcome: Pace | None = None
        self._pace: Pace | None = None
        self._limits: tuple[LearnedLimit, ...] | None = None
        self._desired: Desired | None = None
        self._directive: InprocessDirective | None = None
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()

    def welcome(self, pace: Pace) -> None:
        """Answer the agent's hello."""
        self._welcome = pace
        self._changed.set()

    def set_pace(self, pace: Pace) -> None:
        """Tell the agent its pace."""
        self._pace = pace
        self._changed.set()

    def tell_limits(self, limits: tuple[LearnedLimit, ...]) -> None:
        """Tell the agent what has been learned."""
        self._limits = limits
        self._changed.set()

    def direct(self, desired: Desired) -> None:
        """Tell the agent what to do."""
        self._desired = desired
        self._changed.set()

    def instruct(self, directive: InprocessDirective) -> None:
        """Tell the agent what its workers do in an iteration."""
        self._directive = directive
        self._changed.set()

    def fail(self, error: CoordinatorError) -> None:
        """End the session with an error, whatever waits to be sent; the first one counts."""
        if not self._end.done():
            self._end.set_exception(error)
            self._end.exception()  # whose session it was may be gone

    def ended(self) -> asyncio.Future[None]:
        """Return what raises the session's error when it has one."""
        return self._end

    async def next(self) -> Item:
        """Return what is to be sent next, once there is something."""
        while (item := self._take()) is None:
            self._changed.clear()
            await self._changed.wait()
        return item

    def _take(self) -> Item | None:
        if self._welcome is not None:
            pace, self._welcome = self._welcome, None
            return Welcome(self.session_id, pace)
        if self._pace is not None:
            pace, self._pace = self._pace, None
            return pace
        if self._limits is not None:
            limits, self._limits = self._limits, None
            return TellLimits(limits)
        if self._desired is not None:
            desired, self._desired = self._desired, None
            return desired
        directive, self._directive = self._directive, None
        return directive
