"""Shell. The watchdog of this host's workers; owns the watchdog's core, on the agent's loop."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from textwrap import indent
from typing import Any

import structlog
from msgspec.structs import replace

from drumbeat.agent.compat.file_timers import PIPE_BYTES, FileTimers, requested_path
from drumbeat.agent.core.events import LimitsExceeded, NoticeAnswered
from drumbeat.agent.core.model import WorkerOrder, WorkerStep
from drumbeat.agent.core.notice import Notice
from drumbeat.agent.core.watchdog import model as msg
from drumbeat.agent.core.watchdog.model import Snapshot, Tally, WatchdogPolicy, WorkerKey
from drumbeat.agent.core.watchdog.watchdog import WatchdogCore
from drumbeat.agent.core.watchdog.worker import Worker, merged
from drumbeat.agent.host.memory.reader import MemoryReader
from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.agent.model.hang import Hang, HangEvidence, WorkerProgress, describe_hang
from drumbeat.agent.watchdog.blame import Blame
from drumbeat.agent.watchdog.board_reader import Board
from drumbeat.agent.watchdog.boards import Boards
from drumbeat.agent.watchdog.notice_page import HostNotices, NoticePage
from drumbeat.agent.watchdog.stack_taking import (
    BUSY,
    LOOK_MIN_S,
    StackTaker,
    WorkerEvidence,
    with_state,
)
from drumbeat.agent.watchdog.stacks import STARVED_S, describe_process, is_below, signal_below
from drumbeat.agent.workers.devices.usage import GpuUsage
from drumbeat.agent.workers.output.rules import OutputRules, describe_fatal
from drumbeat.command.console import write_text
from drumbeat.model import HangKind
from worker_sdk import context

log = structlog.get_logger()

SUSPECTS_MAX = 64  # hosts that one worker accuses in a round; more are passed over
COLLECTIVES_WITHIN_S = 5.0  # later than that an answer is not waited for
KICK_PAUSE_S = 0.001  # until the next kick is answered, so that none keeps this agent busy
# Every worker of a hang exceeds these; the coordinator shows the stacks of all ranks, grouped.
_SHOWN_BY_COORDINATOR = (HangKind.PROGRESS, HangKind.STARTUP, HangKind.COLLECTIVE)

WatchdogEvent = msg.Report | msg.Signal | WorkerStep | NoticeAnswered | LimitsExceeded


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    """One worker of the latest round, from the making of its board on.

    ``begun`` is set once it is known whether it runs; ``known`` is what the core knows, or knew,
    of it once it was watched; ``pause`` ends the pause after a kick. ``file_timers`` are its own,
    if the user did not choose one place for those of all workers.
    """

    key: WorkerKey
    board: Board
    pid: int = 0
    file_timers: FileTimers | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    known: Worker | None = None
    fatal_line: msg.FatalLine | None = None  # for which it is ended
    is_watched: bool = False
    suspects: dict[int | None, str] = field(default_factory=dict)  # whom it accuses, and why
    pause: asyncio.TimerHandle | None = None
    blame: Blame = field(default_factory=Blame)
    stacks: StackTaker


class Watchdog:
    """Watches the workers of one round at a time. Without a board they run unwatched.

    ``on_event`` gets what is found of hangs, the signals for them, and steps of iterations. The
    agent's ``environment`` may ask for torch's file timers; ``redact`` takes secrets out of texts.
    """

    def __init__(
        self,
        policy: WatchdogPolicy,
        directory: PrivateDirectory,
        send_signal: Callable[[WorkerKey, int], None],
        on_event: Callable[[WatchdogEvent], None],
        environment: Mapping[str, str],
        *,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._timers_max = policy.timers_max
        # A runtime shows that it lives each second, and 4 times within the longest time without.
        longest_s = math.inf if policy.runtime_timeout_s is None else policy.runtime_timeout_s
        self._beat_s = min(1.0, longest_s / 4)
        self._send_signal = send_signal
        self._on_event = on_event
        self._environment = environment
        self._redact = redact
        self._core = WatchdogCore(policy)
        self.memory = MemoryReader()
        self.gpus = GpuUsage()
        self._rules: OutputRules | None = None
        self._workers: dict[WorkerKey, _Worker] = {}
        self._tokens: dict[str, WorkerKey] = {}
        self._notices = HostNotices()
        worker_of = self._worker_of if policy.observes_workers else None
        self._boards = Boards(directory, self, worker_of, beat_interval_s=self._beat_s)
        self._file_timers: FileTimers | None = None
        self._exceeded: tuple[msg.Exceeded, ...] = ()
        self._events, self._is_busy = deque[msg.Event](), False
        self._alarm: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def look_at_output(self, rules: OutputRules, loop: asyncio.AbstractEventLoop) -> None:
        """Judge workers by patterns in their output, too."""

        def on_fatal(key: WorkerKey) -> None:  # in another thread
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._on_fatal, key)

        self._rules, rules.on_fatal = rules, on_fatal

    def prepare(self, round_id: int, local_ranks: Iterable[int]) -> dict[int, dict[str, str]]:
        """Make the boards of a round; return what each worker's environment says of them.

        Raises ``TimerFileUnusable`` if file timers are asked for and can't be served.
        """
        self.ended()
        self._workers.clear()
        # Calls of the round before are answered that it is over; older tokens are unknown.
        latest = max((key.round_id for key in self._tokens.values()), default=round_id)
        self._tokens = {token: key for token, key in self._tokens.items() if key.round_id == latest}
        env: dict[int, dict[str, str]] = {local_rank: {} for local_rank in local_ranks}
        keys = [WorkerKey(round_id, local_rank) for local_rank in env]
        for key, board in self._boards.make(keys).items():
            stacks = StackTaker(key, board, self._boards.observers)
            self._workers[key] = _Worker(key=key, board=board, stacks=stacks)
        self._notices.show_again(round_id, self._pages(round_id))
        for key, worker in self._workers.items():
            # Known to this worker alone: its calls count for itself, whatever they say.
            self._tokens[token := secrets.token_urlsafe(16)] = key
            env[key.local_rank] = {
                **self._serve_file_timers(worker),
                **self._boards.environment(worker.board),
                context.WORKER_TOKEN: token,
            }
        return env

    def started(
        self, round_id: int, pids: Mapping[int, int], *, is_preflight: bool = False
    ) -> None:
        """Watch the workers of a round. Repeating it changes nothing."""
        # Not those that are known, or were stopped meanwhile.
        new = [worker for worker in self._workers_of(round_id) if not worker.begun.is_set()]
        started = [worker for worker in new if worker.key.local_rank in pids]
        for worker in started:
            worker.pid, worker.is_watched = pids[worker.key.local_rank], True
            worker.begun.set()
        # Together: boards are read at once, and with them file timers of any worker.
        self.feed(
            *(msg.WorkerStarted(worker=worker.key, is_preflight=is_preflight) for worker in started)
        )
        for worker in started:
            worker.known = self._core.workers[worker.key]
            self._listen(worker)
            if worker.file_timers is not None:
                worker.file_timers.resume()
        if self._file_timers is not None:
            self._file_timers.resume()

    def stopping(self, round_id: int | None = None) -> None:
        """Watch no worker of a round any more, for this agent stops it; None: of any round."""
        for worker in self._workers_of(round_id):
            self._unwatch(worker)

    def gone(self, round_id: int, local_rank: int, exit_code: int) -> Hang | None:
        """Take note that a worker has ended; return the hang that ended it."""
        worker = self._workers.get(WorkerKey(round_id, local_rank))
        if worker is None:
            return None
        if exit_code == 0:
            self._notices.ended(round_id, worker.board.notices)
        self._remove(worker)
        return worker.blame.hang_that_ended(exit_code, time.monotonic())

    def fatal_line(self, round_id: int, local_rank: int) -> msg.FatalLine | None:
        """Return the line that a worker was ended for, None if there is none."""
        worker = self._workers.get(WorkerKey(round_id, local_rank))
        return None if worker is None else worker.fatal_line

    def ended(self, round_id: int | None = None) -> None:
        """Remove the boards of a round that has ended; None: of any round."""
        for worker in self._workers_of(round_id):
            self._remove(worker)

    def standings(self, round_id: int | None) -> list[WorkerProgress]:
        """Return where the workers of a round stand, or stood last, as far as they say so."""
        for worker in self._workers.values():
            if worker.is_watched and worker.key.round_id == round_id:
                self._read_board(worker)
        now, standings = time.monotonic(), []
        for known in self._known_of(round_id):
            standing, worker = known.standing(), self._workers[known.key]
            if worker.is_watched:
                standing = with_state(standing, worker.pid, self._beat_s, now)
            else:  # it has ended, or is being stopped: no step is expected
                standing = replace(standing, progress_since=None)
            if standing != WorkerProgress(local_rank=standing.local_rank):
                standings.append(replace(standing, scope=self._redact(standing.scope)))
        return standings

    def pids(self, round_id: int | None) -> dict[int, int]:
        """Return the processes of a round's workers by local rank, of those that were started."""
        known = ((worker.key, worker.pid) for worker in self._workers.values())
        return {key.local_rank: pid for key, pid in known if key.round_id == round_id and pid}

    def observations(self, round_id: int | None) -> Mapping[str, Tally]:
        """Return of each section, "" between heartbeats, how many times and the longest."""
        return merged(known.observed() for known in self._known_of(round_id))

    def collectives_moved_s(self, round_id: int | None) -> float:
        """Return for how long collectives of a round have moved here, as far as that was seen."""
        return max((known.collectives_moved_s for known in self._known_of(round_id)), default=0.0)

    def suspects(self, round_id: int | None) -> list[tuple[int, int | None, str]]:
        """Return who of a round's workers accuses whom, as ranks, and why."""
        of_round = (worker for worker in self._workers.values() if worker.key.round_id == round_id)
        every = ((w.key.local_rank, *suspect) for w in of_round for suspect in w.suspects.items())
        return list(islice(every, SUSPECTS_MAX))

    def _known_of(self, round_id: int | None) -> list[Worker]:
        known = (worker.known for worker in self._workers.values())
        return [
            worker for worker in known if worker is not None and worker.key.round_id == round_id
        ]

    def order(self, order: WorkerOrder) -> None:
        """Tell a worker, which has sent a step and so has a stream, what to do in an iteration."""
        worker, service = self._workers.get(order.worker), self._boards.service
        if service and worker and worker.is_watched:
            service.order(order)

    def show_notice(self, notice: Notice) -> None:
        """Have the workers of its round find a notice, and tell what they say of it."""
        self._notices.show(notice, self._pages(notice.round_id))
        self._take_answers()

    def _pages(self, round_id: int) -> list[NoticePage]:
        return [worker.board.notices for worker in self._workers_of(round_id)]

    def _take_answers(self) -> None:
        """Tell what the workers say of the notice that is pending, if it is news."""
        if (notice := self._notices.pending()) is None:
            return
        workers = [item for item in self._workers_of(notice.round_id) if item.is_watched]
        answers = [worker.board.notices.answer(notice) for worker in workers]
        times = [item.step_time_s for item in self.standings(notice.round_id)]
        if report := self._notices.news(answers, min(filter(None, times), default=None)):
            self._on_event(NoticeAnswered(round_id=notice.round_id, report=report))

    async def look(
        self,
        round_id: int,
        local_ranks: Iterable[int],
        timeout_s: float,
        *,
        may_signal: bool = False,
        is_judged: bool = False,
    ) -> list[WorkerEvidence]:
        """Return what workers of a round do, all looked at together; they go on.

        They are asked, and notice nothing. With ``may_signal`` those that do not answer get a
        signal, which may end a system call of theirs early. ``is_judged``: to judge a hang, for
        which what was seen of a worker that is held to be killed counts.
        """
        keys = [WorkerKey(round_id, local_rank) for local_rank in dict.fromkeys(local_ranks)]
        look = partial(
            self._look_at, timeout_s=timeout_s, may_signal=may_signal, is_judged=is_judged
        )
        return await asyncio.gather(*map(look, keys))

    async def _look_at(
        self, key: WorkerKey, *, timeout_s: float, may_signal: bool, is_judged: bool
    ) -> WorkerEvidence:
        if (worker := self._workers.get(key)) is None:
            none = HangEvidence(notes="this host has no such worker, or no board")
            return WorkerEvidence(key.local_rank, evidence=none)
        known = worker.known if is_judged else None
        evidence, groups = HangEvidence(notes="it does not run"), None
        until = time.monotonic() + timeout_s
        calls = asyncio.ensure_future(worker.stacks.calls(timeout_s))
        try:
            async with worker.stacks.turn(timeout_s) as left_s:
                if known is not None and (held := known.evidence_held()) is not None:
                    evidence = held
                elif worker.is_watched:
                    take = worker.stacks.evidence if is_judged else worker.stacks.for_reader
                    snapshot = worker.board.read() or Snapshot()
                    evidence = await take(worker.pid, snapshot, left_s, may_signal=may_signal)
            if worker.is_watched:
                left_s = max(until - time.monotonic(), LOOK_MIN_S)
                # Native frames are for readers: a judgement goes by the innermost Python call.
                may_halt = may_signal and not is_judged
                evidence = await worker.stacks.from_outside(
                    worker.pid, evidence, left_s, may_halt=may_halt
                )
        except TimeoutError:
            held = None if known is None else known.evidence_held()
            evidence = held or HangEvidence(notes=BUSY)
        finally:
            groups = await calls
        standing = None if known is None else known.standing()
        moved_at = None if known is None else known.moved_at
        look = WorkerEvidence(key.local_rank, worker.pid, evidence, standing, groups, moved_at)
        return look.redacted(self._redact)

    async def close(self) -> None:
        """Watch no worker any more, and remove everything."""
        self.ended()
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._boards.close()
        if self._file_timers is not None:
            self._file_timers.close()

    async def authenticate(self, token: str) -> WorkerKey:
        """Return whose token it is, once that worker, quicker than the news of its start, runs."""
        key = self._tokens.get(token)
        if key is None:
            raise msg.Refusal("UNAUTHENTICATED", "the token is not that of a worker of this agent")
        if (worker := self._workers.get(key)) is not None:
            await worker.begun.wait()
        self._watched(key)
        return key

    def submit(self, call: msg.TimerCall | msg.ReadBoard | WorkerStep) -> None:
        """Take what a worker tells. Raises ``WorkerIsGone``, ``TooManyTimers``."""
        worker = self._watched(call.worker)
        match call:
            case WorkerStep():
                self._on_event(call)
            case msg.ReadBoard():
                self._read_board(worker)
            case msg.TimerAcquired() if worker.known and not worker.known.may_acquire(call.scope):
                why = f"{self._timers_max} timers are open"
                raise msg.TooManyTimers("RESOURCE_EXHAUSTED", why)
            case _:
                self.feed(call)

    def _watched(self, key: WorkerKey) -> _Worker:
        worker = self._workers.get(key)
        if worker is None or not worker.is_watched:
            raise msg.WorkerIsGone
        return worker

    def feed(self, *events: msg.Event) -> None:
        """Hand events to the core, and do what it wants."""
        self._events.extend(events)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._events:
                for effect in self._core.handle(self._events.popleft(), now=time.monotonic()):
                    self._execute(effect)
            if (exceeded := self._core.exceeded()) != self._exceeded:
                self._exceeded = exceeded
                self._on_event(LimitsExceeded(exceeded=exceeded))
        finally:
            self._is_busy = False
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None
            if (due := self._core.next_deadline()) is not None:
                loop, delay_s = asyncio.get_running_loop(), max(0.0, due - time.monotonic())
                self._alarm = loop.call_later(delay_s, self.feed, msg.DeadlineReached())

    def _execute(self, effect: msg.Effect) -> None:
        if isinstance(effect, msg.Warn):
            log.warning(effect.event, reason=effect.reason, **_place(effect.worker))
            return
        worker = self._workers.get(effect.worker)
        if worker is None or not (worker.is_watched or isinstance(effect, msg.Report)):
            return
        match effect:
            case msg.ReadBoard():
                self._read_board(worker)
            case msg.ReadCollectives():
                self._spawn(self._read_collectives(worker))
            case msg.AnnounceLook():
                worker.board.announce(effect.look_at)
            case msg.TakeEvidence():
                self._spawn(self._take_evidence(effect, worker))
            case msg.Signal():
                self._on_event(effect)
                worker.blame.sends(effect, time.monotonic())
                if effect.pid:
                    signal_below(effect.pid, worker.pid, effect.signum)
                else:
                    self._send_signal(effect.worker, effect.signum)
            case msg.EndForLine(line=line):
                worker.fatal_line = line
                why = self._redact(describe_fatal(line))
                log.warning("worker ended for a fatal line", reason=why, **_place(effect.worker))
            case msg.TellUnkilled():
                state = describe_process(worker.pid)
                why = f"it is still alive {effect.after_s:.0f} s after SIGKILL; {state}"
                log.warning("worker can't be killed", reason=why, **_place(effect.worker))
            case msg.Report():
                self._report(effect, worker)

    def _report(self, report: msg.Report, worker: _Worker) -> None:
        self._on_event(report)
        what = "worker hangs" if report.is_ending else "worker hangs, is left alone"
        reason = self._redact(describe_hang(report.hang))
        if report.hang.kind is HangKind.COLLECTIVE and not report.is_ending:
            what = "worker waits in a collective"  # whether the run hangs, the coordinator finds
        if report.aftermath:
            what, reason = "worker exceeded a limit", f"{reason}; {report.aftermath}"
        log.warning(what, reason=reason, **_place(report.worker))
        if report.is_ending:
            worker.blame.reported(report)
        elif report.hang.evidence.stacks and report.hang.kind not in _SHOWN_BY_COORDINATOR:
            # No failure record has them.
            write_text(f"{indent(self._redact(report.hang.evidence.stacks), '  ')}\n")

    def _read_board(self, worker: _Worker) -> None:
        if (timers := worker.file_timers or self._file_timers) is not None:
            timers.catch_up()  # a release that was written counts, too
        self._take_suspects(worker)
        snapshot = worker.board.read()
        if self._rules is not None:
            snapshot = self._rules.added_to(snapshot, worker.key)
        self.feed(msg.BoardRead(worker=worker.key, snapshot=snapshot))

    def _take_suspects(self, worker: _Worker) -> None:
        """Keep whom the worker accuses, each rank once, until the next round."""
        for rank, reason in worker.board.read_suspects():
            if len(worker.suspects) < SUSPECTS_MAX:
                worker.suspects.setdefault(rank, self._redact(reason))

    def _on_fatal(self, key: WorkerKey) -> None:
        """Look at once; a worker that is not watched yet is looked at when it is."""
        worker = self._workers.get(key)
        if worker is not None and worker.is_watched:
            self._read_board(worker)

    async def _read_collectives(self, worker: _Worker) -> None:
        progress = await worker.stacks.progress(COLLECTIVES_WITHIN_S)
        is_waiting = progress is not None and progress.is_waiting
        read = msg.CollectivesRead(worker=worker.key, progress=progress, is_waiting=is_waiting)
        if worker.is_watched:
            self.feed(read)

    async def _take_evidence(self, effect: msg.TakeEvidence, worker: _Worker) -> None:
        snapshot = worker.known.snapshot if worker.known and not effect.pid else Snapshot()
        async with worker.stacks.turn():
            evidence = await worker.stacks.evidence(
                effect.pid or worker.pid,
                snapshot,
                effect.timeout_s,
                is_asked=not effect.is_by_signal,  # else it was asked, and has not answered
                may_signal=effect.is_by_signal,
                starved_s=STARVED_S if effect.is_by_signal else 0.0,
            )
        if effect.pid and not is_below(effect.pid, worker.pid):
            evidence = HangEvidence(is_alive=False)  # another process has its number by now
        if worker.is_watched:
            self.feed(msg.EvidenceTaken(worker=effect.worker, evidence=evidence))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a task; an error in it goes to the loop's exception handler."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _listen(self, worker: _Worker) -> None:
        asyncio.get_running_loop().add_reader(worker.board.kick_fd, self._on_kick, worker)

    def _on_kick(self, worker: _Worker) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(worker.board.kick_fd)
        worker.pause = loop.call_later(KICK_PAUSE_S, self._listen, worker)
        worker.board.drain_kicks()
        worker.board.notices.move_on()
        self._read_board(worker)
        self._take_answers()

    def _workers_of(self, round_id: int | None) -> list[_Worker]:
        """Return the workers of a round; None: of any round."""
        return [w for key, w in self._workers.items() if round_id in (None, key.round_id)]

    def _unwatch(self, worker: _Worker) -> None:
        worker.begun.set()
        if not worker.is_watched:
            return
        worker.is_watched = False
        if worker.pause is not None:
            worker.pause.cancel()
        asyncio.get_running_loop().remove_reader(worker.board.kick_fd)
        if service := self._boards.service:
            service.worker_gone(worker.key)
        self._read_board(worker)  # what it said last
        self.feed(msg.WorkerGone(worker=worker.key))

    def _remove(self, worker: _Worker) -> None:
        self._unwatch(worker)
        worker.pid = 0  # another process may get its number
        if worker.file_timers is not None:
            worker.file_timers.close()
        worker.board.close()

    def _serve_file_timers(self, worker: _Worker) -> dict[str, str]:
        """Return what tells a worker where torch's file timers are served; nothing if nowhere.

        A line there names a process. Where each worker has a place of its own, one is heard of
        its own processes only.
        """
        path = requested_path(self._environment, worker.board.directory)
        if path is None:
            return {}
        if not path.is_relative_to(worker.board.directory):
            if self._file_timers is None:
                self._file_timers = FileTimers(path, self.submit, self._worker_with)
            self._file_timers.pause()
            return self._file_timers.environment
        room_bytes = PIPE_BYTES // len(self._workers)
        worker.file_timers = FileTimers(
            path,
            self.submit,
            lambda pid: worker.key if pid == worker.pid else None,
            room_bytes=room_bytes,
        )
        return worker.file_timers.environment

    def _worker_of(self, token: str) -> WorkerKey | None:
        return self._tokens.get(token)

    def _worker_with(self, pid: int) -> WorkerKey | None:
        return next((worker.key for worker in self._workers.values() if worker.pid == pid), None)


def _place(key: WorkerKey | None) -> dict[str, int]:
    return {} if key is None else {"run.round": key.round_id, "worker.local_rank": key.local_rank}
