"""Pure. The events that wait for an agent's core."""

from __future__ import annotations

from collections import deque

from agent.core.events import Event, InprocessStepTaken


class EventQueue:
    """Hands events out in the order in which they came.

    What a worker says of its iterations is state: a later step takes the place of one of the same
    worker that still waits. So a worker that talks without end fills one place.
    """

    def __init__(self) -> None:
        self._waiting: deque[Event | tuple[int, int]] = deque()
        self._steps: dict[tuple[int, int], InprocessStepTaken] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, event: Event) -> None:
        """Add an event at the end, or put a step where an earlier one waits."""
        if not isinstance(event, InprocessStepTaken):
            self._waiting.append(event)
            return
        worker = event.round_id, event.local_rank
        if worker not in self._steps:
            self._waiting.append(worker)
        self._steps[worker] = event

    def take(self) -> Event:
        """Return the first event, and forget it. Raises ``IndexError`` if there is none."""
        first = self._waiting.popleft()
        return self._steps.pop(first) if isinstance(first, tuple) else first
