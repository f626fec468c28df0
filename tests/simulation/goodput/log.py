"""What coordinators heard and decided in a world, in its order, and what of it is durable."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drumbeat.coordinator.core.failures.root_cause import failed_alike, root_causes
from drumbeat.coordinator.core.failures.verdict import known_failures
from drumbeat.coordinator.core.membership.leases import RunMembers
from drumbeat.coordinator.core.phases.phase import RunContext
from drumbeat.coordinator.core.run.records import EndingStarted, RoundEnded
from drumbeat.coordinator.observe.goodput.meter import Meter
from drumbeat.coordinator.observe.goodput.stretches import ProgressNoted, Stretch, StretchEnd
from tests.simulation.checks.checker import Listener
from tests.simulation.clock import START
from tests.simulation.goodput.training import UPTIME_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from drumbeat.coordinator.core.model import Beat, FailureRecord
    from drumbeat.coordinator.core.run.records import Record
    from drumbeat.coordinator.core.run.state import RunState
    from tests.simulation.world import World

SECOND = 1_000_000_000


def ns(seconds: float) -> int:
    """Return an instant in nanoseconds."""
    return round(seconds * SECOND)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heard:
    """A coordinator took in what an agent said. Instants are those of the virtual clock."""

    index: int
    at: float
    name: str
    beat: Beat
    sent_at: float  # as far as the coordinator can tell
    truly_sent_at: float
    is_excused: bool  # its round did without it then


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lost:
    """A coordinator gave an agent up."""

    index: int
    at: float
    name: str
    silent_since: float


@dataclass(slots=True, kw_only=True, eq=False)
class Life:
    """What one core knew of the run; the next one begins with what is durable."""

    index: int
    at: float
    seen: int  # the latest instant that was durable then
    members: frozenset[str]
    entries: list[Heard | Lost] = field(default_factory=list)
    notes: list[int] = field(default_factory=list)  # the durable ones


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Taken:
    """A core made a record; with what it knew of failures then."""

    index: int
    life: Life
    record: Record
    causes: Sequence[FailureRecord] = ()
    alike: frozenset[str] = frozenset()  # whose workers failed as a cause did
    lost: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """A durable decision, and what the run was after it. ``seats``: who has how many workers."""

    taken: Taken
    at: int
    stretch: Stretch | None
    place: tuple[int | None, int | None]
    hosts: int
    members: frozenset[str]
    seats: dict[str, int]
    names: dict[str, str]  # of the seats

    @property
    def index(self) -> int:
        """Where it stands among all that happened."""
        return self.taken.index


class Log(Listener):
    """Watches the cores of a world."""

    def __init__(self, world: World) -> None:
        self.lives: list[Life] = []
        self.decisions: list[Decision] = []
        self.noted: list[tuple[int, StretchEnd | None]] = []  # durable ones
        self._world = world
        self._index = 0
        self._seen = 0
        self._of: dict[int, Life] = {}
        self._states: dict[int, RunState] = {}
        self._cores: list[Any] = []  # so that no id is used twice
        self._undone: list[Taken] = []
        self._uptimes: dict[tuple[int, str], float | None] = defaultdict(float)
        world.checker.listeners.append(self)

    def attach(self, patch: pytest.MonkeyPatch) -> None:
        """Begin with the world, before it has."""
        resume, commit, decide = RunContext.resume_account, RunContext.commit, RunContext.decide
        hear, lose, sent_at = RunMembers.heard, Meter.lost, RunMembers.sent_at

        def resumed(run: RunContext, *, now: float) -> None:
            members = frozenset(run.state.members)
            life = Life(index=self._next(), at=now, seen=self._seen, members=members)
            self.lives.append(life)
            self._cores.append(run.members)
            self._states[id(run.members)] = run.state
            self._of[id(run.members)] = self._of[id(run.members.observer.meter)] = life
            resume(run, now=now)

        def told_at(of: RunMembers, name: str, uptime_s: float | None, *, now: float) -> float:
            self._uptimes[id(of), name] = uptime_s
            return sent_at(of, name, uptime_s, now=now)

        def heard(of: RunMembers, name: str, beat: Beat, **more: Any) -> Any:
            now, sent_at = more["now"], more["sent_at"]
            uptime_s = self._uptimes[id(of), name]
            # A stranger that passes for a member does not say how long it has been running.
            truly_sent_at = now if uptime_s is None else uptime_s - UPTIME_S + START
            entry = Heard(
                index=self._next(),
                at=now,
                name=name,
                beat=beat,
                sent_at=sent_at,
                truly_sent_at=truly_sent_at,
                is_excused=name in self._states[id(of)].excused,
            )
            self._of[id(of)].entries.append(entry)
            return hear(of, name, beat, **more)

        def lost(of: Meter, name: str, *, silent_since: float, now: float) -> None:
            entry = Lost(index=self._next(), at=now, name=name, silent_since=silent_since)
            self._of[id(of)].entries.append(entry)
            lose(of, name, silent_since=silent_since, now=now)

        patch.setattr(RunContext, "resume_account", resumed)
        patch.setattr(RunContext, "commit", self._taking(commit))
        patch.setattr(RunContext, "decide", self._taking(decide))
        patch.setattr(RunMembers, "sent_at", told_at)
        patch.setattr(RunMembers, "heard", heard)
        patch.setattr(Meter, "lost", lost)

    @property
    def index(self) -> int:
        """How much has happened."""
        return self._index

    def life_of(self, members: RunMembers) -> Life:
        """Return what this core knew."""
        return self._of[id(members)]

    def _next(self) -> int:
        self._index += 1
        return self._index

    def _taking(self, take: Callable[..., None]) -> Callable[..., None]:
        def taking(run: RunContext, record: Record) -> None:
            more: dict[str, Any] = {}
            state, current = run.state, run.state.round
            if isinstance(record, RoundEnded | EndingStarted) and current is not None:
                known = known_failures(state, run.members)
                causes = more["causes"] = root_causes(known, current.round_id)
                more["alike"] = frozenset(failed_alike(known, current.round_id, causes))
                more["lost"] = frozenset(state.lost_participants())
                more["drained"] = frozenset(state.drained)
            life = self._of[id(run.members)]
            if getattr(record, "at_s", 0.0):
                self._undone.append(Taken(index=self._next(), life=life, record=record, **more))
            take(run, record)

        return taking

    def on_journaled(self, record: Record) -> None:
        """Take note of a durable decision."""
        if not (at_s := getattr(record, "at_s", 0.0)):
            return
        numbers = (i for i, taken in enumerate(self._undone) if taken.record == record)
        if (number := next(numbers, None)) is None:  # of a run whose core broke
            self._undone.append(Taken(index=self._next(), life=self.lives[-1], record=record))
            number = len(self._undone) - 1
        taken, self._undone = self._undone[number], self._undone[number + 1 :]
        self._seen = max(self._seen, ns(at_s))
        if isinstance(record, ProgressNoted):
            taken.life.notes.append(taken.index)
            self.noted.append((taken.index, record.end))
            return
        state = self._world.checker.shadow
        assert state is not None, "it was created"
        stretch, iterations = state.stretch(), state.iterations
        iteration = iterations.iteration if iterations is not None else -1
        is_seated = stretch not in (Stretch.FORMING, Stretch.GATHERING)
        self.decisions.append(
            Decision(
                taken=taken,
                at=ns(at_s),
                stretch=stretch,
                place=(state.round_id, iteration if iteration >= 0 else None),
                hosts=state.round.group_world_size
                if state.round is not None and is_seated
                else len(state.members),
                members=frozenset(state.members),
                seats={i: seat.agent.local_world_size for i, seat in state.seats.items()},
                names={i: seat.agent.name for i, seat in state.seats.items()},
            )
        )
