"""Shell. What waits to be sent to one agent: the latest of each kind, and nothing older."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from coordinator.errors import CoordinatorError
from coordinator.learned import LearnedLimit
from coordinator.model import Desired, Pace


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to a hello."""

    session_id: str
    pace: Pace


@dataclass(frozen=True, slots=True)
class TellLimits:
    """All that has been learned."""

    limits: tuple[LearnedLimit, ...]


Item = Welcome | Pace | TellLimits | Desired


class Outbox:
    """The sending side of one session. Bounded by construction: a slow reader sees the latest.

    ``welcome``, ``pace``, ``limits`` and ``desired`` are set by the driver; ``items``
    hands them out in that order and raises the session's error when it has one.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self._welcome: Pace | None = None
        self._pace: Pace | None = None
        self._limits: tuple[LearnedLimit, ...] | None = None
        self._desired: Desired | None = None
        self._error: CoordinatorError | None = None
        self._is_closed = False
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

    def fail(self, error: CoordinatorError) -> None:
        """End the session with an error; the first one counts."""
        self._error = self._error or error
        self._changed.set()

    def close(self) -> None:
        """End the session without an error: the agent has nothing more to say."""
        self._is_closed = True
        self._changed.set()

    async def items(self) -> AsyncIterator[Item]:
        """Yield what is to be sent."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._error is not None:
                raise self._error
            if self._is_closed:
                return
            welcome, self._welcome = self._welcome, None
            if welcome is not None:
                yield Welcome(self.session_id, welcome)
            pace, self._pace = self._pace, None
            if pace is not None:
                yield pace
            limits, self._limits = self._limits, None
            if limits is not None:
                yield TellLimits(limits)
            desired, self._desired = self._desired, None
            if desired is not None:
                yield desired
