"""Stories of one agent as text: a command, and below it what comes of it.

    agent workers=8 coordinator=a:1,b:1 gpus=1 restarts=3 (without any: shows how it starts)
    connected | running ROUND | iterating | completed (several events, which show nothing)
    welcome ATTEMPT term=7 interval=4 waiting=8
    lost ATTEMPT stale refused outcome=SILENT leader=c:1 error=RunRefused|RunEnded verdict: why
    assign ROUND alone|with-another spent=PORT attempt=1, fields of an assignment: why
    standby SECONDS | stop | end success|failure|released: why
    begin N 0,1 spare=2 first=40 | interrupt N: why | complete N (round=0 terminated=1 attempt=1)
    started ROUND | not-started RANK round=0: why | gone ROUND stuck=PID
    exit RANK CODE stopped round=0: message
    enter RANK N spec=other group=x round=0 | done RANK N | hear RANK N
    break RANK N KIND traceback=x: message | leave RANK N KIND: message
    died unborn final: how | port N | gpus-free: note | signal N workers | suspend
    advance SECONDS (nobody looks) | late SECONDS (then somebody does)
    wait SECONDS (from deadline to deadline) | due (shows the next deadline)

A story begins with ``== title``. What comes of a command is indented.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from msgspec import NODEFAULT, Struct
from msgspec.structs import replace

from drumbeat.agent import errors
from drumbeat.agent.core import events as ev
from drumbeat.agent.core.agent import AgentCore
from drumbeat.agent.core.effects import Effect, SendBeat
from drumbeat.agent.core.model import Abort, Beat, DesiredState, Exit
from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.agent.failures.report import FailureReport
from drumbeat.agent.model.messages import WorkerError
from drumbeat.agent.telemetry import Item
from drumbeat.agent.telemetry.facts import AgentFacts
from drumbeat.agent.telemetry.history import History, Line
from drumbeat.agent.telemetry.observer import Observer
from drumbeat.command.leader_search import Outcome
from drumbeat.coordinator.errors import NotLeader
from drumbeat.inprocess import DirectiveKind, Interruption, InterruptionKind
from drumbeat.model import Assignment, GroupState, Standby, Stop
from tests.support.agents import CONFIG, NOW, PACE, PORT, an_assignment, desired
from tests.support.inprocess import values as inprocess

ALONE = {"group_rank": 0, "group_world_size": 1, "rank_first": 0, "world_size": 2}
PREAMBLES = {
    "connected": ("port 4001", "welcome 1"),
    "running": ("port 4001", "welcome 1", "assign {0} with-another", "started {0}"),
    "iterating": ("running 0", "enter 0 0", "enter 1 0", "begin 0 0,1"),
    "completed": ("iterating", "done 0 0", "done 1 0", "complete 0"),
}


class Command(NamedTuple):
    """One line: a verb, plain words, words with a value, and a text after a colon."""

    verb: str
    words: list[str]
    fields: dict[str, str]
    why: str


def parsed(line: str) -> Command:
    line, _, why = line.partition(": ")
    verb, *words = line.split()
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    return Command(verb, [word for word in words if "=" not in word], fields, why)


class Step(NamedTuple):
    """What comes of an event: effects, lines on the console, and telemetry."""

    effects: list[Effect]
    lines: list[Line]
    items: list[Item]


class Played:
    """An agent's core with its history, and a clock that the commands move."""

    def __init__(
        self,
        *,
        workers: str = "2",
        coordinator: str = "head:1",
        gpus: str = "",
        restarts: str = "3",
        phase: str = "1",
    ) -> None:
        config = dataclasses.replace(
            CONFIG,
            nproc_per_node=int(workers),
            coordinator=coordinator,
            max_restarts=int(restarts),
        )
        self.core, self.now = AgentCore(config, is_gpu_memory_awaited=bool(gpus)), NOW
        self.facts = AgentFacts("b", 1, self.now, int(workers))
        self.observer = Observer(config, self.facts, host="h", epoch_s=0.0)
        self.history = History(self.core, self.facts, now=self.now)
        self.first = self._step(None, self.core.start(now=self.now, beat_phase=float(phase)))

    def feed(self, event: ev.Event) -> Step:
        effects = self.core.handle(event, now=self.now)
        self.core.check_invariants()
        return self._step(event, effects)

    def _step(self, event: ev.Event | None, effects: list[Effect]) -> Step:
        facts = self.facts.saw(event, effects, now=self.now)
        items = [item for fact in facts for item in self.observer.items(fact, now=self.now)]
        return Step(effects, self.history.saw(event, effects, now=self.now), items)

    def carry_out(self, command: Command) -> Iterator[Step]:
        verb, words, *_ = command
        if verb in PREAMBLES:
            for line in PREAMBLES[verb]:
                for _ in self.carry_out(parsed(line.format(*words or ["0"]))):
                    pass
        elif verb == "wait":
            yield from self._wait(float(words[0]))
        else:
            if verb in {"advance", "late"}:
                self.now += float(words[0])
            if verb != "advance":
                yield self.feed(event_of(command, self.now))

    def _wait(self, seconds: float) -> Iterator[Step]:
        """Let time pass as the driver does: from deadline to deadline."""
        until = self.now + seconds
        while True:
            dues = (self.core.next_deadline(), self.history.next_deadline())
            due = min((due for due in dues if due is not None), default=until + 1)
            self.now = min(until, max(self.now, due))
            if due > until:
                return
            yield self.feed(ev.DeadlineReached())


