"""Pure. The supervisor's decisions about the template that workers are forked from.

::

                     ready
    LOADING ─────────────────► READY
     ▲  │ unfit, too slow,      │
     │  │ died too often        │
     │  ▼                       │ died too often, unfit for a worker
     │ COLD ◄───────────────────┤
     └──────────────────────────┘ died, or a source has changed,
                                  or a module is to be left out

Workers that are to start while a template is loading wait for it: it imports what each of them
would import, and only once for all. In COLD, which is left no more, they start as without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import ClassVar, TypeAlias

from msgspec import Struct

from drumbeat.agent.model import messages
from drumbeat.agent.model.messages import TemplateNews, TemplateReported

DEATHS_MAX = 3  # in a row, without a round whose workers were forked in between
LATE_LOOK_S = 60.0  # after a start, by when most programs have imported what they need
LATE_S_MIN = 0.1  # in all, to be worth a line
LATE_EACH_S_MIN = 0.02  # of a module that is named there
LATE_NAMED_MAX = 8
PASSES_MAX = 6  # templates in a row, each of which leaves out more than the one before


class Loaded(Struct, frozen=True, kw_only=True, tag="ready"):
    """The template has imported everything."""

    seconds: float
    modules: int
    notes: tuple[str, ...] = ()  # sentences on what workers share


class Noted(Struct, frozen=True, kw_only=True, tag="note"):
    """The template has something to say."""

    text: str


class LeftOut(Struct, frozen=True, kw_only=True, tag="left_out"):
    """Some modules can't be preloaded; a template that leaves them out is needed.

    ``instead`` are those to import so that all others are imported.
    """

    modules: tuple[str, ...]
    instead: tuple[str, ...]
    why: str


NOTHING_LEFT_OUT = LeftOut(modules=(), instead=(), why="")


class Unfit(Struct, frozen=True, kw_only=True, tag="unfit"):
    """Workers can't be forked from this template, nor from any with the same imports."""

    why: str


class Changed(Struct, frozen=True, kw_only=True, tag="checked"):
    """A file has changed since the template has loaded it; none has if this is empty."""

    path: str


class Ended(Struct, frozen=True, kw_only=True):
    """The template has ended by itself, or was ended because it did not answer."""

    how: str


class Forked(Struct, frozen=True, kw_only=True):
    """The workers of a round were forked from the template."""


class RoundEnded(Struct, frozen=True, kw_only=True):
    """Nothing of a round is alive any more."""


class LateImports(Struct, frozen=True, kw_only=True):
    """What workers had to import by themselves so far, and how long each took, in seconds."""

    modules: tuple[tuple[str, float], ...]
    settings: tuple[tuple[str, str], ...] = ()  # variables that were set too late, and who reads


class DeadlineReached(Struct, frozen=True, kw_only=True):
    """The instant of `TemplateKeeper.deadline` has come."""


class Launch(Struct, frozen=True, kw_only=True):
    """Start a template."""

    preload: messages.Preload
    left_out: LeftOut = NOTHING_LEFT_OUT


class End(Struct, frozen=True, kw_only=True):
    """End the template, and whatever its imports have started."""


class CheckSources(Struct, frozen=True, kw_only=True):
    """Ask the template whether a file has changed."""


class ReadLateImports(Struct, frozen=True, kw_only=True):
    """Look what workers imported by themselves; answered by `LateImports`."""


class Carry(Struct, frozen=True, kw_only=True):
    """Hand a command to the worker group; a start that ``is_warm`` is for the template."""

    command: messages.GroupCommand
    is_warm: bool = False


News: TypeAlias = Loaded | LeftOut | Noted | Unfit | Changed
"""What a template says, as JSON."""
Event: TypeAlias = (messages.Command | News | Ended) | (
    Forked | messages.WorkerExited | RoundEnded | LateImports | DeadlineReached
)
Effect: TypeAlias = Launch | End | CheckSources | ReadLateImports | Carry | messages.SupervisorEvent


