"""Shell. When Python looks for garbage in a process that serves thousands of callers.

What a session is made of lives long and has no cycles: it goes with its last reference. To look at
all of it again and again took an eighth of the coordinator's time, and stopped it for 1.2 s with
10,000 agents. So what outlives the collections of young objects is not looked at any more, until
no caller is left or a term has ended.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# New objects between two collections of the young. Python's default of 700 made up a tenth of the
# time that a thousand arriving agents cost, and 10,000 stopped the process for up to 40 ms.
YOUNG_MAX = 3_000
# Collections of the young between two of those that outlived one.
YOUNG_PER_OLDER = 5
# Messages of callers between two collections, each of which leaves some 20 new objects in the place
# of old ones. Python counts those that came less those that went, so that with 10,000 agents it
# found 200,000 young ones at once, and stopped the process for 0.25 s.
MESSAGES_MAX = 250
NEVER = 1_000_000_000
# Objects that came since the latest look at all of them, so that another one is worth it.
MANY = 100_000
# Once the last caller has gone; what it was made of is gone then, too.
IDLE_S = 1.0


class Garbage:
    """The collections of this process."""

    def __init__(self) -> None:
        self._is_rare = False
        self._kept = 0  # objects, after the latest look at all of them
        self._messages = 0  # since the latest collection for their sake

    def collect_rarely(self) -> None:
        """From now on look at no object again that outlived the collections of young ones."""
        self._is_rare = True
        gc.set_threshold(YOUNG_MAX, YOUNG_PER_OLDER, NEVER)
        gc.callbacks.append(_keep)
        gc.freeze()
        self._kept = gc.get_freeze_count()

    def note_message(self) -> None:
        """Take in that a message has come from a caller of many, or has left for one."""
        self._messages += 1
        if self._messages >= MESSAGES_MAX:
            self._messages = 0
            if self._is_rare:
                gc.collect(0)
                gc.freeze()

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Do without a collection in the context. What it makes is kept, if that is much.

        One in the middle of what concerns thousands of agents takes as long as that itself.
        """
        if not self._is_rare:
            yield
            return
        gc.disable()
        try:
            yield
        finally:
            if gc.get_count()[0] > YOUNG_MAX:
                gc.freeze()
            gc.enable()

    def collect_when_idle(self, is_idle: Callable[[], bool]) -> None:
        """Look at all objects a moment from now, if there is no caller by then, and many came."""
        asyncio.get_running_loop().call_later(IDLE_S, self._look, is_idle)

    def collect(self) -> None:
        """Look at all objects now. It stops the process, for a second with 10,000 agents.

        In a process whose collections are Python's own, what others froze is not looked at.
        """
        if not self._is_rare:
            gc.collect()
            return
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._kept = gc.get_freeze_count()

    def _look(self, is_idle: Callable[[], bool]) -> None:
        if is_idle() and gc.get_freeze_count() - self._kept > MANY:
            self.collect()


def _keep(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] > 0:
        gc.freeze()


GARBAGE = Garbage()
