"""The agents and the coordinator of in-process restart, as one small model in memory.

It knows what each worker said last, and answers as the protocol asks. Ranks may be
real ones or puppets, which a test moves by hand or lets come along by themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from drumbeat.worker.v1 import iteration_pb2, worker_pb2

Step = worker_pb2.WorkerStep
Order = worker_pb2.WorkerOrder


@dataclass(slots=True)
class Worker:
    """What the model knows of one worker, by its initial rank."""

    send: Callable[[Order], None] | None
    """``None``: a puppet, which does by itself whatever is asked of it."""
    rank: int
    is_alive: bool = True
    step: str = ""
    iteration: int = -1
    group: str = ""
    active_rank: int | None = None


@dataclass(slots=True)
class Begin:
    """One iteration as it began."""

    iteration: int
    ranks: dict[int, int]
    """Rank by initial rank."""
    active_world_size: int


@dataclass(slots=True)
class Iterations:
    """The model. ``said`` and ``begins`` are for tests to look at."""

    workers: dict[int, Worker]
    master_port: Callable[[], int] = lambda: 0
    spec: iteration_pb2.InprocessSpec = field(default_factory=iteration_pb2.InprocessSpec)
    iteration: int = 0
    phase: str = "entering"
    said: list[tuple[int, Step]] = field(default_factory=list)
    begins: list[Begin] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @classmethod
    def of(cls, size: int, senders: dict[int, Callable[[Order], None]]) -> Iterations:
        """Return a world of ``size`` ranks, of which those in ``senders`` are real."""
        return cls({rank: Worker(senders.get(rank), rank) for rank in range(size)})

    # What happens.

    def on_step(self, who: int, step: Step) -> None:
        """Take note of what a worker says."""
        with self.changed:
            self.said.append((who, step))
            worker = self.workers[who]
            kind = step.WhichOneof("kind") or ""
            worker.step, worker.iteration = kind, step.iteration
            if kind == "entered":
                self.spec = step.entered.spec
                worker.group = step.entered.group
            elif kind == "terminated":
                worker.is_alive = False
                self._interrupt(step.terminated.interruption.message)
            elif kind == "interrupted" and step.iteration == self.iteration:
                self._interrupt(step.interrupted.interruption.message)
            self._settle()
            self.changed.notify_all()

    def lose(self, who: int, reason: str = "lost") -> None:
        """Have a worker be gone."""
        with self.changed:
            if not self.workers[who].is_alive:
                return
            self.workers[who].is_alive = False
            self._interrupt(reason)
            self._settle()
            self.changed.notify_all()

    def interrupt(self, reason: str) -> None:
        """Have somebody far away interrupt the iteration."""
        with self.changed:
            self._interrupt(reason)
            self._settle()
            self.changed.notify_all()

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Wait until the model is as ``predicate`` wants it."""
        with self.changed:
            if not self.changed.wait_for(predicate, timeout_s):
                raise AssertionError(f"not within {timeout_s:g} s; said: {self.history()}")

    def kinds(self, who: int) -> list[tuple[int, str]]:
        """Return the iterations and kinds of all that a worker said."""
        return [(iteration, kind) for heard, iteration, kind in self.history() if heard == who]

    def history(self) -> list[tuple[int, int, str]]:
        """Return who said what."""
        return [(who, step.iteration, step.WhichOneof("kind") or "") for who, step in self.said]

    # What follows from it.

    def _live(self) -> list[Worker]:
        return sorted((w for w in self.workers.values() if w.is_alive), key=lambda w: w.rank)

    def _interrupt(self, reason: str) -> None:
        if self.phase in ("running", "begun"):
            self.phase = "interrupted"
            self.reasons.append(reason)
            message = iteration_pb2.IterationInterrupt(reason=reason)
            self._send_all(lambda _: Order(iteration=self.iteration, interrupt=message))

    def _settle(self) -> None:
        live = self._live()
        real = [worker for worker in live if worker.send is not None]
        if self.phase == "interrupted":
            self.phase, self.iteration = "entering", self.iteration + 1
        if self.phase == "entering" and real and self._all(real, "entered"):
            self._begin()
        elif self.phase == "running" and real and self._all(real, "completed"):
            self.phase, number = "entering", self.iteration
            self.iteration += 1
            complete = iteration_pb2.IterationComplete()
            self._send_all(lambda _: Order(iteration=number, complete=complete))

    def _all(self, workers: list[Worker], step: str) -> bool:
        return all(w.step == step and w.iteration == self.iteration for w in workers)

    def _begin(self) -> None:
        active = self._assign()
        live = self._live()
        if not live or len(live) < self.spec.world_size_min:
            return
        if active < self.spec.active_world_size_min:
            return
        most = self.spec.iterations_max
        if most and len(self.begins) >= most:
            return
        self.phase = "running"
        ranks = {who: w.rank for who, w in self.workers.items() if w.is_alive}
        self.begins.append(Begin(self.iteration, ranks, active))
        port = self.master_port()
        self._send_all(lambda worker: self._begin_of(worker, len(live), active, port))

    def _begin_of(self, worker: Worker, size: int, active: int, port: int) -> Order:
        begin = worker_pb2.WorkerBegin(
            rank=worker.rank,
            world_size=size,
            active_world_size=active,
            master_addr="127.0.0.1" if port else "",
            master_port=port,
        )
        if worker.rank < active:
            begin.active_rank = worker.rank
        return Order(iteration=self.iteration, begin=begin)

    def _assign(self) -> int:
        """Give new ranks by the rules, and return how many are active."""
        active = len(self._live())
        for rule in self.spec.rules:
            kind = rule.WhichOneof("kind")
            live = self._live()
            if kind == "groups":
                self._discard(rule.groups.allowed)
            elif kind == "shift":
                for rank, worker in enumerate(live):
                    worker.rank = rank
            elif kind == "fill":
                taken = {w.rank for w in live if w.rank < len(live)}
                gaps = [rank for rank in range(len(live)) if rank not in taken]
                for worker, gap in zip([w for w in live if w.rank >= len(live)], gaps, strict=True):
                    worker.rank = gap
            active = min(active, len(self._live()))
            if kind == "active_max":
                active = min(active, rule.active_max)
            elif kind == "active_divisor":
                active -= active % rule.active_divisor
        return active

    def _discard(self, allowed: bytes) -> None:
        sizes: dict[str, int] = {}
        for worker in self._live():
            sizes[worker.group] = sizes.get(worker.group, 0) + 1
        for worker in self._live():
            size = sizes[worker.group]
            worker.is_alive = bool(
                size // 8 < len(allowed) and allowed[size // 8] & (1 << (size % 8))
            )

    def _send_all(self, order_for: Callable[[Worker], Order]) -> None:
        for worker in self._live():
            if worker.send is not None:
                worker.send(order_for(worker))


