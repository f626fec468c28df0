"""Pure. Agents that have left a run and still stop workers, as long as their sessions last."""

from __future__ import annotations

from msgspec import Struct

from drumbeat.coordinator.core import events as ev


class _Departed(Struct, frozen=True, kw_only=True):
    session_id: str
    name: str
    has_workers: bool


class Departed:
    """Who said goodbye, or was let go, by incarnation. One entry an open session at most."""

    def __init__(self) -> None:
        self._left: dict[str, _Departed] = {}

    def __contains__(self, incarnation: str) -> bool:
        return incarnation in self._left

    def add(self, incarnation: str, session_id: str, name: str, *, workers_alive: int) -> None:
        """Note that an agent has left, with so many workers."""
        left = _Departed(session_id=session_id, name=name, has_workers=workers_alive > 0)
        self._left[incarnation] = left

    def discard(self, incarnation: str) -> None:
        """Forget an agent, as it is back."""
        self._left.pop(incarnation, None)

    def take(self, event: ev.BeatReceived | ev.AgentLeft | ev.SessionClosed) -> bool:
        """Take in what an agent that has left says or does; return whether it is one."""
        left = self._left.get(event.incarnation)
        if left is None or left.session_id != event.session_id:
            return False
        if isinstance(event, ev.SessionClosed):
            del self._left[event.incarnation]
        elif isinstance(event, ev.BeatReceived):
            alive = event.beat.workers_alive
            self.add(event.incarnation, left.session_id, left.name, workers_alive=alive)
        return True

    def with_workers(self) -> list[str]:
        """Return the names of those whose workers have not ended."""
        return [left.name for left in self._left.values() if left.has_workers]
