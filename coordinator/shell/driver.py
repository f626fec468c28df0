"""Shell. The owner of the core: runs its turns on a real clock and a real journal."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, get_args

import structlog
from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core import events as ev
from drumbeat.coordinator.core.model import KeptDrain
from drumbeat.coordinator.core.quorum.model import KeptQuorum
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.core.run.history import REASON_CHARACTERS_MAX
from drumbeat.coordinator.core.run.reasons import CoordinatorHistory
from drumbeat.coordinator.core.run.records import CALLER_CHARACTERS_MAX, CallKind, Record
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.core.tokens.token_table import KeptToken, TokenTable
from drumbeat.coordinator.errors import CoordinatorError, JournalOutage
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.journal.outage import Outage
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.observe.observations import DECISIONS
from drumbeat.coordinator.shell.collecting.evidence import EvidenceTaker
from drumbeat.coordinator.shell.collecting.logs import LogReaders
from drumbeat.coordinator.shell.collecting.stacks import StackQuestions
from drumbeat.coordinator.shell.garbage import GARBAGE
from drumbeat.coordinator.shell.quorums import Quorums
from drumbeat.coordinator.shell.turns import Queued, Turns

if TYPE_CHECKING:
    from drumbeat.coordinator.shell.collecting.log_tails import LogTails

log = structlog.get_logger()

# A write that takes longer than this counts as an outage.
PATIENCE_S = 5.0
# A wait that ends so late is logged: the process or its host stood still.
STOOD_STILL_S = 1.0

_ON_DAMAGE = 'restore a backup, or see "Damaged journals" in docs/operating.md'

_ORDER: tuple[type[fx.Push], ...] = get_args(fx.Push)


class Outbox:
    """The sending side of one session. Of each kind of effect only the latest waits.

    The welcome is sent first. An error is not queued: an agent that reads nothing would never get
    it.
    """

    def __init__(self) -> None:
        self.error: CoordinatorError | None = None  # ends the session; the first one counts
        self._slots: dict[type[fx.Push], fx.Push] = {}
        self._is_welcomed = False
        self._changed = asyncio.Event()
        self._failed: asyncio.Future[None] | None = None

    def put(self, effect: fx.Push | fx.Reject) -> None:
        """Queue an effect; it replaces one of its kind that was not sent yet."""
        if isinstance(effect, fx.Reject):
            self.error = self.error or effect.error
            if self._failed is not None and not self._failed.done():
                self._failed.set_exception(self.error)
        else:
            self._slots[type(effect)] = effect
            self._changed.set()

    def take(self) -> fx.Push | None:
        """Return the effect to send next, if there is one."""
        self._is_welcomed = self._is_welcomed or fx.Welcome in self._slots
        if not self._is_welcomed:
            return None
        return next((self._slots.pop(kind) for kind in _ORDER if kind in self._slots), None)

    def failed(self) -> asyncio.Future[None]:
        """Return what has the session's error once there is one; to be called once."""
        self._failed = asyncio.get_running_loop().create_future()
        if self.error is not None:
            self._failed.set_exception(self.error)
        return self._failed

    async def next(self) -> fx.Push:
        """Return the effect to send next, once there is one."""
        while (effect := self.take()) is None:
            self._changed.clear()
            await self._changed.wait()
        return effect


async def ignore(is_serving: bool) -> None:
    """Tell no one."""


