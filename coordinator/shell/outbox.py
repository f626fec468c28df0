"""Shell. What waits to be sent to one agent: the latest of each kind, and nothing older."""

from __future__ import annotations

import asyncio
from typing import get_args

from coordinator.core.effects import Push, Reject
from coordinator.errors import CoordinatorError

ORDER: tuple[type[Push], ...] = get_args(Push)


class Outbox:
    """The sending side of one session. Bounded by construction: a slow reader sees the latest.

    An error does not wait for its turn: an agent that reads nothing would never have it.
    """

    def __init__(self) -> None:
        self.error: CoordinatorError | None = None
        """Ends the session, whatever waits to be sent; the first one counts."""
        self._slots: dict[type[Push], Push] = {}
        self._changed = asyncio.Event()
        self._failed = asyncio.Event()

    def put(self, effect: Push | Reject) -> None:
        """Take an effect in; it replaces one of its kind that was not sent yet."""
        if isinstance(effect, Reject):
            self.error = self.error or effect.error
            self._failed.set()
        else:
            self._slots[type(effect)] = effect
            self._changed.set()

    def take(self) -> Push | None:
        """Return what is to be sent next, if anything is."""
        return next((self._slots.pop(kind) for kind in ORDER if kind in self._slots), None)

    async def next(self) -> Push:
        """Return what is to be sent next, once there is something."""
        while (effect := self.take()) is None:
            self._changed.clear()
            await self._changed.wait()
        return effect

    async def ended(self) -> None:
        """Raise the session's error when it has one."""
        await self._failed.wait()
        assert self.error is not None, "just set"
        raise self.error