class InMemory:
    """The transport of one real worker in this process to a model. Sends as it is asked."""

    def __init__(self) -> None:
        self.model: Iterations | None = None
        self.who = 0
        self._receiver: Callable[[Order | None], None] | None = None
        self._latest: Order | None = None
        self.greeted: worker_pb2.Greeted | None = worker_pb2.Greeted()

    def send_step(self, step: Step) -> None:
        """Hand a step to the model."""
        assert self.model is not None
        self.model.on_step(self.who, step)

    def on_order(self, receiver: Callable[[Order | None], None] | None) -> None:
        """Hand orders to ``receiver``."""
        self._receiver = receiver
        if receiver is not None and self._latest is not None:
            receiver(self._latest)

    def confirm(self, timeout_s: float) -> bool:  # noqa: ARG002
        """All is sent at once."""
        return True

    def greeting(self, timeout_s: float) -> worker_pb2.Greeted | None:  # noqa: ARG002
        """Return what the test has set."""
        return self.greeted

    def deliver(self, order: Order) -> None:
        """Give an order to the worker."""
        self._latest = order
        if self._receiver is not None:
            self._receiver(order)

    def lose(self) -> None:
        """Say that no more orders will come."""
        if self._receiver is not None:
            self._receiver(None)


class Limits:
    """Notes the limits that the agent would keep."""

    def __init__(self) -> None:
        self.armed: dict[str, tuple[float, float]] = {}
        self.seen: set[str] = set()
        self.clears = 0
        self.is_in_section = False

    def arm(self, scope: str, after_s: float, grace_s: float = 0.0) -> None:
        """Note one."""
        self.armed[scope] = (after_s, grace_s)
        self.seen.add(scope)

    def disarm(self, scope: str) -> None:
        """Forget one."""
        self.armed.pop(scope, None)

    def clear(self) -> None:
        """Count."""
        self.clears += 1
        self.armed.clear()

    def is_suspended(self) -> bool:
        """Return what the test has set."""
        return self.is_in_section
