"""A watchdog's core with workers, boards and a clock that the test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from drumbeat.agent.watchdog.core import model as fx
from drumbeat.agent.watchdog.core.model import (
    BoardRead,
    DeadlineReached,
    EvidenceTaken,
    Slot,
    Snapshot,
    WatchdogPolicy,
    WorkerKey,
    WorkerStarted,
)
from drumbeat.agent.watchdog.core.watchdog import WatchdogCore
from drumbeat.agent.watchdog.hang import Evidence

if TYPE_CHECKING:
    from drumbeat.agent.watchdog.core.model import Event
    from drumbeat.agent.watchdog.hang import Hang

NOW = 1000.0
WORKER = WorkerKey(0, 0)
OTHER = WorkerKey(0, 1)
PID = 77


def a_slot(number: int = 0, **fields: Any) -> Slot:
    """Return a timer that was acquired at ``NOW`` for 10 s."""
    given: dict[str, Any] = {
        "slot": number,
        "name": f"timer {number}",
        "is_section": False,
        "since": NOW,
        "limit_s": 10.0,
        "signal": None,
    }
    given |= fields
    if "deadline" not in given:
        limit_s = given["limit_s"]
        given["deadline"] = given["since"] + limit_s if isinstance(limit_s, float) else None
    return Slot(**given)


def a_board(*slots: Slot, **fields: Any) -> Snapshot:
    """Return the board of a process."""
    given: dict[str, Any] = {"owner_pid": PID, "slots": slots}
    return Snapshot(**(given | fields))


class WatchStory:
    """A core whose board readings and evidence come at once, as the test set them."""

    def __init__(self, *workers: WorkerKey, is_answering: bool = True, **policy: Any) -> None:
        self.core = WatchdogCore(WatchdogPolicy(**policy))
        self.now = NOW
        self.is_answering = is_answering
        self.boards: dict[WorkerKey, Snapshot | None] = {}
        self.evidence: dict[WorkerKey, Evidence] = {}
        self.effects: list[fx.Effect] = []
        for worker in workers or (WORKER,):
            self.feed(WorkerStarted(worker=worker))

    def feed(self, *events: Event) -> list[fx.Effect]:
        """Hand events over now; return what followed."""
        first = len(self.effects)
        for event in events:
            self._handle(event)
        return self.effects[first:]

    def kick(self, board: Snapshot | None, worker: WorkerKey = WORKER) -> list[fx.Effect]:
        """Let a worker write on its board, and ask for a look."""
        self.boards[worker] = board
        return self.feed(BoardRead(worker=worker, snapshot=board))

    def write(self, board: Snapshot | None, worker: WorkerKey = WORKER) -> None:
        """Let a worker write on its board, without telling anybody."""
        self.boards[worker] = board

    def beat_at(self, now: float, worker: WorkerKey = WORKER) -> None:
        """Let a worker's runtime give a sign of life, without telling anybody."""
        self.boards[worker] = replace(self.boards[worker] or a_board(), beat_at=now)

    def run(self, until: float) -> list[fx.Effect]:
        """Let time pass, always punctual; return what followed."""
        first = len(self.effects)
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self._handle(DeadlineReached())
        self.now = until
        return self.effects[first:]

    def sleep(self, until: float) -> list[fx.Effect]:
        """Stand still, and wake up at ``until``; return what followed."""
        self.now = until
        return self.feed(DeadlineReached())

    def signals(self) -> list[tuple[int, int]]:
        """Return which worker got which signal, by local rank."""
        sent = [each for each in self.effects if isinstance(each, fx.Signal)]
        return [(each.worker.local_rank, each.signum) for each in sent]

    def hangs(self) -> list[Hang]:
        """Return all hangs that were reported."""
        return [each.hang for each in self.effects if isinstance(each, fx.Report)]

    def told(self) -> list[str]:
        """Return which warnings were logged."""
        return [each.event for each in self.effects if isinstance(each, fx.Warn)]

    def _handle(self, event: Event) -> None:
        effects = self.core.handle(event, now=self.now)
        self.core.check_invariants()
        self.effects += effects
        if not self.is_answering:
            return
        for effect in effects:
            match effect:
                case fx.ReadBoard(worker=worker):
                    self._handle(BoardRead(worker=worker, snapshot=self.boards.get(worker)))
                case fx.TakeEvidence(worker=worker):
                    evidence = self.evidence.get(worker, Evidence(stacks="File a.py"))
                    self._handle(EvidenceTaken(worker=worker, evidence=evidence))
                case _:
                    pass