class Warmth(Enum):
    """Whether workers are forked from a template."""

    LOADING = "loading"  # it imports; starts wait
    READY = "ready"  # starts are for it
    COLD = "cold"  # there can be none


class TemplateKeeper:
    """The template of one host's workers, one after the other.

    Invariant: a command is held only while a template is loading.
    """

    def __init__(self, preload: messages.Preload) -> None:
        self.warmth = Warmth.COLD
        self._preload = preload
        self._held: list[messages.StartWorkers | messages.SignalWorkers] = []
        self._deaths = 0
        self._loading_until: float | None = None
        self._late_at: float | None = None
        self._is_late_open = False  # whether there may be late imports to tell
        self._has_told_late = False
        self._left_out = NOTHING_LEFT_OUT
        self._reasons: list[str] = []  # why modules are left out, of all templates in a row
        self._passes = 0
        self._reported: set[str] = set()  # warnings, and variables that were named

    @property
    def deadline(self) -> float | None:
        """When `DeadlineReached` is due, in monotonic seconds."""
        due = [instant for instant in (self._loading_until, self._late_at) if instant is not None]
        return min(due, default=None)

    def start(self, *, now: float) -> list[Effect]:
        """Begin with a template; return what to do."""
        self.warmth, self._passes = Warmth.LOADING, 1
        self._loading_until = now + self._preload.timeout_s
        return [self._launch()]

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Take one input at ``now`` (monotonic seconds) and return what to do, in order."""
        handler = self.TRANSITIONS.get((self.warmth, type(event)))
        return [] if handler is None else handler(self, event, now)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        is_loading = self.warmth is Warmth.LOADING
        assert is_loading or not self._held, f"{self._held} wait in {self.warmth}"
        assert is_loading == (self._loading_until is not None), "a time limit for nothing"

    def _launch(self) -> Launch:
        return Launch(preload=self._preload, left_out=self._left_out)

    def _renew(self, now: float) -> list[Effect]:
        return [End(), *self.start(now=now)]

    def _on_start(self, start: messages.StartWorkers, _now: float) -> list[Effect]:
        return [Carry(command=start, is_warm=self._is_warm(start))]

    def _is_warm(self, command: messages.StartWorkers | messages.SignalWorkers) -> bool:
        """Whether the template starts them: only workers of the command that it was made for."""
        if not isinstance(command, messages.StartWorkers):
            return False
        return self.warmth is Warmth.READY and command.argv == self._preload.argv

    def _hold_start(self, start: messages.StartWorkers, _now: float) -> list[Effect]:
        if start not in self._held:
            self._held.append(start)
        return []

    def _on_signal(self, command: messages.SignalWorkers, _now: float) -> list[Effect]:
        if not self._held:
            return [Carry(command=command)]
        self._held.append(command)  # for workers that are about to be started
        return []

    def _release(self) -> list[Effect]:
        """Hand on what waited for the template."""
        held, self._held = self._held, []
        self._loading_until = None
        return [Carry(command=command, is_warm=self._is_warm(command)) for command in held]

    def _on_stop(
        self, stop: messages.StopWorkers | messages.KillWorkers, _now: float
    ) -> list[Effect]:
        """Forget a start that is not wanted any more."""
        is_kill = isinstance(stop, messages.KillWorkers)
        latest = stop.round_id if isinstance(stop, messages.StopWorkers) else math.inf
        dropped = [command for command in self._held if command.round_id <= latest]
        self._held = [command for command in self._held if command.round_id > latest]
        # The group knows nothing of such a round, and so can't say that nothing of it is alive.
        starts = [start for start in dropped if isinstance(start, messages.StartWorkers)]
        rounds = sorted({start.round_id for start in starts}) if is_kill else []
        stopped = [messages.WorkersStopped(round_id=round_id) for round_id in rounds]
        return [Carry(command=stop), *stopped]

    def _on_loaded(self, event: Loaded, _now: float) -> list[Effect]:
        self.warmth = Warmth.READY
        text = f"preloaded {event.modules} modules in {event.seconds:.1f} s, once for all workers"
        warnings = [self._describe_left_out()] if self._left_out.modules else []
        reports = self._warn(TemplateNews.LEFT_OUT, *warnings)
        reports += self._warn(TemplateNews.SHARED, *event.notes)
        return [*reports, _report(TemplateNews.READY, text), *self._release()]

    def _warn(self, news: TemplateNews, *texts: str) -> list[Effect]:
        """Report what was not reported yet."""
        new = [text for text in dict.fromkeys(texts) if text not in self._reported]
        self._reported.update(new)
        return [_report(news, text) for text in new]

    def _on_noted(self, event: Noted, _now: float) -> list[Effect]:
        return self._warn(TemplateNews.SHARED, event.text)

    def _on_left_out(self, event: LeftOut, now: float) -> list[Effect]:
        """Load all but these modules, in a process that has not imported them."""
        self._left_out = event
        self._reasons += [event.why] if event.why else []
        if self.warmth is Warmth.READY:
            return self._renew(now)
        self._passes += 1
        if self._passes > PASSES_MAX:
            return self._give_up(f"too much would be left out: {'; '.join(self._reasons)}")
        return [End(), self._launch()]

    def _describe_left_out(self) -> str:
        modules = self._left_out.modules
        wanted = (*self._preload.modules, *filter(None, [self._preload.script]))
        named = [name for name in wanted if self._is_left_out(name)] or [modules[0]]
        more = len({*modules} - {*named})
        also = f" and {more} module{'s' if more > 1 else ''} beside" if more else ""
        return (
            f"{', '.join(named)}{also} not preloaded, but imported by each worker: "
            f"{'; '.join(self._reasons)}"
        )

    def _is_left_out(self, name: str) -> bool:
        modules = self._left_out.modules
        return any(name == module or name.startswith(f"{module}.") for module in modules)

    def _on_unfit(self, event: Unfit, _now: float) -> list[Effect]:
        return self._give_up(event.why)

    def _on_changed(self, event: Changed, now: float) -> list[Effect]:
        if not event.path:
            return []
        text = f"{event.path} has changed: preloading again"
        self._left_out, self._reasons = NOTHING_LEFT_OUT, []  # it may be what has changed
        return [_report(TemplateNews.RENEWED, text), *self._renew(now)]

    def _give_up(self, why: str) -> list[Effect]:
        self.warmth = Warmth.COLD
        text = f"workers start without preloading: {why}"
        return [End(), _report(TemplateNews.COLD, text), *self._release()]

    def _on_ended(self, event: Ended, now: float) -> list[Effect]:
        """Start another one, in the background; what waits for this one waits no longer."""
        self._deaths += 1
        if self._deaths >= DEATHS_MAX:
            return self._give_up(f"the process that preloads {event.how}, {self._deaths} times")
        text = f"the process that preloads {event.how}; another one is started"
        self.warmth = Warmth.COLD
        released = self._release()
        return [_report(TemplateNews.ENDED, text), *released, *self._renew(now)]

    def _on_forked(self, _event: Forked, now: float) -> list[Effect]:
        self._deaths, self._is_late_open, self._late_at = 0, True, now + LATE_LOOK_S
        return []

    def _on_worker_exited(self, _event: messages.WorkerExited, _now: float) -> list[Effect]:
        return self._look_for_late_imports(is_last=True)

    def _on_round_ended(self, _event: RoundEnded, now: float) -> list[Effect]:
        self._late_at, self._is_late_open = None, False
        if self.warmth is not Warmth.READY:
            return []
        return self._renew(now) if self._preload.is_refreshed else [CheckSources()]

    def _look_for_late_imports(self, *, is_last: bool) -> list[Effect]:
        is_open, self._late_at = self._is_late_open, None
        self._is_late_open = is_open and not is_last
        return [ReadLateImports()] if is_open else []

    def _on_late_imports(self, event: LateImports, _now: float) -> list[Effect]:
        return [*self._late_settings(event), *self._late_modules(event)]

    def _late_settings(self, event: LateImports) -> list[Effect]:
        new = {name: reader for name, reader in event.settings if name not in self._reported}
        self._reported.update(new)
        if not new:
            return []
        what = ", ".join(f"{name} (read by {reader})" for name, reader in new.items())
        text = (
            f"the program sets {what} after that was preloaded, so it may have no effect: set it "
            "where the agent is started"
        )
        return [_report(TemplateNews.LATE_SETTINGS, text)]

    def _late_modules(self, event: LateImports) -> list[Effect]:
        late: dict[str, float] = {}
        for name, seconds in event.modules:
            late[name] = late.get(name, 0.0) + seconds
        for name in list(late):  # A package comes with what is imported of it.
            part = next((other for other in late if other.startswith(f"{name}.")), None)
            if part is not None:
                late[part] += late.pop(name)
        slow = {
            name: seconds
            for name, seconds in late.items()
            if seconds >= LATE_EACH_S_MIN and not self._is_left_out(name)
        }
        if self._has_told_late or sum(slow.values()) < LATE_S_MIN:
            return []
        self._has_told_late = True
        named = sorted(slow, key=lambda name: -slow[name])[:LATE_NAMED_MAX]
        what = ", ".join(f"{name} ({slow[name]:.2f} s)" for name in named)
        option = ",".join((*self._preload.modules, *named))
        text = f"workers still import {what} by themselves: use --preload {option} to avoid this"
        return [_report(TemplateNews.LATE_IMPORTS, text)]

    def _on_deadline(self, _event: DeadlineReached, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self._late_at is not None and now >= self._late_at:
            effects += self._look_for_late_imports(is_last=False)
        if self._loading_until is not None and now >= self._loading_until:
            why = f"it takes longer than --preload-timeout, {self._preload.timeout_s:g} s"
            effects += self._give_up(why)
        return effects

    _BY_WARMTH: ClassVar[Mapping[type[Event], tuple[Callable[..., list[Effect]] | None, ...]]] = {
        messages.StartWorkers: (_hold_start, _on_start, _on_start),
        messages.StopWorkers: (_on_stop, _on_stop, _on_stop),
        messages.KillWorkers: (_on_stop, _on_stop, _on_stop),
        messages.SignalWorkers: (_on_signal, _on_signal, _on_signal),
        Loaded: (_on_loaded, None, None),
        LeftOut: (_on_left_out, _on_left_out, None),
        Noted: (None, _on_noted, None),
        Unfit: (_on_unfit, _on_unfit, None),
        Changed: (None, _on_changed, None),
        Ended: (_on_ended, _on_ended, None),
        Forked: (None, _on_forked, None),
        messages.WorkerExited: (_on_worker_exited, _on_worker_exited, _on_worker_exited),
        RoundEnded: (_on_round_ended, _on_round_ended, _on_round_ended),
        LateImports: (_on_late_imports, _on_late_imports, _on_late_imports),
        DeadlineReached: (_on_deadline, _on_deadline, _on_deadline),
    }
    TRANSITIONS: ClassVar[Mapping[tuple[Warmth, type[Event]], Callable[..., list[Effect]]]] = {
        (warmth, kind): handler
        for kind, handlers in _BY_WARMTH.items()
        for warmth, handler in zip(Warmth, handlers, strict=True)
        if handler is not None
    }
    """The whole machine. A pair that is not here is late, or of no interest, and ignored."""


def _report(news: TemplateNews, text: str) -> TemplateReported:
    return TemplateReported(news=news, text=text)