def event_of(command: Command, now: float) -> ev.Event:
    """Return what a command tells the agent."""
    verb, words, fields, why = command
    match verb:
        case "assign" | "standby" | "stop" | "end":
            attempt, spent = (
                int(fields.get(name, usual)) for name, usual in (("attempt", 1), ("spent", 0))
            )
            return desired(_state(command), attempt=attempt, spent=spent)
        case "begin" | "interrupt" | "complete":
            return _directed(command)
        case "enter" | "done" | "break" | "hear" | "leave":
            return _step(command)
        case "exit":
            return _exit(command, now)
        case "lost":
            return _lost(command)
    round_id = int(words[0]) if words and verb in {"started", "gone"} else 0
    stuck = tuple(int(pid) for pid in fields.get("stuck", "").split(",") if pid)
    make: dict[str, Callable[[], ev.Event]] = {
        "welcome": lambda: ev.SessionWelcomed(
            attempt=int(words[0]),
            pace=replace(
                PACE,
                heartbeat_interval_s=float(fields.get("interval", 1)),
                waiting_interval_s=float(fields.get("waiting", 0)),
            ),
            term=int(fields.get("term", 0)),
        ),
        "started": lambda: ev.WorkersStarted(round_id=round_id, pids={0: 70, 1: 71}),
        "not-started": lambda: ev.WorkerStartFailed(
            round_id=int(fields.get("round", 0)), local_rank=int(words[0]), message=why
        ),
        "gone": lambda: ev.WorkersStopped(round_id=round_id, stuck_pids=stuck),
        "died": lambda: ev.SupervisorDied(
            ending=why, has_lived="unborn" not in words, is_final="final" in words
        ),
        "port": lambda: ev.PortReserved(port=int(words[0])),
        "gpus-free": lambda: ev.GpuMemoryFree(note=why),
        "signal": lambda: ev.SignalReceived(
            signum=int(words[0]), is_for_workers="workers" in words
        ),
        "suspend": ev.SuspendRequested,
        "late": ev.DeadlineReached,
    }
    return make[verb]()


def _state(command: Command) -> DesiredState:
    verb, words, fields, why = command
    if verb == "stop":
        return Stop(reason=why)
    if verb == "standby":
        return Standby(reason=why, time_left_s=float(words[0]))
    if verb == "end":
        report = FailureReport(reason=why) if words[0] == "failure" else None
        is_released = words[0] == "released"
        return Exit(is_success=not report, reason=why, report=report, is_released=is_released)
    numbers = {
        name: int(value) for name, value in fields.items() if name not in {"spent", "attempt"}
    }
    budget = {"restarts_used": numbers.get("restart_count", 0), "restarts_max": 3}
    here = (ALONE if words[1] == "alone" else {}) | budget | numbers
    return an_assignment(int(words[0]), **here, reason=why or "all are there")


def _directed(command: Command) -> ev.Event:
    verb, words, fields, why = command
    iteration, round_id = int(words[0]), int(fields.get("round", 0))
    if verb == "begin":
        active, spare = (
            [int(rank) for rank in ranks.split(",") if rank]
            for ranks in (words[1] if words[1:] else "", fields.get("spare", ""))
        )
        first = int(fields.get("first", 2))
        directive = inprocess.a_begin(iteration, active, spare, round_id=round_id, rank_first=first)
    elif verb == "interrupt":
        directive = inprocess.an_interrupt(iteration, why or "rank 0 failed", round_id=round_id)
    else:
        directive = inprocess.a_complete(iteration, round_id=round_id)
    terminated = tuple(int(rank) for rank in fields.get("terminated", "").split(",") if rank)
    directive = replace(directive, terminated=terminated)
    return inprocess.directed(directive, attempt=int(fields.get("attempt", 1)))


def _step(command: Command) -> ev.Event:
    verb, (rank, number, *kinds), fields, why = command
    local_rank, iteration = int(rank), int(number)
    if verb == "enter":
        spec, round_id = fields.get("spec", "spec").encode(), int(fields.get("round", 0))
        group = fields.get("group", "")
        return inprocess.enters(local_rank, iteration, spec=spec, group=group, round_id=round_id)
    if verb == "done":
        return inprocess.completes(local_rank, iteration)
    if verb == "hear":
        return inprocess.breaks(local_rank, iteration, None)
    usual, say = {
        "leave": ("BASE_EXCEPTION", inprocess.leaves),
        "break": ("EXCEPTION", inprocess.breaks),
    }[verb]
    step = say(local_rank, iteration, InterruptionKind[kinds[0] if kinds else usual], why or "boom")
    if "traceback" in fields and step.interruption is not None:
        told = replace(step.interruption, traceback=fields["traceback"])
        step = replace(step, interruption=told)
    return step


