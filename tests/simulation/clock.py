"""Virtual time: one heap of events, and actors that can be stopped for a while."""

import heapq
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from random import Random

START = 1000.0
# More events than this in one world mean that something spins.
EVENTS_MAX = 200_000


@dataclass(slots=True, eq=False)
class Actor:
    """Something that events happen to: a process of ours.

    While ``is_stalled`` (stopped, swapped out) its events pile up; a dead one
    gets none. Events of one channel never overtake each other.
    """

    name: str
    is_dead: bool = False
    is_stalled: bool = False
    backlog: list[tuple[Hashable, Callable[[], None]]] = field(default_factory=list)


class Clock:
    """Runs events in order of ``(time, sequence)``. Nothing here depends on the real time."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = START
        self.trace: list[tuple[float, str, str, object]] = []
        self._heap: list[tuple[float, int, Actor | None, Callable[[], None]]] = []
        self._sequence = 0
        self._done = 0

    def random(self, name: str) -> Random:
        """Return a source of randomness of its own for one actor or channel.

        Of its own, so that the order in which a core walks through a set of
        strings, which differs between processes, changes nothing.
        """
        return Random(f"{self.seed}/{name}")

    def note(self, who: str, what: str, about: object = "") -> None:
        """Add a line to the trace; it is only formatted if somebody reads it."""
        self.trace.append((self.now, who, what, about))

    def at(self, instant: float, actor: Actor | None, action: Callable[[], None]) -> None:
        """Do this to ``actor`` at ``instant``; without an actor it happens in any case."""
        self._sequence += 1
        heapq.heappush(self._heap, (max(instant, self.now), self._sequence, actor, action))

    def after(self, delay_s: float, actor: Actor | None, action: Callable[[], None]) -> None:
        """Do this to ``actor`` after a delay."""
        self.at(self.now + delay_s, actor, action)

    def hand(self, actor: Actor, channel: Hashable, action: Callable[[], None]) -> None:
        """Do this to ``actor`` now, or as soon as it runs again."""
        if actor.is_dead:
            return
        if actor.is_stalled:
            actor.backlog.append((channel, action))
        else:
            action()

    def stall(self, actor: Actor) -> None:
        """Stop an actor."""
        if not actor.is_dead:
            actor.is_stalled = True
            self.note(actor.name, "STALLS")

    def resume(self, actor: Actor, random: Random) -> None:
        """Let an actor go on; what piled up comes in any order that keeps channels in theirs."""
        if actor.is_dead or not actor.is_stalled:
            return
        actor.is_stalled = False
        self.note(actor.name, "WAKES UP")
        channels: dict[Hashable, deque[Callable[[], None]]] = {}
        order: list[Hashable] = []
        for channel, action in actor.backlog:
            channels.setdefault(channel, deque()).append(action)
            order.append(channel)
        actor.backlog = []
        random.shuffle(order)
        for channel in order:
            self.hand(actor, channel, channels[channel].popleft())

    def run(self, *, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Run what happens up to ``until``, or until ``stop`` holds."""
        while self._heap and self._heap[0][0] <= until and not stop():
            self._done += 1
            assert self._done <= EVENTS_MAX, "the world spins"
            self.now, _, actor, action = heapq.heappop(self._heap)
            if actor is None:
                action()
            else:
                self.hand(actor, "self", action)
        if not stop():
            self.now = max(self.now, until)


def readable(clock: Clock) -> str:
    """Return the trace as text."""
    return "\n".join(
        f"{instant - START:9.4f} {who:12} {what} {_short(about)}".rstrip()
        for instant, who, what, about in clock.trace
    )


def _short(about: object) -> str:
    text = str(about).replace("\n", " ")
    return text if len(text) <= 300 else f"{text[:300]}…"