class Driver:
    """Runs a registry. Everything that reaches it comes through ``submit``.

    Events that arrive while the journal is being written are handled together afterwards, so that
    they share one write. A write that fails is repeated until it succeeds. Until then nothing is
    decided, no decision is told, and ``on_serving`` has been called with ``False``.
    ``is_embedded``: decisions are logged as details, because an agent in this process logs them.
    """

    def __init__(
        self,
        registry: Registry,
        journal: Journal,
        limits: Limits,
        *,
        is_embedded: bool = False,
        on_serving: Callable[[bool], Awaitable[None]] = ignore,
    ) -> None:
        self.registry, self.journal, self.limits = registry, journal, limits
        # Without room streams are not read, and gRPC holds the rest back at the agents.
        waiting_max = limits.failure_queue_bytes_max // limits.failure_record_bytes_max
        self._failure_room = asyncio.Semaphore(max(1, waiting_max))
        self._due = asyncio.Event()
        self._turn = asyncio.Lock()  # held from a decision until agents are told
        self._turns = Turns(
            registry,
            read_run=self._read_run,
            log=self._log,
            wake=self._due.set,
            queue_max=limits.event_queue_max,
            failure_taken=self._failure_room.release,
        )
        # Called with the id of a revoked token: all that it opened has to end.
        self.on_revoked: Callable[[str], None] = lambda _token_id: None
        self._turns.on_revoked = self._revoked
        # Called with the effects of each write and its duration, before agents are told.
        self.on_written: Callable[[Sequence[fx.Effect], float], None] = lambda *_: None
        # Called with each durable record of this term, and with its run before the record.
        self.on_record: Callable[[RunState, Record], None] = lambda _state, _record: None
        # Called when the last session has ended.
        self.on_last_closed: Callable[[], None] = lambda: None
        # Called after each turn; it must not wait.
        self.on_turn: Callable[[], None] = lambda: None
        self._is_embedded, self._on_serving = is_embedded, on_serving
        self.stacks, self.logs = StackQuestions(), LogReaders()
        self.tails: LogTails | None = None  # None: nothing is kept
        self.quorums = Quorums(journal, self._keep_quorum, self.now)
        self._evidence = EvidenceTaker(self.stacks, journal, self.submit)
        self._turns.take_evidence = self._evidence.take
        self._outage: Outage | None = None
        self._request_ids = itertools.count(1)
        self._outages_s = 0.0  # duration of all outages that are over
        self._history = CoordinatorHistory()
        self._stretch = 1  # of all agents' pace, as was logged
        self._clock_offset = 0.0
        self._authorities: tuple[str, ...] = ()

    @property
    def tokens(self) -> TokenTable:
        """The tokens as they are journaled."""
        return self.journal.tokens

    @property
    def drains(self) -> list[KeptDrain]:
        """The drains in force, as they are journaled."""
        return [drain for drain in self.journal.drains.values() if not drain.is_lifted]

    @property
    def outage(self) -> str:
        """Why nothing is decided at present; empty: decisions are made."""
        return self._turns.outage

    @property
    def outage_s(self) -> float:
        """How long the journal could not be written, in all outages together."""
        outage = self._outage
        present_s = 0.0 if outage is None else outage.lasted_s(now=time.monotonic())
        return self._outages_s + present_s

    @property
    def sessions_count(self) -> int:
        """How many sessions are open."""
        return len(self._turns.outboxes)

    @property
    def queued(self) -> Queued:
        """What waits for a turn."""
        return self._turns.queued

    def now(self) -> float:
        """Return the coordinator's clock: monotonic seconds that continue across its restarts."""
        return time.monotonic() + self._clock_offset

    async def restore(self) -> None:
        """Go on from what the journal holds. Raises ``CommandFailed``."""
        self._clock_offset = await self.journal.load()
        self.journal.runs.on_record = self._recorded
        self.registry.quorums = dict(self.journal.quorums)
        self.registry.tokens.restore(self.tokens.tokens.values())
        self.registry.drains.restore(self.journal.drains.values())
        self.registry.forgets = self.journal.forgets
        self.registry.set_aside = dict(self.journal.set_aside)
        for problem in self.journal.problems:
            log.error("the journal is damaged", **problem._asdict(), advice=_ON_DAMAGE)
        effects: list[fx.Effect] = []
        for key in self.journal.runs.states:
            if (state := self._read_run(key)) is not None:
                effects += self.registry.take_over(state, now=self.now())
                if state.phase is not Phase.ENDED:
                    text = f"{state.run_id}: restored from the journal, {state.phase}"
                    log.info("run restored", message=text, **{"run.id": state.run_id})
            await asyncio.sleep(0)  # the lease is kept alive meanwhile
        effects += self.registry.taken_over()
        await self.journal.write(effects, now=self.now())

    def open(self, opened: ev.SessionOpened) -> Outbox:
        """Begin a session, and return its outbox. Raises as ``submit``."""
        outbox = Outbox()
        self._turns.open(opened, outbox.put, now=self.now())
        opened = opened.without_beat()
        self.stacks.joined(opened, outbox.put)
        self.logs.joined(opened, outbox.put)
        if self._authorities:
            outbox.put(fx.TellAuthorities(session_id=opened.session_id, keys=self._authorities))
        return outbox

    def announce(self, authorities: Sequence[str]) -> None:
        """Tell all agents, and those that come, the keys of the coordinator's authorities."""
        self._authorities = tuple(authorities)
        for session_id, send in self._turns.outboxes.items():
            send(fx.TellAuthorities(session_id=session_id, keys=self._authorities))

    def close(self, opened: ev.SessionOpened, *, caller: str = "") -> None:
        """Handle the end of a caller's session."""
        self.stacks.left(opened)
        self.logs.left(opened)
        is_revoked = self.tokens.is_revoked(caller)
        self._turns.close(opened, is_revoked=is_revoked, now=self.now())
        if not self.sessions_count:
            self.on_last_closed()

    def submit(self, event: ev.Event) -> None:
        """Hand an event over. Raises ``LimitReached`` or ``Unavailable``, see ``Turns``."""
        self._turns.submit(event, now=self.now())

    async def submit_failure(self, event: ev.FailureReported) -> asyncio.Future[int | None]:
        """Ask for a failure record to be kept, once there is room for it."""
        await self._failure_room.acquire()
        try:
            return self.ask(event)
        except CoordinatorError:
            self._failure_room.release()
            raise

    def ask(self, event: ev.FailureReported | ev.LimitsReset) -> asyncio.Future[int | None]:
        """Submit an event; its ``Answer`` comes once it is journaled."""
        return self._ask(event)

    async def change_token(self, event: ev.TokenCreated | ev.TokenRevoked) -> KeptToken:
        """Create or revoke a token; return it once that is journaled. Raises as ``submit``."""
        token: KeptToken = await self._ask(event)
        return token

    async def steer(self, event: ev.Steering | ev.ForgetAsked | ev.DrainAsked) -> fx.Steered:
        """Do what an operator asks for; return once it is journaled. Raises as ``submit``."""
        result: fx.Steered = await self._ask(event)
        return result

    def note(self, run_id: str, kind: CallKind, caller: str, reason: str) -> None:
        """Note an action of a caller in a run, if it exists; of equal refusals only the first."""
        # Refusals are compared by both, so both are bounded.
        who, why = caller[:CALLER_CHARACTERS_MAX], reason[:REASON_CHARACTERS_MAX]
        event = ev.CallNoted(run_id=run_id, kind=kind, caller=who, reason=why)
        self._turns.note(event, now=self.now())

    def _keep_quorum(self, quorum: KeptQuorum) -> asyncio.Future[None]:
        return self._ask(ev.QuorumFormed(quorum=quorum))

    def _recorded(self, state: RunState, record: Record) -> None:
        self.quorums.recorded(state, record)
        self.on_record(state, record)

    def _ask(
        self, event: ev.FailureReported | ev.QuorumFormed | ev.OperatorRequest
    ) -> asyncio.Future[Any]:
        number = next(self._request_ids)
        if isinstance(event, ev.TokenCreated):
            event = dataclasses.replace(event, request_id=number)
        else:
            event = replace(event, request_id=number)
        self.submit(event)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(answer: fx.Answer) -> None:
            if future.done():
                return  # the caller is gone
            if isinstance(answer.result, CoordinatorError):
                future.set_exception(answer.result)
                future.exception()  # the caller may go without looking
            else:
                future.set_result(answer.result)

        self._turns.answers[number] = settle
        return future

    def stop(self, error: CoordinatorError) -> None:
        """Stop deciding, and end every session and watch with an error."""
        self._turns.stop(error)
        self._evidence.close()
        self.journal.runs.watches.end(error)

    @asynccontextmanager
    async def paused(self, within_s: float) -> AsyncIterator[None]:
        """Decide nothing in the context; all earlier decisions are written and told before it.

        Raises ``TimeoutError`` if they cannot be written within that time.
        """
        async with asyncio.timeout(within_s):
            await self._turn.acquire()
        try:
            yield
        finally:
            self._turn.release()

    async def run(self) -> None:
        """Handle events until cancelled. Raises errors that are final, as ``LostLeadership``."""
        try:
            while True:
                if self._turns.is_idle:
                    await self._wait_until_due()
                async with self._turn:
                    now = self.now()
                    with GARBAGE.put_off():
                        effects = self._turns.decide(now=now)
                    await self._write(effects, now)
                    self._turns.tell(effects)
                    self.journal.runs.watches.tell()
                self._note_load()
                self.on_turn()
                # Other tasks have their turn, however many events wait here.
                await asyncio.sleep(0)
        finally:
            await self.journal.close()

    async def _wait_until_due(self) -> None:
        """Return when there is an event, or a deadline has come."""
        self._due.clear()
        due, began = self._turns.next_deadline(), self.now()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if due is None else max(0.0, due - began)):
                await self._due.wait()
        late_s = 0.0 if due is None else self.now() - max(due, began)
        if late_s > STOOD_STILL_S and not self._is_embedded:
            why = f"this process or its host stood still for {late_s:.1f} s"
            log.warning("coordinator stood still", reason=f"{why}; agents get as much more time")

    def _note_load(self) -> None:
        stretch = self.registry.load.stretch
        if stretch > self._stretch:
            log.warning(
                "coordinator is behind",
                message="heartbeats of many agents are read too late, so agents send them "
                f"{stretch} times as rarely, and may be silent {stretch} times as long; this "
                "coordinator needs more cores, see --frontends",
                stretch=stretch,
            )
        elif stretch < self._stretch:
            how = f"{stretch} times as rarely as usual" if stretch > 1 else "as often as usual"
            log.info("pace eased", message=f"agents send heartbeats {how} again", stretch=stretch)
        self._stretch = stretch

    async def _write(self, effects: Sequence[fx.Effect], now: float) -> None:
        """Return once the changes of these effects are durable."""
        while any(isinstance(effect, fx.Kept) for effect in effects):
            began = time.monotonic()
            write = asyncio.ensure_future(self.journal.write(effects, now=now))
            try:
                done, _ = await asyncio.wait({write}, timeout=PATIENCE_S)
                if not done:
                    reason = f"the journal has not answered for {PATIENCE_S:g} s"
                    await self._note_outage(reason)
                await write
                self.on_written(effects, time.monotonic() - began)
                break
            except JournalOutage as error:
                outage = await self._note_outage(str(error), advice=error.hint)
            finally:
                write.cancel()
            await asyncio.sleep(outage.next_retry_s())
        if (ended := self._outage) is not None:
            self._outage = None
            await self._on_serving(True)
            lasted_s = ended.lasted_s(now=time.monotonic())
            self._outages_s += lasted_s
            log.warning("the journal can be written again", after_s=round(lasted_s, 1))

    async def _note_outage(self, reason: str, **details: str) -> Outage:
        now = time.monotonic()
        self._turns.outage = reason
        if (outage := self._outage) is None:
            outage = self._outage = Outage(now=now)
            await self._on_serving(False)
        if outage.failed(reason, now=now):
            since_s = round(outage.lasted_s(now=now), 1)
            message = "nothing is decided until the journal can be written"
            log.error(message, reason=reason, since_s=since_s, **details)
        return outage

    def _revoked(self, token_id: str) -> None:
        self.on_revoked(token_id)

    def _read_run(self, key: str) -> RunState | None:
        return self.journal.runs.copy(key)

    def _log(self, effect: fx.Decided | fx.ReadRun) -> None:
        where: dict[str, object] = {"run.id": effect.run_id}
        if isinstance(effect, fx.ReadRun):
            log.error("run broken", exc_info=effect.error, **where)
            return
        where["run.round"] = effect.round_id
        line, write = self._history.line(effect), log.info
        if self._is_embedded and effect.decision in DECISIONS:
            line = f"{effect.decision}: {effect.reason}"
        elif self._is_embedded:  # the agent says it
            write = log.debug
        write(effect.decision, message=line, reason=effect.reason, **where)