def _exit(command: Command, now: float) -> ev.Event:
    _, (rank, code, *words), fields, why = command
    return ev.WorkerExited(
        round_id=int(fields.get("round", 0)),
        local_rank=int(rank),
        pid=70 + int(rank),
        exit_code=int(code),
        is_stopped="stopped" in words,
        ended_at=now,
        error=WorkerError(message=f"{why}\nmore") if why else None,
    )


def _lost(command: Command) -> ev.Event:
    _, words, fields, why = command
    leader, outcome = fields.get("leader", ""), fields.get("outcome", "NO_ANSWER")
    if "refused" in words:
        why, outcome = str(NotLeader(leader, why)), "NOT_LEADER"
    kind = getattr(errors, fields["error"]) if "error" in fields else None
    refusal = None
    if kind is errors.RunEnded:
        refusal = kind("job", why, 1)
    elif kind is not None:
        refusal = kind("job", why) if issubclass(kind, errors.RunRefused) else kind(why)
    verdict = Exit(is_success=False, reason=why, report=FailureReport(reason=why))
    return ev.SessionLost(
        attempt=int(words[0]),
        reason=why,
        is_stale="stale" in words,
        refusal=refusal,
        verdict=verdict if "verdict" in words else None,
        outcome=Outcome[outcome],
        leader=leader,
    )


def shown(effect: object) -> str:
    """Return an effect as a line: its name in words, and what of it is not the default."""
    name = re.sub(r"(?<!^)([A-Z])", r" \1", type(effect).__name__).lower()
    values = ", ".join(_fields(effect))
    return f"{name}: {values}" if values else name


def shown_effects(command: Command, step: Step) -> Iterator[str]:
    """Yield effects as lines, without the beats that are sent in a wait."""
    is_waiting = command.verb == "wait"
    beats = SendBeat if is_waiting else ()
    return (shown(effect) for effect in step.effects if not isinstance(effect, beats))


def _fields(value: object) -> Iterator[str]:
    for each in msgspec.structs.fields(type(value)):  # type: ignore[arg-type]
        given = getattr(value, each.name)
        default = each.default_factory() if each.default_factory is not NODEFAULT else each.default
        if isinstance(value, Beat) and (not given or (each.name, given) == ("master_port", PORT)):
            if (each.name, given) in {("master_port", 0), ("round_id", 0)}:
                yield "no port" if each.name == "master_port" else "round 0"
        elif isinstance(given, Beat | Assignment | GroupState):
            yield _text(given)
        elif isinstance(value, Beat) and each.name == "failure":
            yield f"failure of rank {given.rank}"
        elif given != default:
            yield f"{each.name} {_text(given)}"


def _text(value: object) -> str:
    text = str(value)
    if isinstance(value, Assignment | WorkerKey):
        of = value.round_id
        text = f"round {of}" if isinstance(value, Assignment) else f"{of}.{value.local_rank}"
    elif isinstance(value, errors.AgentError):
        text = f"{type(value).__name__} ({value})"
    elif isinstance(value, Interruption):
        text = f"{value.local_rank} {value.kind} ({value.message})"
    elif isinstance(value, Struct):
        name = type(value).__name__ if isinstance(value, DirectiveKind | Abort) else ""
        text = f"{name}({', '.join(_fields(value))})"
    elif isinstance(value, tuple | frozenset):
        texts = map(_text, value)
        text = f"[{', '.join(texts if isinstance(value, tuple) else sorted(texts))}]"
    elif isinstance(value, float):
        text = f"{value:g}"
    return text.replace("\n", "\\n")


class Stories:
    """A file of stories; ``show`` yields what comes of one step, as lines."""

    def __init__(self, path: Path, show: Callable[[Command, Step], Iterable[str]]) -> None:
        self._path, self._show, self._is_written = path, show, False
        self._head, *parts = path.read_text().split("\n== ")
        self._stories = {title: lines for title, *lines in map(str.splitlines, parts)}

    def titles(self) -> list[str]:
        return list(self._stories)

    def check(self, title: str, config: pytest.Config) -> None:
        """Compare a story with what the agent does now, or write the file anew."""
        if config.getoption("--rewrite") and not self._is_written:
            self._is_written = True
            for each in self.titles():
                self._stories[each] = [*self._played(each), ""]
            parts = ("\n".join((each, *lines)) for each, lines in self._stories.items())
            self._path.write_text("\n== ".join((self._head, *parts)) + "\n")
        assert [*self._played(title)] == [line for line in self._stories[title] if line]

    def _played(self, title: str) -> Iterator[str]:
        played: Played | None = None
        for line in self._stories[title]:
            if not line or line[0] == " ":
                continue
            yield line
            command = parsed(line)
            if command.verb == "agent":
                played = Played(**command.fields)
                if not command.fields:
                    yield from (f"    {text}" for text in self._show(command, played.first))
                continue
            played = played or Played()
            if command.verb == "due":
                due = played.core.next_deadline()
                yield f"    {'never' if due is None else f'in {due - played.now:g} s'}"
                continue
            for step in played.carry_out(command):
                yield from (f"    {text}" for text in self._show(command, step))
