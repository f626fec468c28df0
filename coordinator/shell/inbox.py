"""Pure. What one session has said and the core has not taken in: bounded, whatever is sent."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator.core.events import (
    AgentLeft,
    BeatReceived,
    SessionClosed,
    SessionEvent,
    SessionOpened,
)
from coordinator.core.model import GroupState

_CONCLUSIONS = frozenset({GroupState.SUCCEEDED, GroupState.FAILED})


@dataclass(slots=True)
class Inbox:
    """The latest of each kind, in the order in which a session says them.

    A beat takes the place of the one before, but keeps what it does not say anew.
    The end of a round's workers is kept beside what came after it: it counts,
    even if its agent leaves at once.
    """

    opened: SessionOpened | None = None
    concluded: BeatReceived | None = None
    beat: BeatReceived | None = None
    left: AgentLeft | None = None
    closed: SessionClosed | None = None

    def put(self, event: SessionEvent) -> None:
        """Take an event in."""
        match event:
            case SessionOpened():
                self.opened = event
            case BeatReceived():
                self._put_beat(event)
            case AgentLeft():
                self.left = event
            case SessionClosed():
                self.closed = event

    def events(self) -> list[SessionEvent]:
        """Return what there is, oldest first."""
        slots = (self.opened, self.concluded, self.beat, self.left, self.closed)
        return [event for event in slots if event is not None]

    def _put_beat(self, event: BeatReceived) -> None:
        before, beat = self.beat, event.beat
        if before is not None:
            is_as_before = (beat.state, beat.round_id) == (before.beat.state, before.beat.round_id)
            if before.beat.state in _CONCLUSIONS and not is_as_before:
                self.concluded = before
            event = replace(event, beat=beat.after(before.beat))
        self.beat = event
