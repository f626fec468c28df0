"""A network of streams: ordered and reliable each, until it breaks and all in flight is lost."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.clock import Actor, Clock
    from tests.simulation.machines.coordinator import CoordinatorProcess

# After this long without an answer an agent's transport calls the stream broken: between so many
# seconds with one coordinator, and sooner with several.
KEEPALIVE_S, KEEPALIVE_FAILOVER_S = (5.0, 15.0), (2.0, 4.0)
# What a transport says then.
SILENT = "no answer to keepalive pings"


class End:
    """The last message of a direction: the other side has closed it, with this error if any.

    ``leader``: the address of the coordinator that leads, if the one that says so does not.
    """

    def __init__(self, reason: str, refusal: str = "", leader: str = "") -> None:
        self.reason, self.refusal, self.leader = reason, refusal, leader

    def __str__(self) -> str:
        return f"end of stream: {self.reason} {self.refusal}".rstrip()


class Pipe:
    """One direction of a stream between two ends, a host and a coordinator."""

    def __init__(self, network: Network, ends: tuple[str, str], name: str) -> None:
        self.name = name
        self.is_still = False  # what reads it does nothing for now
        self._network, self._ends = network, ends
        self._random = network.clock.random(name)
        self._latest = 0.0
        self._epoch = 0
        self._queue: deque[Any] = deque()
        self._held = 0
        self._sink: Callable[[Any], None] = lambda _message: None
        self._actor: Actor | None = None

    def into(self, actor: Actor, sink: Callable[[Any], None]) -> None:
        """Say who reads the other end."""
        self._actor, self._sink = actor, sink

    def send(self, message: Any) -> None:
        """Put a message in; it comes out after a delay and in order."""
        self._queue.append(message)
        self._travel()

    def _travel(self) -> None:
        clock = self._network.clock
        self._latest = max(self._latest, clock.now + self._network.delay(self._random))
        clock.at(self._latest, None, partial(self._arrive, self._epoch))

    def inject(self, message: Any) -> None:
        """Hand the reader something that did not travel."""
        if self._actor is not None:
            sink = self._sink
            self._network.clock.hand(self._actor, self.name, lambda: sink(message))

    def lose_all(self) -> None:
        """Lose what is in flight."""
        self._epoch += 1
        self._queue.clear()
        self._held = 0

    def release(self) -> None:
        """Send what a partition held back once more."""
        held, self._held = self._held, 0
        for _ in range(held):
            self._travel()

    def _arrive(self, epoch: int) -> None:
        """Let the oldest message out, whichever it was that travelled."""
        if epoch != self._epoch or self._actor is None:
            return
        if self.is_still or self._network.is_blocked(*self._ends):
            self._held += 1
            return
        sink, message = self._sink, self._queue.popleft()
        self._network.clock.hand(self._actor, self.name, lambda: sink(message))


class Link:
    """A connection of one agent with one life of the coordinator."""

    def __init__(self, network: Network, host: str, life: CoordinatorProcess, number: int) -> None:
        name = f"{host}#{number}"
        self.name, self.host, self.life, self._network = name, host, life, network
        self.ends = ends = host, life.machine.name
        self.is_cut = False
        self.up, self.down = Pipe(network, ends, f"{name} up"), Pipe(network, ends, f"{name} down")
        self.records = Pipe(network, ends, f"{name} records")
        self.acks = Pipe(network, ends, f"{name} acks")

    @property
    def pipes(self) -> tuple[Pipe, ...]:
        """All directions of all streams."""
        return self.up, self.down, self.records, self.acks

    def cut(self, reason: str) -> None:
        """Break the connection; both ends hear of it."""
        self.end_down(End(reason), is_lossy=True)
        self.leave(is_lossy=True)

    def stand_still(self, *, is_still: bool) -> None:
        """Have nothing pass for now, or again; a transport that hears nothing gives it up."""
        for pipe in self.pipes:
            pipe.is_still = is_still
            if not is_still:
                pipe.release()
        if is_still:
            network = self._network
            delay = network.clock.random(f"{self.name} keepalive").uniform(*network.keepalive_s)
            network.clock.after(delay, None, self._give_up)

    def _give_up(self) -> None:
        if self.up.is_still and not self.is_cut:
            self._network.lose_silently(self)

    def leave(self, *, is_lossy: bool) -> None:
        """The agent's end closes; what it has said may be lost or not."""
        if is_lossy:
            self.up.lose_all()
            self.records.lose_all()
        if not self.is_cut:
            self.is_cut = True
            self.up.send(End("the agent's end closed"))

    def end_down(self, end: End, *, is_lossy: bool) -> None:
        """The coordinator's end closes."""
        if is_lossy:
            self.down.lose_all()
            self.acks.lose_all()
        self.down.send(end)


class Network:
    """Who reaches whom, and how fast.

    What is parted is the name of one end, which then reaches no other, or ``"HOST COORDINATOR"``.
    """

    def __init__(
        self, clock: Clock, *, delay_max_s: float, keepalive_s: tuple[float, float]
    ) -> None:
        self.clock = clock
        self.keepalive_s = keepalive_s
        self.links: list[Link] = []
        self._delay_max_s = delay_max_s
        self._blocks: dict[str, int] = {}
        self._episodes: dict[str, int] = {}

    def delay(self, random: Random) -> float:
        """Return how long a message takes: short as a rule, sometimes long."""
        if random.random() < 0.9:
            return random.uniform(0.0001, 0.005)
        return random.uniform(0.0001, self._delay_max_s)

    def is_blocked(self, host: str, head: str = "") -> bool:
        """Return whether nothing passes between a host and a coordinator."""
        if not head:
            return self._blocks.get(host, 0) > 0
        return any(self._blocks.get(where, 0) for where in (host, head, f"{host} {head}"))

    def connect(self, host: str, life: CoordinatorProcess) -> Link:
        """Open a connection."""
        link = Link(self, host, life, len(self.links))
        self.links.append(link)
        return link

    def block(self, where: str) -> None:
        """Part what this names, silently; partitions may overlap."""
        self._blocks[where] = self._blocks.get(where, 0) + 1
        self._episodes[where] = episode = self._episodes.get(where, 0) + 1
        self.clock.note("network", "PARTED", where)
        random = self.clock.random(f"keepalive {where} {episode}")
        for link in self.links:
            if _is_part(link, where) and not link.is_cut:
                delay = random.uniform(*self.keepalive_s)
                self.clock.after(delay, None, partial(self._keepalive, link, where, episode))

    def unblock(self, where: str) -> None:
        """Take one partition back, if there is one."""
        if not self.is_blocked(where):
            return
        self._blocks[where] -= 1
        if self._blocks[where] == 0:
            self._episodes[where] += 1
            self.clock.note("network", "HEALED", where)
            for link in self.links:
                if _is_part(link, where):
                    for pipe in link.pipes:
                        pipe.release()

    def heal(self) -> None:
        """Take all partitions back."""
        for where in list(self._blocks):
            while self.is_blocked(where):
                self.unblock(where)

    def _keepalive(self, link: Link, where: str, episode: int) -> None:
        if self._episodes[where] == episode and self.is_blocked(where):
            self.lose_silently(link)

    def lose_silently(self, link: Link) -> None:
        """The agent's transport has had no answer for too long."""
        if not link.is_cut:
            link.down.lose_all()
            link.acks.lose_all()
            # Heard on the host itself: no partition holds this back.
            link.down.inject(End(SILENT))


def _is_part(link: Link, where: str) -> bool:
    return where in link.ends or where == " ".join(link.ends)
