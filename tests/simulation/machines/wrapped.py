"""Workers that restart in process: their program, and the desk at which their agent hears them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from drumbeat.agent.core.model import NO_ITERATION, Abort, WorkerOrder, WorkerStep
from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.inprocess import (
    Interruption,
    InterruptionKind,
    IterationBegin,
    IterationComplete,
    IterationInterrupt,
)
from tests.simulation.clock import Actor

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from drumbeat.agent.core.events import Event
    from tests.simulation.checks.iterations import IterationChecker
    from tests.simulation.clock import Clock
    from tests.simulation.machines.processes import Process

SIGKILL = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """How workers that use a wrapper behave. Durations are virtual seconds."""

    spec: bytes
    calls: int  # of the wrapper, by each worker
    fails: float  # how likely an iteration goes wrong at a worker
    returns: float  # how likely its function returns before the end of training
    dawdles: float  # how likely it takes its time to enter
    dawdles_max_s: float
    is_grouped: bool  # workers of a host live and die together

    def well(self) -> Conduct:
        """Return the same without anything bad."""
        return replace(self, fails=0.0, returns=0.0, dawdles=0.0)


class At(StrEnum):
    """What a program does."""

    OUTSIDE = "OUTSIDE"
    WAITING = "WAITING"
    RUNNING = "RUNNING"
    DONE = "DONE"
    CLEANING = "CLEANING"
    LEAVING = "LEAVING"


class Program:
    """One worker: calls of the wrapper one after the other, as ``worker_sdk.inprocess`` does."""

    def __init__(
        self,
        process: Process,
        *,
        desk: Desk,
        conduct: Callable[[], Conduct],
        end: Callable[[int], None],
        is_finishing: bool,
    ) -> None:
        self.process = process
        self.actor = Actor(f"pid {process.pid}")
        self.at = At.OUTSIDE
        self.iteration = NO_ITERATION
        self.is_finishing = is_finishing
        self._desk, self._conduct, self._end = desk, conduct, end
        self._clock, self._checker = desk.clock, desk.checker
        assert process.local_rank is not None, "only workers have a program"
        self.local_rank = process.local_rank
        self._random = desk.clock.random(f"{process.owner} {process.round_id} {self.local_rank}")
        self._calls = 0
        self._is_active = False
        # What was planned before the last change of mind does not happen.
        self._plans = 0
        self._after(self._pause(0.05, 1.0), self._call)

    @property
    def random(self) -> Random:
        """Where its faults come from."""
        return self._random

    def finish(self) -> None:
        """Let this function, and all to come, return."""
        self.is_finishing = True
        if self.at is At.RUNNING and self._is_active:
            self._after(self._random.uniform(0.0, 3.0), self._return)
        elif self.at is At.OUTSIDE:
            self._go(At.OUTSIDE)  # whatever it did there, it stops doing it
            self._after(self._random.uniform(0.0, 1.0), self._call)

    def hear(self, order: WorkerOrder) -> None:
        """Take an order; one of another iteration, or a repeated one, changes nothing."""
        if isinstance(order.kind, Abort):
            if self.at in (At.WAITING, At.CLEANING):
                self._go(At.LEAVING)
                self._after(self._random.uniform(0.0001, 0.1), partial(self._end, 1))
            return
        if order.iteration != self.iteration:
            return
        match order.kind:
            case IterationBegin() as begin:
                if self.at is At.WAITING:
                    self._checker.on_begun(self, begin)
                    self._run(begin)
            case IterationInterrupt():
                if self.at in (At.WAITING, At.RUNNING, At.DONE):
                    self._checker.on_interrupted(self)
                    was_waiting = self.at is At.WAITING
                    self._say("interrupted")
                    self._clean_up(is_begun=not was_waiting)
            case IterationComplete():
                if self.at is At.DONE:
                    self._checker.on_all_completed(self)
                    self._go(At.OUTSIDE)
                    self._after(self._pause(0.0, 1.0), self._call)

    # The life of it.

    def _call(self) -> None:
        conduct = self._conduct()
        if self._calls < conduct.calls:
            self._calls += 1
            self._enter()
        else:
            self._go(At.LEAVING)
            code = 1 if self._random.random() < conduct.fails / 2 else 0
            self._after(self._random.uniform(0.0, 0.5), partial(self._end, code))

    def _enter(self) -> None:
        self.iteration += 1
        self._go(At.WAITING)
        conduct = self._conduct()
        group = self.process.owner if conduct.is_grouped else ""
        self._say("entered", spec=conduct.spec, group=group)

    def _run(self, begin: IterationBegin) -> None:
        self._go(At.RUNNING)
        self._is_active = begin.seats[0].active_rank is not None
        conduct, random = self._conduct(), self._random
        if not self._is_active:
            self._after(random.uniform(0.0, 0.01), self._return)
        elif random.random() < conduct.fails:
            after_s = random.choice([0.0, 0.001, 1.0]) + min(random.expovariate(0.3), 15.0)
            self._after(after_s, self._fail)
        elif self.is_finishing:
            self._after(random.uniform(0.0, 3.0), self._return)
        elif random.random() < conduct.returns:
            self._after(random.uniform(0.0, 15.0), self._return)

    def _return(self) -> None:
        self._go(At.DONE)
        self._checker.on_completed(self)
        self._say("completed")

    def _fail(self) -> None:
        kind = self._random.choice(
            [
                InterruptionKind.EXCEPTION,
                InterruptionKind.EXCEPTION,
                InterruptionKind.SOFT_TIMEOUT,
                InterruptionKind.BASE_EXCEPTION,
                None,
            ]
        )
        if kind is None:
            self._end(self._random.choice([0, 1, -6, -9, -11]))
        elif kind.is_survived:
            self._say("interrupted", interruption=self._interruption(kind))
            self._clean_up(is_begun=True)
        else:
            code = self._random.choice([0, 1, 130])
            self._terminate(kind if code else InterruptionKind.EXITED, code)

    def _clean_up(self, *, is_begun: bool) -> None:
        self._go(At.CLEANING)
        if is_begun and self._random.random() < self._conduct().fails / 4:
            self._after(
                self._pause(0.001, 0.3), partial(self._terminate, InterruptionKind.UNHEALTHY, 1)
            )
        else:
            self._after(self._pause(0.0002, 0.3), self._enter)

    def _terminate(self, kind: InterruptionKind, code: int) -> None:
        self._go(At.LEAVING)
        self._say("terminated", interruption=self._interruption(kind))
        self._after(self._random.uniform(0.0001, 0.1), partial(self._end, code))

    def _interruption(self, kind: InterruptionKind) -> Interruption:
        return Interruption(local_rank=self.local_rank, kind=kind, message=f"{kind} here")

    def _go(self, at: At) -> None:
        self.at = at
        self._plans += 1

    def _pause(self, least_s: float, most_s: float) -> float:
        conduct, random = self._conduct(), self._random
        if random.random() < conduct.dawdles:
            most_s = conduct.dawdles_max_s
        return random.uniform(least_s, most_s)

    def _after(self, delay_s: float, action: Callable[[], object]) -> None:
        plan = self._plans

        def act() -> None:
            if self._plans == plan and self.process.is_alive:
                action()

        self._clock.after(delay_s, self.actor, act)

    def _say(self, kind: str, **more: Any) -> None:
        key, iteration = WorkerKey(self.process.round_id, self.local_rank), self.iteration
        step = WorkerStep(worker=key, iteration=iteration, kind=kind, **more)  # type: ignore[arg-type]
        self._desk.say(self, step)


@dataclass(slots=True, eq=False)
class _Stream:
    """What an agent and one worker tell each other; the latest of each replaces what waits."""

    program: Program
    step: WorkerStep | None = None
    order: WorkerOrder | None = None
    is_step_due: bool = False
    is_order_due: bool = False


class Desk:
    """Where an agent hears steps and gives orders; both may come twice, and late."""

    def __init__(
        self,
        clock: Clock,
        agent: Actor,
        submit: Callable[[Event], None],
        checker: IterationChecker,
    ) -> None:
        self.clock, self.checker = clock, checker
        self._agent, self._submit = agent, submit
        self._random = clock.random(f"{agent.name} desk")
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._rounds_started: set[int] = set()

    def attach(self, program: Program) -> None:
        """Serve a worker."""
        key = program.process.round_id, program.local_rank
        self._streams[key] = _Stream(program)

    def started(self, round_id: int) -> None:
        """Hear the workers of a round from here on: who was quicker has waited."""
        self._rounds_started.add(round_id)
        for (of_round, _), stream in list(self._streams.items()):
            if of_round == round_id and stream.step is not None:
                self._send_step(stream)

    def gone(self, round_id: int, local_rank: int) -> None:
        """Forget a worker that the agent knows to have ended."""
        self._streams.pop((round_id, local_rank), None)

    def say(self, program: Program, step: WorkerStep) -> None:
        """Take a step from a worker."""
        self.checker.on_step(program, step)
        self.clock.note(program.actor.name, "says", step)
        stream = self._streams.get((program.process.round_id, program.local_rank))
        if stream is not None:
            stream.step = step
            self._send_step(stream)

    def order(self, order: WorkerOrder) -> None:
        """Take an order for a worker."""
        stream = self._streams.get((order.worker.round_id, order.worker.local_rank))
        if stream is not None:
            stream.order = order
            self._send_order(stream)

    def _delay_s(self) -> float:
        busy_s = 0.1 if self._random.random() < 0.05 else 0.002
        return self._random.uniform(0.0001, busy_s)

    def _send_step(self, stream: _Stream) -> None:
        if not stream.is_step_due and stream.program.process.round_id in self._rounds_started:
            stream.is_step_due = True
            self.clock.after(self._delay_s(), None, partial(self._on_step, stream))

    def _on_step(self, stream: _Stream) -> None:
        stream.is_step_due = False
        step, program = stream.step, stream.program
        assert step is not None, "nothing to say"
        key = step.worker.round_id, step.worker.local_rank

        def arrive() -> None:
            if self._streams.get(key) is stream:
                self._submit(step)

        self.clock.hand(self._agent, program.actor.name, arrive)
        if self._random.random() < 0.03:
            self._reconnect(stream)

    def _reconnect(self, stream: _Stream) -> None:
        """Both sides say again what they said last."""
        if stream.program.process.is_alive:
            self._send_step(stream)
            if stream.order is not None:
                self._send_order(stream)

    def _send_order(self, stream: _Stream) -> None:
        if not stream.is_order_due:
            stream.is_order_due = True
            self.clock.after(self._delay_s(), None, partial(self._on_order, stream))

    def _on_order(self, stream: _Stream) -> None:
        stream.is_order_due = False
        order, program = stream.order, stream.program
        assert order is not None, "nothing to order"

        def arrive() -> None:
            if program.process.is_alive:
                self.clock.note(program.actor.name, "hears", order)
                program.hear(order)

        self.clock.hand(program.actor, "orders", arrive)
