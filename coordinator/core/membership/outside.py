"""Pure. Agents that wait outside a run until their drain is lifted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core import events as ev
from drumbeat.coordinator.core.membership.drains import who_and_why
from drumbeat.coordinator.core.model import Exit, KeptDrain
from drumbeat.coordinator.errors import LimitReached, SessionReplaced
from drumbeat.model import Standby


class Outside:
    """Their hellos, with their latest beats. At most ``most`` of them wait."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, ev.SessionOpened] = {}

    def __iter__(self) -> Iterator[ev.SessionOpened]:
        """Yield them as they came. They may be let in meanwhile."""
        return iter(list(self._held.values()))

    def hold(self, opened: ev.SessionOpened, drain: KeptDrain, *, now: float) -> list[fx.Effect]:
        """Let an agent wait, and tell it why; one too many is refused."""
        effects: list[fx.Effect] = []
        before = self._held.pop(opened.agent.incarnation, None)
        if before is not None and before.session_id != opened.session_id:
            effects.append(fx.Reject(session_id=before.session_id, error=SessionReplaced()))
        if len(self._held) >= self._most:
            limit = LimitReached("agents_per_run_max", self._most)
            return [*effects, fx.Reject(session_id=opened.session_id, error=limit)]
        self._held[opened.agent.incarnation] = opened
        left_s = None if drain.until_s is None else max(0.0, drain.until_s - now)
        state = Standby(reason=waits_for(drain), time_left_s=left_s)
        return [*effects, fx.Direct(session_id=opened.session_id, state=state)]

    def let_in(self, opened: ev.SessionOpened) -> None:
        """Have an agent wait no longer."""
        del self._held[opened.agent.incarnation]

    def take(self, event: ev.BeatReceived | ev.AgentLeft | ev.SessionClosed) -> bool:
        """Take in what one that waits says or does; return whether it was one."""
        opened = self._held.get(event.incarnation)
        if opened is None or opened.session_id != event.session_id:
            return False
        if isinstance(event, ev.BeatReceived):
            opened = replace(opened, beat=event.beat, uptime_s=event.uptime_s)
            self._held[event.incarnation] = opened
        else:
            del self._held[event.incarnation]
        return True

    def dismiss(self, exit_of: Callable[[str], Exit]) -> list[fx.Effect]:
        """Tell them how the run ended; ``exit_of`` takes an incarnation."""
        return [
            fx.Direct(session_id=opened.session_id, state=exit_of(incarnation))
            for incarnation, opened in self._held.items()
        ]


def waits_for(drain: KeptDrain) -> str:
    """Say why an agent waits outside, and what lets it in."""
    only = f" --run-id {drain.run_id}" if drain.run_id else ""
    return f"{who_and_why(drain)}; `coordinator undrain {drain.name}{only}` lets it in"
